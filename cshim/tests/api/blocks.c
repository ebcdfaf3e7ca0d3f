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

static void a_part_of_the_card_is_charged_and_an_unknown_place_refused(void)
{
	CUmemAllocationProp prop = rig_on_device(0);
	CUmemGenericAllocationHandle handle;

	rig_begin(GIB);
	prop.location = (CUmemLocation){.type = CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN};
	CHECK_EQUAL(cuMemCreate(&handle, 6 * GIB, &prop, 0), CUDA_ERROR_OUT_OF_MEMORY);
	CHECK_EQUAL(cuMemCreate(&handle, 600 * MIB, &prop, 0), CUDA_SUCCESS);
	rig_exact(600 * MIB);
	prop.location.type = (CUmemLocationType)77; /* a kind that only a newer driver knows */
	CHECK_EQUAL(cuMemCreate(&handle, 2 * MIB, &prop, 0), CUDA_ERROR_OUT_OF_MEMORY);
	rig_exact(600 * MIB);
	for (int type = CU_MEM_LOCATION_TYPE_HOST; type <= CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT; type++) {
		prop.location.type = (CUmemLocationType)type;
		CHECK_EQUAL(cuMemCreate(&handle, 4 * GIB, &prop, 0), CUDA_SUCCESS);
	}
	rig_exact(600 * MIB);
}

/* Memory of the card, of the host, and of the card in one range that is unmapped at once. */
static void uncharged_mappings_leave_no_charge_behind(void)
{
	CUmemAllocationProp card = rig_on_device(0), host = rig_on_device(0);
	CUmemGenericAllocationHandle handles[3];
	CUdeviceptr at;

	rig_begin(GIB);
	host.location.type = CU_MEM_LOCATION_TYPE_HOST;
	CHECK_EQUAL(cuMemAddressReserve(&at, 192 * MIB, 0, 0, 0), CUDA_SUCCESS);
	for (int i = 0; i < 3; i++) {
		CHECK_EQUAL(cuMemCreate(&handles[i], 64 * MIB, i == 1 ? &host : &card, 0), CUDA_SUCCESS);
		CHECK_EQUAL(cuMemMap(at + (unsigned)i * 64 * MIB, 64 * MIB, 0, handles[i], 0), CUDA_SUCCESS);
		CHECK_EQUAL(cuMemRelease(handles[i]), CUDA_SUCCESS);
	}
	rig_exact(128 * MIB);
	CHECK_EQUAL(cuMemUnmap(at, 192 * MIB), CUDA_SUCCESS);
	rig_exact(0);
}

static void exported_memory_is_charged_while_it_lives(void)
{
	const CUmemAllocationProp prop = rig_on_device(0);
	CUmemGenericAllocationHandle handle, again;
	CUdeviceptr at;
	int fd;

	rig_begin(GIB);
	CHECK_EQUAL(cuMemAddressReserve(&at, 900 * MIB, 0, 0, 0), CUDA_SUCCESS);
	CHECK_EQUAL(cuMemCreate(&handle, 900 * MIB, &prop, 0), CUDA_SUCCESS);
	CHECK_EQUAL(
		cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0), CUDA_SUCCESS);
	CHECK_EQUAL(cuMemRelease(handle), CUDA_SUCCESS);
	rig_exact(900 * MIB); /* the descriptor keeps it */
	CHECK_EQUAL(
		cuMemImportFromShareableHandle(&again, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
		CUDA_SUCCESS);
	CHECK_EQUAL(cuMemMap(at, 900 * MIB, 0, again, 0), CUDA_SUCCESS);
	close(fd);
	CHECK_EQUAL(cuMemRelease(again), CUDA_SUCCESS);
	rig_exact(900 * MIB); /* the mapping keeps it */
	CHECK_EQUAL(cuMemCreate(&handle, 200 * MIB, &prop, 0), CUDA_ERROR_OUT_OF_MEMORY);
	CHECK_EQUAL(cuMemUnmap(at, 900 * MIB), CUDA_SUCCESS);
	rig_exact(0); /* as the device shows */
	CHECK_EQUAL(cuMemCreate(&handle, GIB, &prop, 0), CUDA_SUCCESS);
	rig_exact(GIB);
}

