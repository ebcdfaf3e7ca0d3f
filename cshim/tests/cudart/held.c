/* A program of the CUDA runtime is held to its share, whichever way the runtime is in it: this is built twice, with the
 * small runtime linked into the program, and with it as a shared library. The program itself links against no driver:
 * it has what the runtime finds, and the runtime finds what the shim lets it. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>

#include "clock.h"
#include "cudart.h"
#include "rig.h"

enum { HOST_NS = 2000, THREADS = 4, WORKERS = 4 };

#define SECOND_NS UINT64_C(1000000000)

static void *pointer_of(void *library, const char *name)
{
	void *pointer = dlsym(library, name);

	CHECK(pointer != NULL);
	return pointer;
}

static void *driver_function(const char *name)
{
	return pointer_of(dlopen("libcuda.so.1", RTLD_NOW), name);
}

static void *shim_library(void)
{
	char path[PATH_MAX];
	void *library;

	snprintf(path, sizeof(path), "%s/libvgpu.so", getenv("VGPU_BUILD"));
	library = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
	CHECK(library != NULL);
	return library;
}

/* What the card itself knows. */
static uint64_t card_used(int device)
{
	return ((__typeof__(fakeUsedBytes) *)driver_function("fakeUsedBytes"))(device);
}

static uint64_t card_busy_ns(int device)
{
	return ((__typeof__(fakeBusyNanoseconds) *)driver_function("fakeBusyNanoseconds"))(device);
}

static void check_exact(uint64_t bytes)
{
	CHECK_EQUAL(rig_charged(0), bytes);
	CHECK_EQUAL(card_used(0), bytes);
}

static uint64_t free_bytes(void)
{
	size_t free_now, total;

	CHECK_EQUAL(cudaMemGetInfo(&free_now, &total), cudaSuccess);
	return free_now;
}

/* The look-ups. */

static void the_program_knows_no_driver_until_the_runtime_is_used(void)
{
	int count;

	(void)rig_one(GIB, 100);
	CHECK(dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD) == NULL);
	CHECK_EQUAL(cudaGetDeviceCount(&count), cudaSuccess);
	CHECK_EQUAL(count, 1);
	CHECK(dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD) != NULL);
}

static void each_entry_is_our_stand_in_or_the_drivers_own_function(void)
{
	const struct cudart_entry *entries;
	__typeof__(const char *(const char *, int, cuuint64_t)) *symbol_of;
	size_t count, ours = 0;

	(void)rig_one(GIB, 100);
	count = cudartEntries(&entries);
	CHECK(count > 40);
	symbol_of = (__typeof__(symbol_of))driver_function("fakeSymbol");
	for (size_t i = 0; i < count; i++) {
		const char *symbol = symbol_of(entries[i].name, entries[i].version, entries[i].flags);
		Dl_info found;
		void *expected;

		CHECK(symbol != NULL && *entries[i].address != NULL);
		CHECK(dladdr(*entries[i].address, &found) != 0);
		expected = dlsym(shim_library(), symbol);
		if (expected != NULL) {
			ours++;
			CHECK(*entries[i].address == expected);
		} else {
			CHECK(strcmp(strrchr(found.dli_fname, '/'), "/libcuda.so.1") == 0);
		}
	}
	CHECK(ours > 25);
}

static void an_older_runtimes_look_ups_are_held_too(void)
{
	void *a, *b;

	(void)rig_one(GIB, 100);
	cudartLookUpLike(11);
	CHECK_EQUAL(cudaMalloc(&a, 600 * MIB), cudaSuccess);
	CHECK_EQUAL(cudaMalloc(&b, 600 * MIB), cudaErrorMemoryAllocation);
	CHECK_EQUAL(cudaMallocAsync_ptsz(&b, 600 * MIB, NULL), cudaErrorMemoryAllocation);
	check_exact(600 * MIB);
}

/* Memory. */

