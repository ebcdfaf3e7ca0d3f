/* Memory in the order of a stream: a pool is charged what it holds, on the device that it is of. */
#include "rig.h"

static void a_pool_is_charged_what_it_holds(void)
{
	CUdeviceptr a, b, c;

	rig_begin(GIB);
	CHECK_EQUAL(cuMemAllocAsync(&a, 100, NULL), CUDA_SUCCESS);
	rig_exact(2 * MIB);
	CHECK_EQUAL(cuMemAllocAsync_ptsz(&b, MIB, NULL), CUDA_SUCCESS); /* fits into what the pool has */
	rig_exact(2 * MIB);
	CHECK_EQUAL(cuMemAllocAsync(&c, 2 * GIB, NULL), CUDA_ERROR_OUT_OF_MEMORY);
	CHECK_EQUAL(cuMemFreeAsync(a, NULL), CUDA_SUCCESS);
	CHECK_EQUAL(cuMemFree_v2(b), CUDA_SUCCESS); /* either free takes it */
	rig_exact(2 * MIB);
	CHECK_EQUAL(cuStreamSynchronize(NULL), CUDA_SUCCESS); /* the pool gives back now */
	CHECK_EQUAL(rig_free(), GIB);
	rig_exact(0);
}

static void what_a_pool_gave_back_is_room_for_others(void)
{
	CUdeviceptr a, b;

	rig_begin(GIB);
	CHECK_EQUAL(cuMemAllocAsync(&a, GIB, NULL), CUDA_SUCCESS);
	CHECK_EQUAL(cuMemAlloc_v2(&b, 1), CUDA_ERROR_OUT_OF_MEMORY);
	CHECK_EQUAL(cuMemFreeAsync_ptsz(a, NULL), CUDA_SUCCESS);
	CHECK_EQUAL(cuStreamSynchronize(NULL), CUDA_SUCCESS);
	CHECK_EQUAL(cuMemAlloc_v2(&b, GIB), CUDA_SUCCESS);
	rig_exact(GIB);
}

static void a_destroyed_pool_is_charged_until_it_is_empty(void)
{
	const CUmemPoolProps props = {
		.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};
	CUmemoryPool pool;
	CUdeviceptr a, b;

	rig_begin(GIB);
	CHECK_EQUAL(cuMemPoolCreate(&pool, &props), CUDA_SUCCESS);
	CHECK_EQUAL(cuMemAllocFromPoolAsync(&a, 512 * MIB, pool, NULL), CUDA_SUCCESS);
	CHECK_EQUAL(cuMemAllocFromPoolAsync_ptsz(&b, 256 * MIB, pool, NULL), CUDA_SUCCESS);
	rig_exact(768 * MIB);
	CHECK_EQUAL(cuMemPoolDestroy(pool), CUDA_SUCCESS);
	rig_exact(768 * MIB);
	CHECK_EQUAL(cuMemFreeAsync(a, NULL), CUDA_SUCCESS);
	rig_exact(256 * MIB);
	CHECK_EQUAL(cuMemFreeAsync(b, NULL), CUDA_SUCCESS);
	rig_exact(0);
}

static void a_pool_with_a_threshold_stays_charged_until_it_is_trimmed(void)
{
	cuuint64_t threshold = GIB;
	CUmemoryPool pool;
	CUdeviceptr a;

	rig_begin(GIB);
	CHECK_EQUAL(cuDeviceGetDefaultMemPool(&pool, 0), CUDA_SUCCESS);
	CHECK_EQUAL(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold), CUDA_SUCCESS);
	CHECK_EQUAL(cuMemAllocAsync(&a, 512 * MIB, NULL), CUDA_SUCCESS);
	CHECK_EQUAL(cuMemFreeAsync(a, NULL), CUDA_SUCCESS);
	CHECK_EQUAL(cuStreamSynchronize(NULL), CUDA_SUCCESS);
	rig_exact(512 * MIB);
	CHECK_EQUAL(cuMemPoolTrimTo(pool, 0), CUDA_SUCCESS);
	rig_exact(0);
}

static void what_a_pool_keeps_and_nobody_uses_is_room(void)
{
	cuuint64_t threshold = GIB;
	CUdeviceptr a, b;
	CUmemoryPool pool;

	rig_begin(GIB);
	CHECK_EQUAL(cuDeviceGetDefaultMemPool(&pool, 0), CUDA_SUCCESS);
	CHECK_EQUAL(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold), CUDA_SUCCESS);
	CHECK_EQUAL(cuMemAllocAsync(&a, 200 * MIB, NULL), CUDA_SUCCESS);
	CHECK_EQUAL(cuMemAllocAsync(&b, 800 * MIB, NULL), CUDA_SUCCESS);
	CHECK_EQUAL(cuMemFreeAsync(b, NULL), CUDA_SUCCESS);
	rig_exact(1000 * MIB);
	CHECK_EQUAL(cuMemAlloc_v2(&b, 900 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
	CHECK_EQUAL(cuMemAlloc_v2(&b, 824 * MIB), CUDA_SUCCESS);
	rig_exact(GIB);
}

static void a_stream_takes_its_memory_from_its_own_device(void)
{
	struct grant grant = rig_grant(2, GIB, 100);
	CUstream second;
	CUdeviceptr a;

	rig_cards(2, 8 * GIB);
	rig_write(&grant);
	rig_context(1);
	CHECK_EQUAL(cuStreamCreate(&second, 0), CUDA_SUCCESS);
	rig_context(0);
	CHECK_EQUAL(cuMemAllocAsync(&a, 600 * MIB, second), CUDA_SUCCESS);
	CHECK_EQUAL(cuMemAllocAsync_ptsz(&a, 600 * MIB, second), CUDA_ERROR_OUT_OF_MEMORY);
	CHECK_EQUAL(cuMemAllocAsync(&a, 700 * MIB, NULL), CUDA_SUCCESS);
	for (int device = 0; device < 2; device++)
		CHECK_EQUAL(rig_charged(device), fakeUsedBytes(device));
	CHECK_EQUAL(rig_charged(1), 600 * MIB);
}

int main(int argc, char **argv)
{
	static const struct test tests[] = {
		TEST(a_pool_is_charged_what_it_holds),
		TEST(what_a_pool_gave_back_is_room_for_others),
		TEST(a_destroyed_pool_is_charged_until_it_is_empty),
		TEST(a_pool_with_a_threshold_stays_charged_until_it_is_trimmed),
		TEST(what_a_pool_keeps_and_nobody_uses_is_room),
		TEST(a_stream_takes_its_memory_from_its_own_device),
	};
	return RUN_TESTS(tests, argc, argv);
}
