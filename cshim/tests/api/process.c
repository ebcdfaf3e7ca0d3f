/* Processes of one container: beginning, forking, replacing themselves, dying at any moment. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include "rig.h"

static void allocate(uint64_t bytes)
{
	CUdeviceptr a;

	CHECK_EQUAL(cuMemAlloc_v2(&a, bytes), CUDA_SUCCESS);
}

static void what_an_ended_process_held_is_free(void)
{
	struct grant grant = rig_grant(1, 4 * GIB, 100);
	int status;

	rig_cards(1, 8 * GIB);
	rig_write(&grant);
	if (fork() == 0) {
		rig_context(0);
		allocate(512 * MIB);
		_exit(0); /* without a word to anybody */
	}
	wait(&status);
	CHECK_EQUAL(status, 0);
	rig_context(0);
	allocate(GIB);
	CHECK_EQUAL(rig_free(), 3 * GIB);
	CHECK_EQUAL(rig_charged(0), GIB);
}

static void what_an_ended_process_held_is_not_shown_to_one_that_only_looks(void)
{
	int status;

	(void)rig_one(GIB, 100);
	rig_context(0);
	if (fork() == 0) {
		rig_context(0);
		allocate(512 * MIB);
		_exit(0);
	}
	wait(&status);
	CHECK_EQUAL(status, 0);
	CHECK_EQUAL(rig_free(), GIB);
}