static void memory_is_held_to_the_limit_and_shown_as_the_share(void)
{
	size_t free_now, total;
	void *a, *b;

	(void)rig_one(GIB, 100);
	CHECK_EQUAL(cudaDeviceTotalGlobalMem(&total, 0), cudaSuccess);
	CHECK_EQUAL(total, GIB);
	CHECK_EQUAL(cudaMalloc(&a, 600 * MIB), cudaSuccess);
	CHECK_EQUAL(cudaMalloc(&b, 425 * MIB), cudaErrorMemoryAllocation);
	CHECK_EQUAL(cudaGetLastError(), cudaErrorMemoryAllocation);
	CHECK_EQUAL(cudaGetLastError(), cudaSuccess);
	CHECK_EQUAL(cudaMalloc(&b, 424 * MIB), cudaSuccess); /* a refusal spoils nothing */
	CHECK_EQUAL(cudaMemGetInfo(&free_now, &total), cudaSuccess);
	CHECK_EQUAL(free_now, 0);
	CHECK_EQUAL(total, GIB);
	check_exact(GIB);
	CHECK_EQUAL(cudaFree(a), cudaSuccess);
	CHECK_EQUAL(cudaFree(b), cudaSuccess);
	CHECK_EQUAL(cudaFree(NULL), cudaSuccess);
	CHECK_EQUAL(free_bytes(), GIB);
	check_exact(0);
}

static void every_kind_that_the_runtime_offers_counts(void)
{
	cudaArray_t array;
	size_t pitch;
	void *a, *b;

	(void)rig_one(GIB, 100);
	CHECK_EQUAL(cudaMallocManaged(&a, 256 * MIB), cudaSuccess);
	CHECK_EQUAL(cudaMallocPitch(&b, &pitch, 8, MIB / 2), cudaSuccess);
	check_exact(512 * MIB);
	CHECK_EQUAL(cudaMallocArray(&array, 8192, 8192), cudaSuccess);
	check_exact(768 * MIB);
	CHECK_EQUAL(cudaMallocManaged(&a, 257 * MIB), cudaErrorMemoryAllocation);
	CHECK_EQUAL(cudaMallocPitch(&b, &pitch, 8, MIB), cudaErrorMemoryAllocation);
	CHECK_EQUAL(cudaFreeArray(array), cudaSuccess);
	check_exact(512 * MIB);
}

static void memory_in_the_order_of_either_default_stream_counts(void)
{
	void *a, *b, *c;

	(void)rig_one(GIB, 100);
	CHECK_EQUAL(cudaMallocAsync(&a, 300 * MIB, NULL), cudaSuccess);
	CHECK_EQUAL(cudaMallocAsync_ptsz(&b, 300 * MIB, NULL), cudaSuccess);
	CHECK_EQUAL(cudaMallocAsync(&c, 500 * MIB, NULL), cudaErrorMemoryAllocation);
	CHECK_EQUAL(cudaMallocAsync_ptsz(&c, 500 * MIB, NULL), cudaErrorMemoryAllocation);
	CHECK_EQUAL(free_bytes(), 424 * MIB);
	CHECK_EQUAL(cudaFreeAsync(a, NULL), cudaSuccess);
	CHECK_EQUAL(cudaFreeAsync_ptsz(b, NULL), cudaSuccess);
	CHECK_EQUAL(cudaDeviceSynchronize(), cudaSuccess); /* the pool gives back now */
	CHECK_EQUAL(free_bytes(), GIB);
	check_exact(0);
}

static void pools_count_what_they_keep(void)
{
	cudaMemPool_t pool;
	void *a;

	(void)rig_one(GIB, 100);
	CHECK_EQUAL(cudaMemPoolCreate(&pool, 0), cudaSuccess);
	CHECK_EQUAL(cudaMallocFromPoolAsync(&a, 700 * MIB, pool, NULL), cudaSuccess);
	CHECK_EQUAL(cudaMalloc(&a, 400 * MIB), cudaErrorMemoryAllocation);
	CHECK_EQUAL(free_bytes(), 324 * MIB);
	CHECK_EQUAL(cudaMemPoolDestroy(pool), cudaSuccess);
	check_exact(700 * MIB); /* what is in use of it stays */
}

