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

static void two_shares(uint64_t first, uint64_t second)
{
	struct grant grant = rig_grant(2, GIB, 100);

	rig_cards(2, 16 * GIB);
	grant.devices[0].memory_limit_bytes = grant.devices[0].started_with_bytes = first;
	grant.devices[0].flags = first == 0 ? GRANT_DEVICE_WHOLE : 0;
	grant.devices[1].memory_limit_bytes = grant.devices[1].started_with_bytes = second;
	rig_write(&grant);
	rig_context(1);
	rig_context(0);
}

static int allocations_from(CUmemoryPool pool, uint64_t bytes, int most)
{
	CUdeviceptr a;
	int count = 0;

	while (count < most && cuMemAllocFromPoolAsync(&a, bytes, pool, NULL) == CUDA_SUCCESS)
		count++;
	return count;
}

/* The stream is of another device than the pool, which that driver does or does not tell. */
static void a_pools_device_is_its_own(void)
{
	for (int old = 0; old < 2; old++)
		for (int whole = 0; whole < 2; whole++) {
			int status;

			if (fork() == 0) {
				CUmemoryPool pool, set;
				CUdeviceptr a;
				const CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
					.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 1}};

				if (old)
					setenv("FAKE_OLD_POOLS", "1", 1);
				two_shares(whole ? 0 : 4 * GIB, GIB);
				CHECK_EQUAL(cuDeviceGetDefaultMemPool(&pool, 1), CUDA_SUCCESS);
				CHECK_EQUAL(allocations_from(pool, 256 * MIB, 20), 4);
				CHECK_EQUAL(rig_charged(0), 0);
				CHECK_EQUAL(rig_charged(1), GIB);
				CHECK_EQUAL(fakeUsedBytes(1), GIB);
				CHECK_EQUAL(cuMemPoolCreate(&set, &props), CUDA_SUCCESS);
				CHECK_EQUAL(cuDeviceSetMemPool(1, set), CUDA_SUCCESS);
				CHECK_EQUAL(allocations_from(set, MIB, 1), 0);
				rig_context(1);
				CHECK_EQUAL(cuMemAllocAsync(&a, MIB, NULL), CUDA_ERROR_OUT_OF_MEMORY);
				CHECK_EQUAL(fakeUsedBytes(1), GIB);
				exit(0);
			}
			wait(&status);
			CHECK_EQUAL(status, 0);
			unlink("region");
			unlink("cards.state");
		}
}

static void a_pool_of_the_host_or_of_another_process_is_not_charged(void)
{
	CUmemLocation host = {.type = CU_MEM_LOCATION_TYPE_HOST};
	const CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = host};
	CUmemoryPool pool;
	CUdeviceptr a;

	rig_begin(GIB);
	CHECK_EQUAL(cuMemGetDefaultMemPool(&pool, &host, CU_MEM_ALLOCATION_TYPE_PINNED), CUDA_SUCCESS);
	CHECK_EQUAL(allocations_from(pool, GIB, 4), 4);
	CHECK_EQUAL(cuMemPoolCreate(&pool, &props), CUDA_SUCCESS);
	CHECK_EQUAL(allocations_from(pool, GIB, 4), 4);
	CHECK_EQUAL(cuMemPoolImportFromShareableHandle(&pool, NULL, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
		CUDA_SUCCESS);
	CHECK_EQUAL(cuMemAllocFromPoolAsync(&a, 2 * GIB, pool, NULL), CUDA_SUCCESS);
	CHECK_EQUAL(cuMemFreeAsync(a, NULL), CUDA_SUCCESS);
	rig_exact(0);
}

static void a_pool_in_a_part_of_the_card_or_an_unknown_place_is_held(void)
{
	CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
		.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN}};
	CUmemoryPool pool;

	rig_begin(GIB);
	CHECK_EQUAL(cuMemPoolCreate(&pool, &props), CUDA_SUCCESS);
	CHECK_EQUAL(allocations_from(pool, 256 * MIB, 20), 4);
	rig_exact(GIB);
	props.location.type = (CUmemLocationType)77;
	CHECK_EQUAL(cuMemPoolCreate(&pool, &props), CUDA_SUCCESS);
	CHECK_EQUAL(allocations_from(pool, MIB, 1), 0);
	rig_exact(GIB);
}

static void any_number_of_pools_is_followed(void)
{
	const CUmemPoolProps props = {
		.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
	enum { MANY = 500 };
	CUmemoryPool pools[MANY];
	cuuint64_t keep = GIB;
	CUdeviceptr a;

	rig_begin(GIB);
	for (int i = 0; i < MANY; i++)
		CHECK_EQUAL(cuMemPoolCreate(&pools[i], &props), CUDA_SUCCESS);
	for (int i = 0; i < MANY; i++) {
		CHECK_EQUAL(cuMemPoolSetAttribute(pools[i], CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep), CUDA_SUCCESS);
		CHECK_EQUAL(cuMemAllocFromPoolAsync(&a, 2 * MIB, pools[i], NULL), CUDA_SUCCESS);
		CHECK_EQUAL(cuMemFreeAsync(a, NULL), CUDA_SUCCESS);
		CHECK_EQUAL(cuStreamSynchronize(NULL), CUDA_SUCCESS);
		rig_exact((uint64_t)(i + 1) * 2 * MIB); /* kept, and charged */
	}
	CHECK_EQUAL(cuMemAlloc_v2(&a, GIB), CUDA_SUCCESS); /* before it is refused they give back */
	rig_exact(GIB);
	for (int i = 0; i < MANY; i++)
		CHECK_EQUAL(cuMemPoolDestroy(pools[i]), CUDA_SUCCESS);
	CHECK_EQUAL(cuMemFree_v2(a), CUDA_SUCCESS);
	rig_exact(0);
}

static void a_pool_that_cannot_be_asked_stays_charged(void)
{
	CUdeviceptr a, b;

	rig_begin(GIB);
	CHECK_EQUAL(cuMemAllocAsync(&a, 100 * MIB, NULL), CUDA_SUCCESS);
	fakeFail("cuMemPoolGetAttribute", CUDA_ERROR_UNKNOWN, 100);
	CHECK_EQUAL(cuMemAllocAsync(&b, 100 * MIB, NULL), CUDA_SUCCESS);
	CHECK_EQUAL(rig_charged(0), 200 * MIB);
	CHECK_EQUAL(rig_free(), GIB - 200 * MIB);
}

int main(int argc, char **argv)
{
	static const struct test tests[] = {
		TEST(a_pools_device_is_its_own),
		TEST(a_pool_of_the_host_or_of_another_process_is_not_charged),
		TEST(a_pool_in_a_part_of_the_card_or_an_unknown_place_is_held),
		TEST(any_number_of_pools_is_followed),
		TEST(a_pool_that_cannot_be_asked_stays_charged),
		TEST(a_pool_is_charged_what_it_holds),
		TEST(what_a_pool_gave_back_is_room_for_others),
		TEST(a_destroyed_pool_is_charged_until_it_is_empty),
		TEST(a_pool_with_a_threshold_stays_charged_until_it_is_trimmed),
		TEST(what_a_pool_keeps_and_nobody_uses_is_room),
		TEST(a_stream_takes_its_memory_from_its_own_device),
	};
	return RUN_TESTS(tests, argc, argv);
}
