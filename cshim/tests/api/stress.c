/* All kinds of memory at once, by threads of several processes, some of which are killed at any moment: the card never
 * has more in use than the limit, and in the end the region says what the card does. In `make test` this runs under the
 * library that looks at its invariants after every call, too. */
#define _GNU_SOURCE
#include <pthread.h>

#include "rig.h"

#define LIMIT GIB
#define SLACK (THREADS * PROCESSES * 2 * MIB) /* a pool may grow by a piece more than was reserved */

enum { PROCESSES = 3, THREADS = 3, LIVE = 24, KINDS = 8, STEPS = 1500, KILLS = 12 };

struct piece {
	int kind; /* 0: none; else kind + 1 */
	CUdeviceptr pointer;
	CUarray array;
	CUmemGenericAllocationHandle handle;
	CUmemoryPool pool;
	uint64_t bytes;
};

static unsigned chance(unsigned *seed, unsigned below)
{
	return (unsigned)rand_r(seed) % below;
}

static CUresult create_block(struct piece *piece, bool shared)
{
	const CUmemAllocationProp prop = rig_on_device(0);
	CUresult result = cuMemCreate(&piece->handle, piece->bytes, &prop, 0);
	int fd;

	if (result != CUDA_SUCCESS)
		return result;
	CHECK_EQUAL(cuMemAddressReserve(&piece->pointer, piece->bytes, 0, 0, 0), CUDA_SUCCESS);
	CHECK_EQUAL(cuMemMap(piece->pointer, piece->bytes, 0, piece->handle, 0), CUDA_SUCCESS);
	if (shared) {
		CHECK_EQUAL(
			cuMemExportToShareableHandle(&fd, piece->handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
			CUDA_SUCCESS);
		close(fd);
	}
	return cuMemRelease(piece->handle);
}

static CUresult make(struct piece *piece, unsigned *seed)
{
	const CUmemPoolProps props = {
		.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
	const int kind = (int)chance(seed, KINDS);
	CUDA_ARRAY_DESCRIPTOR array = {.Width = 512, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 4};
	CUresult result;
	size_t pitch;

	piece->bytes = (1 + chance(seed, 20)) * 2 * MIB;
	switch (kind) {
	case 0:
		result = cuMemAlloc_v2(&piece->pointer, piece->bytes - chance(seed, 4000));
		break;
	case 1:
		result = cuMemAllocPitch_v2(&piece->pointer, &pitch, 1000 + chance(seed, 3000), piece->bytes / 4096, 4);
		break;
	case 2:
		result = cuMemAllocManaged(&piece->pointer, piece->bytes, CU_MEM_ATTACH_GLOBAL);
		break;
	case 3:
		result = cuMemAllocAsync(&piece->pointer, piece->bytes, NULL);
		break;
	case 4:
		array.Height = 1 + chance(seed, 2000);
		result = cuArrayCreate_v2(&piece->array, &array);
		break;
	case 5:
	case 6:
		result = create_block(piece, kind == 6);
		break;
	default:
		result = cuMemPoolCreate(&piece->pool, &props);
		if (result != CUDA_SUCCESS)
			break;
		result = cuMemAllocFromPoolAsync(&piece->pointer, piece->bytes, piece->pool, NULL);
		CHECK_EQUAL(cuMemPoolDestroy(piece->pool), CUDA_SUCCESS); /* charged until it is empty */
		break;
	}
	piece->kind = result == CUDA_SUCCESS ? kind + 1 : 0;
	return result;
}

static void drop(struct piece *piece)
{
	if (piece->kind == 0)
		return;
	if (piece->kind == 5)
		CHECK_EQUAL(cuArrayDestroy(piece->array), CUDA_SUCCESS);
	else if (piece->kind == 6 || piece->kind == 7)
		CHECK_EQUAL(cuMemUnmap(piece->pointer, piece->bytes), CUDA_SUCCESS);
	else
		CHECK_EQUAL(piece->kind % 2 ? cuMemFree_v2(piece->pointer) : cuMemFreeAsync(piece->pointer, NULL),
			CUDA_SUCCESS);
	piece->kind = 0;
}

static void *work(void *argument)
{
	unsigned seed = (unsigned)(uintptr_t)argument * 7919u + (unsigned)getpid();
	struct piece pieces[LIVE] = {0};
	CUcontext context;

	CHECK_EQUAL(cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
	CHECK_EQUAL(cuCtxSetCurrent(context), CUDA_SUCCESS);
	for (int step = 0; step < STEPS; step++) {
		struct piece *piece = &pieces[chance(&seed, LIVE)];
		CUresult result;

		if (piece->kind != 0) {
			drop(piece);
			continue;
		}
		result = make(piece, &seed);
		CHECK(result == CUDA_SUCCESS || result == CUDA_ERROR_OUT_OF_MEMORY);
		if (step % 100 == 0)
			CHECK_EQUAL(cuStreamSynchronize(NULL), CUDA_SUCCESS);
	}
	for (int i = 0; i < LIVE; i++)
		drop(&pieces[i]);
	return NULL;
}

static void run_a_process(void)
{
	pthread_t threads[THREADS];
	CUmemoryPool pool;

	rig_context(0);
	for (uintptr_t i = 0; i < THREADS; i++)
		CHECK_EQUAL(pthread_create(&threads[i], NULL, work, (void *)(i + 1)), 0);
	for (int i = 0; i < THREADS; i++)
		CHECK_EQUAL(pthread_join(threads[i], NULL), 0);
	CHECK_EQUAL(cuDeviceGetMemPool(&pool, 0), CUDA_SUCCESS);
	CHECK_EQUAL(cuMemPoolTrimTo(pool, 0), CUDA_SUCCESS);
	CHECK_EQUAL(fakeOwnBytes(0), 0);
}

static void memory_of_all_kinds_stays_within_the_limit(void)
{
	pid_t children[PROCESSES];
	unsigned seed = 1;
	CUdeviceptr a;
	int status;

	(void)rig_one(LIMIT, 100);
	for (int i = 0; i < PROCESSES; i++)
		if ((children[i] = fork()) == 0) {
			run_a_process();
			_exit(0);
		}
	for (int kill_number = 0; kill_number < KILLS; kill_number++) {
		const pid_t victim = fork();

		if (victim == 0) {
			for (;;)
				run_a_process();
		}
		for (int look = 0; look < 10; look++) {
			CHECK(fakeUsedBytes(0) <= LIMIT + SLACK);
			usleep(500 + chance(&seed, 2000));
		}
		kill(victim, SIGKILL);
		waitpid(victim, &status, 0);
	}
	for (int i = 0; i < PROCESSES; i++) {
		waitpid(children[i], &status, 0);
		CHECK_EQUAL(status, 0);
	}
	rig_context(0);
	CHECK_EQUAL(cuMemAlloc_v2(&a, LIMIT), CUDA_SUCCESS);
	rig_exact(LIMIT);
}

int main(int argc, char **argv)
{
	static const struct test tests[] = {
		TEST(memory_of_all_kinds_stays_within_the_limit),
	};
	return RUN_TESTS(tests, argc, argv);
}