static void graphs_that_allocate_are_held(void)
{
	cudaGraphExec_t exec;
	cudaStream_t stream;
	cudaGraph_t graph;
	void *a, *b;

	(void)rig_one(GIB, 100);
	CHECK_EQUAL(cudaStreamCreate(&stream), cudaSuccess);
	CHECK_EQUAL(cudaStreamBeginCapture(stream), cudaSuccess);
	CHECK_EQUAL(cudaMallocAsync(&a, 600 * MIB, stream), cudaSuccess);
	CHECK_EQUAL(cudaStreamEndCapture(stream, &graph), cudaSuccess);
	CHECK_EQUAL(cudaGraphInstantiate(&exec, graph), cudaSuccess);
	CHECK_EQUAL(cudaMalloc(&b, 500 * MIB), cudaSuccess);
	CHECK_EQUAL(cudaGraphLaunch(exec, stream), cudaErrorMemoryAllocation);
	CHECK_EQUAL(cudaFree(b), cudaSuccess);
	CHECK_EQUAL(cudaGraphLaunch(exec, stream), cudaSuccess);
	CHECK_EQUAL(cudaGraphLaunch_ptsz(exec, stream), cudaSuccess);
	check_exact(600 * MIB);
	CHECK_EQUAL(cudaGraphExecDestroy(exec), cudaSuccess);
}

static void a_reset_gives_everything_back(void)
{
	void *a;

	(void)rig_one(GIB, 100);
	CHECK_EQUAL(cudaMalloc(&a, GIB), cudaSuccess);
	CHECK_EQUAL(cudaDeviceReset(), cudaSuccess);
	check_exact(0);
	CHECK_EQUAL(cudaMalloc(&a, GIB), cudaSuccess);
}

static void each_device_has_its_own_limit(void)
{
	struct grant grant = rig_grant(2, GIB, 100);
	size_t total;
	void *a;

	rig_cards(2, 8 * GIB);
	grant.devices[1].memory_limit_bytes = 2 * GIB;
	rig_write(&grant);
	setenv("CUDA_VISIBLE_DEVICES", "1,0", 1);
	CHECK_EQUAL(cudaDeviceTotalGlobalMem(&total, 0), cudaSuccess);
	CHECK_EQUAL(total, 2 * GIB);
	CHECK_EQUAL(cudaMalloc(&a, 1500 * MIB), cudaSuccess);
	CHECK_EQUAL(cudaSetDevice(1), cudaSuccess);
	CHECK_EQUAL(cudaMalloc(&a, 1500 * MIB), cudaErrorMemoryAllocation);
	CHECK_EQUAL(cudaMalloc(&a, 700 * MIB), cudaSuccess);
	CHECK_EQUAL(rig_charged(0), 700 * MIB);
	CHECK_EQUAL(rig_charged(1), 1500 * MIB);
}

static _Atomic int given;

static void *take_what_there_is(void *unused)
{
	void *a;

	while (cudaMalloc(&a, 16 * MIB) == cudaSuccess)
		atomic_fetch_add(&given, 1);
	return unused;
}

static void threads_share_the_runtime_and_the_limit(void)
{
	pthread_t threads[THREADS];

	(void)rig_one(GIB, 100);
	for (int i = 0; i < THREADS; i++)
		CHECK_EQUAL(pthread_create(&threads[i], NULL, take_what_there_is, NULL), 0);
	for (int i = 0; i < THREADS; i++)
		CHECK_EQUAL(pthread_join(threads[i], NULL), 0);
	CHECK_EQUAL(atomic_load(&given), 64);
	check_exact(GIB);
}

static void processes_share_the_limit_and_the_dead_leave_room(void)
{
	_Atomic int *taken = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	pid_t workers[WORKERS];
	void *a;

	(void)rig_one(GIB, 100);
	for (int i = 0; i < WORKERS; i++) {
		workers[i] = fork();
		if (workers[i] != 0)
			continue;
		alarm(TEST_SECONDS);
		while (cudaMalloc(&a, 64 * MIB) == cudaSuccess)
			atomic_fetch_add(&taken[0], 1);
		atomic_fetch_add(&taken[1], 1);
		pause();
	}
	while (atomic_load(&taken[1]) < WORKERS)
		usleep(1000);
	CHECK_EQUAL(atomic_load(&taken[0]), 16);
	CHECK_EQUAL(cudaMalloc(&a, 64 * MIB), cudaErrorMemoryAllocation);
	for (int i = 0; i < WORKERS; i++) {
		CHECK_EQUAL(kill(workers[i], SIGKILL), 0);
		CHECK_EQUAL(waitpid(workers[i], NULL, 0), workers[i]);
	}
	CHECK_EQUAL(cudaMalloc(&a, GIB), cudaSuccess);
	check_exact(GIB);
}

