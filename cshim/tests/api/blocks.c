/* Memory without an address: charged from its making until its last handle and its last mapping are gone. */
#include "rig.h"

static void unmapped_blocks_live_until_handle_and_mappings_are_gone(void)
{
	const CUmemAllocationProp prop = rig_on_device(0);
	CUmemGenericAllocationHandle first, second;
	CUdeviceptr at;

	rig_begin(GIB);
	CHECK_EQUAL(cuMemAddressReserve(&at, GIB, 0, 0, 0), CUDA_SUCCESS);
	CHECK_EQUAL(cuMemCreate(&first, 600 * MIB, &prop, 0), CUDA_SUCCESS);
	CHECK_EQUAL(cuMemMap(at, 600 * MIB, 0, first, 0), CUDA_SUCCESS);
	CHECK_EQUAL(cuMemRelease(first), CUDA_SUCCESS);
	rig_exact(600 * MIB); /* mapped still */
	CHECK_EQUAL(cuMemCreate(&second, 424 * MIB, &prop, 0), CUDA_SUCCESS);
	CHECK_EQUAL(second, first); /* the driver uses the value again */
	CHECK_EQUAL(cuMemCreate(&first, 2 * MIB, &prop, 0), CUDA_ERROR_OUT_OF_MEMORY);
	CHECK_EQUAL(cuMemUnmap(at, 600 * MIB), CUDA_SUCCESS);
	rig_exact(424 * MIB);
	CHECK_EQUAL(cuMemRelease(second), CUDA_SUCCESS);
	rig_exact(0);
}

static void a_retained_handle_keeps_its_block(void)
{
	const CUmemAllocationProp prop = rig_on_device(0);
	CUmemGenericAllocationHandle handle, again;
	CUdeviceptr at;

	rig_begin(GIB);
	CHECK_EQUAL(cuMemAddressReserve(&at, GIB, 0, 0, 0), CUDA_SUCCESS);
	CHECK_EQUAL(cuMemCreate(&handle, 64 * MIB, &prop, 0), CUDA_SUCCESS);
	CHECK_EQUAL(cuMemMap(at, 64 * MIB, 0, handle, 0), CUDA_SUCCESS);
	CHECK_EQUAL(cuMemRetainAllocationHandle(&again, (void *)(uintptr_t)(at + MIB)), CUDA_SUCCESS);
	CHECK_EQUAL(cuMemUnmap(at, 64 * MIB), CUDA_SUCCESS);
	CHECK_EQUAL(cuMemRelease(handle), CUDA_SUCCESS);
	rig_exact(64 * MIB);
	CHECK_EQUAL(cuMemRelease(again), CUDA_SUCCESS);
	rig_exact(0);
}

static void memory_of_the_host_is_not_charged(void)
{
	CUmemAllocationProp prop = rig_on_device(0);
	CUmemGenericAllocationHandle handle;

	rig_begin(GIB);
	prop.location = (CUmemLocation){.type = CU_MEM_LOCATION_TYPE_HOST};
	CHECK_EQUAL(cuMemCreate(&handle, 4 * GIB, &prop, 0), CUDA_SUCCESS);
	rig_exact(0);
	CHECK_EQUAL(cuMemRelease(handle), CUDA_SUCCESS);
}

int main(int argc, char **argv)
{
	static const struct test tests[] = {
		TEST(unmapped_blocks_live_until_handle_and_mappings_are_gone),
		TEST(a_retained_handle_keeps_its_block),
		TEST(memory_of_the_host_is_not_charged),
	};
	return RUN_TESTS(tests, argc, argv);
}