static void exported_memory_that_is_released_is_given_back(void)
{
	const CUmemAllocationProp prop = rig_on_device(0);
	CUmemGenericAllocationHandle handles[2];
	int fd;

	rig_begin(GIB);
	for (int i = 0; i < 2; i++) {
		CHECK_EQUAL(cuMemCreate(&handles[i], 500 * MIB, &prop, 0), CUDA_SUCCESS);
		CHECK_EQUAL(cuMemExportToShareableHandle(&fd, handles[i], CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
			CUDA_SUCCESS);
		close(fd);
	}
	for (int i = 0; i < 2; i++) {
		CHECK_EQUAL(cuMemRelease(handles[i]), CUDA_SUCCESS);
		rig_exact((unsigned)(1 - i) * 500 * MIB);
	}
	CHECK_EQUAL(cuMemCreate(&handles[0], 300 * MIB, &prop, 0), CUDA_SUCCESS);
	CHECK_EQUAL(cuMemRelease(handles[0]), CUDA_SUCCESS);
	rig_exact(0);
}

static void what_another_process_imports_stays_charged(void)
{
	const CUmemAllocationProp prop = rig_on_device(0);
	CUmemGenericAllocationHandle handle;
	int fd, go[2], done[2];
	char byte = 0;

	CHECK(pipe(go) == 0 && pipe(done) == 0);
	rig_begin(GIB);
	CHECK_EQUAL(cuMemCreate(&handle, 900 * MIB, &prop, 0), CUDA_SUCCESS);
	CHECK_EQUAL(
		cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0), CUDA_SUCCESS);
	if (fork() == 0) {
		CUmemGenericAllocationHandle imported;

		rig_context(0);
		CHECK_EQUAL(cuMemImportFromShareableHandle(
				    &imported, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
			CUDA_SUCCESS);
		close(fd);
		CHECK(write(done[1], &byte, 1) == 1 && read(go[0], &byte, 1) == 1);
		CHECK_EQUAL(cuMemRelease(imported), CUDA_SUCCESS);
		_exit(0);
	}
	CHECK(read(done[0], &byte, 1) == 1);
	close(fd);
	CHECK_EQUAL(cuMemRelease(handle), CUDA_SUCCESS);
	rig_exact(900 * MIB);
	CHECK_EQUAL(cuMemCreate(&handle, 200 * MIB, &prop, 0), CUDA_ERROR_OUT_OF_MEMORY);
	CHECK(write(go[1], &byte, 1) == 1);
	wait(NULL);
}

static CUarrayMapInfo place(
	CUarray array, unsigned level, CUmemOperationType operation, CUmemGenericAllocationHandle handle)
{
	return (CUarrayMapInfo){.resourceType = CU_RESOURCE_TYPE_ARRAY,
		.resource.array = array,
		.subresource.sparseLevel = {.level = level, .extentWidth = 64, .extentHeight = 64},
		.memOperationType = operation,
		.memHandle.memHandle = handle};
}

static void what_is_mapped_into_an_array_is_charged(void)
{
	const CUDA_ARRAY3D_DESCRIPTOR desc = {.Width = 8192,
		.Height = 8192,
		.Format = CU_AD_FORMAT_FLOAT,
		.NumChannels = 4,
		.Flags = CUDA_ARRAY3D_SPARSE};
	const CUmemAllocationProp prop = rig_on_device(0);
	CUmemGenericAllocationHandle first, second;
	CUarrayMapInfo info;
	CUarray array;

	rig_begin(GIB);
	CHECK_EQUAL(cuArray3DCreate_v2(&array, &desc), CUDA_SUCCESS);
	rig_exact(0);
	CHECK_EQUAL(cuMemCreate(&first, 400 * MIB, &prop, 0), CUDA_SUCCESS);
	CHECK_EQUAL(cuMemCreate(&second, 300 * MIB, &prop, 0), CUDA_SUCCESS);
	info = place(array, 0, CU_MEM_OPERATION_TYPE_MAP, first);
	CHECK_EQUAL(cuMemMapArrayAsync(&info, 1, NULL), CUDA_SUCCESS);
	info = place(array, 1, CU_MEM_OPERATION_TYPE_MAP, second);
	CHECK_EQUAL(cuMemMapArrayAsync_ptsz(&info, 1, NULL), CUDA_SUCCESS);
	CHECK_EQUAL(cuMemRelease(first), CUDA_SUCCESS);
	CHECK_EQUAL(cuMemRelease(second), CUDA_SUCCESS);
	rig_exact(700 * MIB);
	info = place(array, 1, CU_MEM_OPERATION_TYPE_UNMAP, 0);
	CHECK_EQUAL(cuMemMapArrayAsync(&info, 1, NULL), CUDA_SUCCESS);
	rig_exact(400 * MIB);
	CHECK_EQUAL(cuMemCreate(&second, 100 * MIB, &prop, 0), CUDA_SUCCESS);
	info = place(array, 0, CU_MEM_OPERATION_TYPE_MAP, second); /* in the place of the first */
	CHECK_EQUAL(cuMemMapArrayAsync(&info, 1, NULL), CUDA_SUCCESS);
	CHECK_EQUAL(cuMemRelease(second), CUDA_SUCCESS);
	rig_exact(100 * MIB);
	info = place(array, 0, CU_MEM_OPERATION_TYPE_MAP, 4000); /* no handle */
	CHECK_EQUAL(cuMemMapArrayAsync(&info, 1, NULL), CUDA_ERROR_INVALID_VALUE);
	rig_exact(100 * MIB);
	CHECK_EQUAL(cuArrayDestroy(array), CUDA_SUCCESS);
	rig_exact(0);
}

int main(int argc, char **argv)
{
	static const struct test tests[] = {
		TEST(unmapped_blocks_live_until_handle_and_mappings_are_gone),
		TEST(a_retained_handle_keeps_its_block),
		TEST(memory_of_the_host_is_not_charged),
		TEST(a_part_of_the_card_is_charged_and_an_unknown_place_refused),
		TEST(uncharged_mappings_leave_no_charge_behind),
		TEST(exported_memory_is_charged_while_it_lives),
		TEST(exported_memory_that_is_released_is_given_back),
		TEST(what_another_process_imports_stays_charged),
		TEST(what_is_mapped_into_an_array_is_charged),
	};
	return RUN_TESTS(tests, argc, argv);
}