/* Compute. */

enum way { LEGACY_STREAM, PER_THREAD_STREAM, EXTENDED, GRAPH, GRAPH_PER_THREAD, WAYS };

static void compute_is_held_however_it_is_launched(void)
{
	static struct kernel kernel = {.name = "spin_200us"};
	cudaGraphExec_t exec;
	cudaStream_t stream;
	cudaGraph_t graph;

	clock_start(1);
	(void)rig_one(GIB, 30);
	CHECK_EQUAL(cudaStreamCreate(&stream), cudaSuccess);
	CHECK_EQUAL(cudaStreamBeginCapture(stream), cudaSuccess);
	for (int i = 0; i < 10; i++)
		CHECK_EQUAL(cudaLaunchKernel(&kernel, 1, 32, stream), cudaSuccess);
	CHECK_EQUAL(cudaStreamEndCapture(stream, &graph), cudaSuccess);
	CHECK_EQUAL(cudaGraphInstantiate(&exec, graph), cudaSuccess);
	for (enum way way = 0; way < WAYS; way++) {
		const uint64_t started = clock_now(), busy = card_busy_ns(0);
		double percent;

		while (clock_now() - started < SECOND_NS) {
			const cudaError_t result = way == LEGACY_STREAM ? cudaLaunchKernel(&kernel, 1, 32, NULL)
						   : way == PER_THREAD_STREAM
							   ? cudaLaunchKernel_ptsz(&kernel, 1, 32, NULL)
						   : way == EXTENDED ? cudaLaunchKernelExC(&kernel, 1, 32, stream)
						   : way == GRAPH    ? cudaGraphLaunch(exec, stream)
								     : cudaGraphLaunch_ptsz(exec, NULL);

			CHECK_EQUAL(result, cudaSuccess);
			clock_sleep(HOST_NS);
		}
		CHECK_EQUAL(cudaDeviceSynchronize(), cudaSuccess);
		percent = 100.0 * (double)(card_busy_ns(0) - busy) / (double)(clock_now() - started);
		CHECK(percent > 27 && percent < 33);
	}
}

static void a_kernel_is_loaded_when_it_is_first_launched(void)
{
	static struct kernel kernel = {.name = "spin_1us"};

	(void)rig_one(GIB, 100);
	CHECK_EQUAL(cudaLaunchKernel(&kernel, 1, 32, NULL), cudaSuccess);
	CHECK(kernel.loaded[0] != NULL && kernel.loaded[1] == NULL);
	CHECK_EQUAL(atomic_load(&rig_region()->slots[0].use[0].launches), 1);
}

int main(int argc, char **argv)
{
	static const struct test tests[] = {
		TEST(the_program_knows_no_driver_until_the_runtime_is_used),
		TEST(each_entry_is_our_stand_in_or_the_drivers_own_function),
		TEST(an_older_runtimes_look_ups_are_held_too),
		TEST(memory_is_held_to_the_limit_and_shown_as_the_share),
		TEST(every_kind_that_the_runtime_offers_counts),
		TEST(memory_in_the_order_of_either_default_stream_counts),
		TEST(pools_count_what_they_keep),
		TEST(graphs_that_allocate_are_held),
		TEST(a_reset_gives_everything_back),
		TEST(each_device_has_its_own_limit),
		TEST(threads_share_the_runtime_and_the_limit),
		TEST(processes_share_the_limit_and_the_dead_leave_room),
		TEST(compute_is_held_however_it_is_launched),
		TEST(a_kernel_is_loaded_when_it_is_first_launched),
	};
	return RUN_TESTS(tests, argc, argv);
}