static void a_killed_process_makes_room_when_it_is_needed(void)
{
	CUdeviceptr a;
	int ready[2];
	pid_t child;
	char byte;

	(void)rig_one(GIB, 100);
	CHECK(pipe(ready) == 0);
	child = fork();
	if (child == 0) {
		rig_context(0);
		allocate(900 * MIB);
		CHECK(write(ready[1], "x", 1) == 1);
		pause();
	}
	CHECK(read(ready[0], &byte, 1) == 1);
	rig_context(0);
	CHECK_EQUAL(cuMemAlloc_v2(&a, 200 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
	kill(child, SIGKILL);
	waitpid(child, NULL, 0);
	CHECK_EQUAL(cuMemAlloc_v2(&a, GIB), CUDA_SUCCESS);
}

static void memory_of_another_process_is_charged_to_its_owner(void)
{
	CUdeviceptr owned, opened, own;
	CUipcMemHandle handle;
	int status;

	(void)rig_one(GIB, 100);
	rig_context(0);
	CHECK_EQUAL(cuMemAlloc_v2(&owned, 600 * MIB), CUDA_SUCCESS);
	CHECK_EQUAL(cuIpcGetMemHandle(&handle, owned), CUDA_SUCCESS);
	if (fork() == 0) {
		rig_context(0);
		CHECK_EQUAL(cuIpcOpenMemHandle_v2(&opened, handle, 1), CUDA_SUCCESS);
		CHECK_EQUAL(rig_charged(0), 600 * MIB);
		CHECK_EQUAL(cuMemAlloc_v2(&own, 424 * MIB), CUDA_SUCCESS);
		CHECK_EQUAL(cuMemFree_v2(opened), CUDA_ERROR_INVALID_VALUE); /* the driver's answer */
		CHECK_EQUAL(cuIpcCloseMemHandle(opened), CUDA_SUCCESS);
		CHECK_EQUAL(rig_charged(0), GIB);
		_exit(0);
	}
	wait(&status);
	CHECK_EQUAL(status, 0);
	CHECK_EQUAL(cuMemFree_v2(owned), CUDA_SUCCESS);
	CHECK_EQUAL(rig_free(), GIB);
}

static void a_forked_child_begins_with_nothing(void)
{
	int status;

	(void)rig_one(GIB, 100);
	rig_context(0);
	allocate(600 * MIB);
	if (fork() == 0) {
		CUdeviceptr a;

		rig_context(0);
		CHECK_EQUAL(
			cuMemAlloc_v2(&a, 500 * MIB), CUDA_ERROR_OUT_OF_MEMORY); /* its parent's memory still counts */
		CHECK_EQUAL(cuMemAlloc_v2(&a, 400 * MIB), CUDA_SUCCESS);
		CHECK_EQUAL(rig_charged(0), 1000 * MIB);
		_exit(0);
	}
	wait(&status);
	CHECK_EQUAL(status, 0);
	CHECK_EQUAL(rig_free() + rig_charged(0), GIB);
}

static void a_child_of_a_bare_clone_begins_with_nothing_too(void)
{
	int status;
	pid_t child;

	(void)rig_one(GIB, 100);
	rig_context(0);
	allocate(600 * MIB);
	child = (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0); /* no handler of libc runs */
	if (child == 0) {
		CUdeviceptr a;

		if (cuMemAlloc_v2(&a, 500 * MIB) != CUDA_ERROR_OUT_OF_MEMORY ||
			cuMemAlloc_v2(&a, 400 * MIB) != CUDA_SUCCESS)
			_exit(1);
		_exit(rig_charged(0) == 1000 * MIB ? 0 : 2);
	}
	waitpid(child, &status, 0);
	CHECK_EQUAL(status, 0);
}

static void what_was_held_before_exec_is_free_after_it(void)
{
	char command[PATH_MAX + 64];
	int status;

	(void)rig_one(GIB, 100);
	if (fork() == 0) {
		rig_context(0);
		allocate(900 * MIB);
		snprintf(command, sizeof(command), "%s/vgpu-alloc", getenv("VGPU_BUILD"));
		execl(command, "vgpu-alloc", "--mib", "800", NULL);
		_exit(9);
	}
	wait(&status);
	CHECK_EQUAL(status, 0);
}

static void a_program_without_cuda_after_exec_holds_nothing(void)
{
	int ready[2], status;
	CUdeviceptr a;
	pid_t child;
	char byte;

	(void)rig_one(GIB, 100);
	CHECK(pipe2(ready, O_CLOEXEC) == 0);
	child = fork();
	if (child == 0) {
		rig_context(0);
		allocate(900 * MIB);
		execl("/bin/sleep", "sleep", "60", NULL); /* the pipe closes */
		_exit(9);
	}
	close(ready[1]);
	CHECK(read(ready[0], &byte, 1) == 0);
	rig_context(0);
	CHECK_EQUAL(cuMemAlloc_v2(&a, GIB), CUDA_SUCCESS);
	kill(child, SIGKILL);
	waitpid(child, &status, 0);
}

enum { THREADS = 8, PER_THREAD = 3000 };

static void *allocate_and_free(void *seed_pointer)
{
	unsigned seed = *(unsigned *)seed_pointer;
	CUcontext context;

	CHECK_EQUAL(cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
	CHECK_EQUAL(cuCtxSetCurrent(context), CUDA_SUCCESS);
	for (int i = 0; i < PER_THREAD; i++) {
		CUdeviceptr a;

		if (cuMemAlloc_v2(&a, 1 + (unsigned)rand_r(&seed) % (200 * MIB)) == CUDA_SUCCESS)
			CHECK_EQUAL(cuMemFree_v2(a), CUDA_SUCCESS);
	}
	return NULL;
}

static void threads_leave_an_exact_count(void)
{
	pthread_t threads[THREADS];
	unsigned seeds[THREADS];

	(void)rig_one(GIB, 100);
	rig_context(0);
	for (unsigned i = 0; i < THREADS; i++) {
		seeds[i] = i + 1;
		CHECK(pthread_create(&threads[i], NULL, allocate_and_free, &seeds[i]) == 0);
	}
	for (unsigned i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	CHECK_EQUAL(rig_charged(0), 0);
	CHECK_EQUAL(fakeUsedBytes(0), 0);
}

enum { MAPPING_ROUNDS = 3000 };

static struct {
	pthread_barrier_t barrier;
	CUmemGenericAllocationHandle handle;
	CUdeviceptr at;
	bool mapped;
} shared_block;

/* In every round, map the block that the other thread is releasing, if there still is one. */
static void *map_what_is_released(void *unused)
{
	rig_context(0);
	for (int i = 0; i < MAPPING_ROUNDS; i++) {
		pthread_barrier_wait(&shared_block.barrier);
		shared_block.mapped = cuMemMap(shared_block.at, 2 * MIB, 0, shared_block.handle, 0) == CUDA_SUCCESS;
		pthread_barrier_wait(&shared_block.barrier);
	}
	return unused;
}

static void a_block_that_is_mapped_while_it_is_released_stays_charged(void)
{
	const CUmemAllocationProp prop = {
		.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};
	pthread_t thread;

	(void)rig_one(GIB, 100);
	rig_context(0);
	CHECK_EQUAL(cuMemAddressReserve(&shared_block.at, 2 * MIB, 0, 0, 0), CUDA_SUCCESS);
	CHECK_EQUAL(pthread_barrier_init(&shared_block.barrier, NULL, 2), 0);
	CHECK_EQUAL(pthread_create(&thread, NULL, map_what_is_released, NULL), 0);
	for (int i = 0; i < MAPPING_ROUNDS; i++) {
		CHECK_EQUAL(cuMemCreate(&shared_block.handle, 2 * MIB, &prop, 0), CUDA_SUCCESS);
		pthread_barrier_wait(&shared_block.barrier);
		CHECK_EQUAL(cuMemRelease(shared_block.handle), CUDA_SUCCESS);
		pthread_barrier_wait(&shared_block.barrier);
		CHECK_EQUAL(rig_charged(0), fakeUsedBytes(0));
		CHECK_EQUAL(rig_charged(0), shared_block.mapped ? 2 * MIB : 0);
		if (shared_block.mapped)
			CHECK_EQUAL(cuMemUnmap(shared_block.at, 2 * MIB), CUDA_SUCCESS);
		CHECK_EQUAL(rig_charged(0), 0);
	}
	CHECK_EQUAL(pthread_join(thread, NULL), 0);
}

enum { POOL_ROUNDS = 1000, POOL_THREADS = 3 };

static pthread_barrier_t pool_barrier;
static _Atomic int pool_winners;

static void fill_the_pool(void)
{
	CUdeviceptr a;

	CHECK_EQUAL(cuMemAllocAsync(&a, GIB, NULL), CUDA_SUCCESS);
	CHECK_EQUAL(cuMemFreeAsync(a, NULL), CUDA_SUCCESS);
	CHECK_EQUAL(fakeUsedBytes(0), GIB);
}

static void *take_from_the_pool(void *unused)
{
	rig_context(0);
	for (int i = 0; i < POOL_ROUNDS; i++) {
		CUdeviceptr a = 0;

		if (pthread_barrier_wait(&pool_barrier) == PTHREAD_BARRIER_SERIAL_THREAD)
			fill_the_pool();
		pthread_barrier_wait(&pool_barrier);
		if (cuMemAllocAsync(&a, 600 * MIB, NULL) == CUDA_SUCCESS)
			atomic_fetch_add(&pool_winners, 1);
		pthread_barrier_wait(&pool_barrier);
		CHECK_EQUAL(atomic_load(&pool_winners), i + 1);
		CHECK(fakeUsedBytes(0) <= GIB);
		pthread_barrier_wait(&pool_barrier);
		if (a != 0)
			CHECK_EQUAL(cuMemFreeAsync(a, NULL), CUDA_SUCCESS);
	}
	return unused;
}

/* A pool that keeps all that the share has: what is free of it is promised once. */
static void threads_that_race_for_what_a_pool_has_free_do_not_make_it_grow(void)
{
	pthread_t threads[POOL_THREADS];
	cuuint64_t threshold = GIB;
	CUmemoryPool pool;

	(void)rig_one(GIB, 100);
	rig_context(0);
	CHECK_EQUAL(cuDeviceGetDefaultMemPool(&pool, 0), CUDA_SUCCESS);
	CHECK_EQUAL(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold), CUDA_SUCCESS);
	CHECK_EQUAL(pthread_barrier_init(&pool_barrier, NULL, POOL_THREADS), 0);
	for (int i = 0; i < POOL_THREADS; i++)
		CHECK_EQUAL(pthread_create(&threads[i], NULL, take_from_the_pool, NULL), 0);
	for (int i = 0; i < POOL_THREADS; i++)
		CHECK_EQUAL(pthread_join(threads[i], NULL), 0);
	CHECK_EQUAL(rig_charged(0), fakeUsedBytes(0));
}

static void *sleep_a_minute(void *unused)
{
	sleep(60);
	return unused;
}

static void a_zombie_with_living_threads_is_alive(void)
{
	int ready[2];
	CUdeviceptr a;
	pid_t child;
	char byte;

	(void)rig_one(GIB, 100);
	CHECK(pipe(ready) == 0);
	child = fork();
	if (child == 0) {
		pthread_t thread;

		rig_context(0);
		allocate(900 * MIB);
		CHECK(pthread_create(&thread, NULL, sleep_a_minute, NULL) == 0);
		CHECK(write(ready[1], "x", 1) == 1);
		syscall(SYS_exit, 0); /* this thread alone */
	}
	CHECK(read(ready[0], &byte, 1) == 1);
	usleep(20000);
	rig_context(0);
	CHECK_EQUAL(cuMemAlloc_v2(&a, 200 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
	kill(child, SIGKILL);
	waitpid(child, NULL, 0);
	CHECK_EQUAL(cuMemAlloc_v2(&a, 200 * MIB), CUDA_SUCCESS);
}

static void closing_every_descriptor_changes_nothing(void)
{
	CUdeviceptr a;

	(void)rig_one(GIB, 100);
	rig_context(0);
	for (int fd = 3; fd < 1024; fd++)
		close(fd);
	CHECK_EQUAL(cuMemAlloc_v2(&a, 600 * MIB), CUDA_SUCCESS);
	CHECK_EQUAL(cuMemAlloc_v2(&a, 600 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
}

static void no_descriptor_and_no_signal_handler_but_for_bus_errors_is_left(void)
{
	char link[PATH_MAX], path[64];
	struct sigaction before[32], after;

	memset(before, 0, sizeof(before));
	for (int number = 1; number < 32; number++)
		(void)sigaction(number, NULL, &before[number]);
	(void)rig_one(GIB, 100);
	rig_context(0);
	allocate(MIB);
	for (int fd = 3; fd < 64; fd++) {
		ssize_t length;

		snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
		length = readlink(path, link, sizeof(link) - 1);
		link[length > 0 ? length : 0] = '\0';
		CHECK(strstr(link, "/region") == NULL && strstr(link, "/grant") == NULL);
	}
	for (int number = 1; number < 32; number++)
		if (number != SIGBUS && sigaction(number, NULL, &after) == 0)
			CHECK(after.sa_handler == before[number].sa_handler);
}

enum { RACE_ROUNDS = 1000 };

static void of_two_processes_that_race_for_the_last_bytes_one_wins(void)
{
	struct grant grant = rig_grant(1, 1000 * MIB, 100);
	_Atomic int *shared = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	_Atomic int *arrived = shared, *won = shared + 16;

	rig_cards(1, 8 * GIB);
	rig_write(&grant);
	for (int racer = 0; racer < 2; racer++) {
		if (fork() != 0)
			continue;
		rig_context(0);
		for (int round = 0; round < RACE_ROUNDS; round++) {
			CUdeviceptr a;
			CUresult result;

			atomic_fetch_add(arrived, 1);
			while (atomic_load(arrived) < 4 * round + 2)
				sched_yield();
			result = cuMemAlloc_v2(&a, 600 * MIB);
			CHECK(result == CUDA_SUCCESS || result == CUDA_ERROR_OUT_OF_MEMORY);
			atomic_fetch_add(&won[round], result == CUDA_SUCCESS);
			atomic_fetch_add(arrived, 1);
			while (atomic_load(arrived) < 4 * round + 4)
				sched_yield();
			if (result == CUDA_SUCCESS)
				CHECK_EQUAL(cuMemFree_v2(a), CUDA_SUCCESS);
		}
		_exit(0);
	}
	for (int status; wait(&status) > 0;)
		CHECK_EQUAL(status, 0);
	for (int round = 0; round < RACE_ROUNDS; round++)
		CHECK_EQUAL(atomic_load(&won[round]), 1);
}

static void the_out_of_memory_killer_takes_the_largest(void)
{
	struct grant grant = rig_grant(1, GIB, 100);
	int ready[2], status;
	CUdeviceptr a;
	pid_t child;
	char byte;

	rig_cards(1, 8 * GIB);
	grant.flags = GRANT_OOM_KILLER;
	rig_write(&grant);
	CHECK(pipe(ready) == 0);
	child = fork();
	if (child == 0) {
		rig_context(0);
		allocate(700 * MIB);
		CHECK(write(ready[1], "x", 1) == 1);
		pause();
	}
	CHECK(read(ready[0], &byte, 1) == 1);
	rig_context(0);
	CHECK_EQUAL(
		cuMemAlloc_v2(&a, 2 * GIB), CUDA_ERROR_OUT_OF_MEMORY); /* would not fit into an empty share either */
	CHECK_EQUAL(waitpid(child, &status, WNOHANG), 0);
	CHECK_EQUAL(cuMemAlloc_v2(&a, 500 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
	CHECK_EQUAL(waitpid(child, &status, 0), child);
	CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
	CHECK_EQUAL(cuMemAlloc_v2(&a, 500 * MIB), CUDA_SUCCESS);
}

int main(int argc, char **argv)
{
	static const struct test tests[] = {
		TEST(what_an_ended_process_held_is_free),
		TEST(what_an_ended_process_held_is_not_shown_to_one_that_only_looks),
		TEST(a_killed_process_makes_room_when_it_is_needed),
		TEST(memory_of_another_process_is_charged_to_its_owner),
		TEST(a_forked_child_begins_with_nothing),
		TEST(a_child_of_a_bare_clone_begins_with_nothing_too),
		TEST(what_was_held_before_exec_is_free_after_it),
		TEST(a_program_without_cuda_after_exec_holds_nothing),
		TEST(threads_leave_an_exact_count),
		TEST(a_block_that_is_mapped_while_it_is_released_stays_charged),
		TEST(threads_that_race_for_what_a_pool_has_free_do_not_make_it_grow),
		TEST(a_zombie_with_living_threads_is_alive),
		TEST(closing_every_descriptor_changes_nothing),
		TEST(no_descriptor_and_no_signal_handler_but_for_bus_errors_is_left),
		TEST(of_two_processes_that_race_for_the_last_bytes_one_wins),
		TEST(the_out_of_memory_killer_takes_the_largest),
	};
	return RUN_TESTS(tests, argc, argv);
}
