/* Every kind of memory: counted as the card counts it, held to the limit, given back in full; and the driver's own
 * answers for everything that is not the limit's business. */
#include "rig.h"

static CUmemAllocationProp on_device(int device)
{
	return (CUmemAllocationProp){
		.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device}};
}

/* The region and the card agree. */
static void check_exact(uint64_t bytes)
{
	CHECK_EQUAL(rig_charged(0), bytes);
	CHECK_EQUAL(fakeUsedBytes(0), bytes);
}

static void begin(uint64_t limit_bytes)
{
	(void)rig_one(limit_bytes, 100);
	rig_context(0);
}

static void plain_memory_is_held_to_the_limit(void)
{
	CUdeviceptr a, b;

	begin(GIB);
	CHECK_EQUAL(cuMemAlloc_v2(&a, 600 * MIB), CUDA_SUCCESS);
	CHECK_EQUAL(cuMemAlloc_v2(&b, 425 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
	CHECK_EQUAL(cuMemAlloc_v2(&b, 424 * MIB), CUDA_SUCCESS);
	check_exact(GIB);
	CHECK_EQUAL(cuMemFree_v2(a), CUDA_SUCCESS);
	check_exact(424 * MIB);
	CHECK_EQUAL(cuMemFree_v2(b), CUDA_SUCCESS);
	check_exact(0);
}

static void the_oldest_functions_count_too(void)
{
	CUdeviceptr_v1 a, b;
	unsigned int pitch, free_bytes, total_bytes;

	begin(GIB);
	CHECK_EQUAL(cuMemAlloc(&a, 600u << 20), CUDA_SUCCESS);
	CHECK_EQUAL(cuMemAllocPitch(&b, &pitch, 500, 1024 * 1024, 4), CUDA_ERROR_OUT_OF_MEMORY);
	CHECK_EQUAL(cuMemGetInfo(&free_bytes, &total_bytes), CUDA_SUCCESS);
	CHECK_EQUAL(total_bytes, GIB);
	CHECK_EQUAL(free_bytes, 424 * MIB);
	CHECK_EQUAL(cuMemFree(a), CUDA_SUCCESS);
	check_exact(0);
}

static void pitched_memory_counts_its_padding(void)
{
	CUdeviceptr a;
	size_t pitch;

	begin(GIB);
	CHECK_EQUAL(cuMemAllocPitch_v2(&a, &pitch, 8, MIB, 8), CUDA_SUCCESS);
	check_exact(512 * MIB);
	CHECK_EQUAL(cuMemAllocPitch_v2(&a, &pitch, 8, 2 * MIB, 8), CUDA_ERROR_OUT_OF_MEMORY);
	CHECK_EQUAL(cuMemAllocPitch_v2(&a, &pitch, 8, 16, 0),
		CUDA_ERROR_INVALID_VALUE); /* the driver's answer, no division */
	check_exact(512 * MIB);
}

static void managed_memory_counts(void)
{
	CUdeviceptr a;

	begin(GIB);
	CHECK_EQUAL(cuMemAllocManaged(&a, 2 * GIB, CU_MEM_ATTACH_GLOBAL), CUDA_ERROR_OUT_OF_MEMORY);
	CHECK_EQUAL(cuMemAllocManaged(&a, GIB, CU_MEM_ATTACH_GLOBAL), CUDA_SUCCESS);
	check_exact(GIB);
	CHECK_EQUAL(cuMemFree_v2(a), CUDA_SUCCESS);
	check_exact(0);
}

static void arrays_count_what_the_driver_takes_for_them(void)
{
	const CUDA_ARRAY_DESCRIPTOR flat = {
		.Width = 1000, .Height = 1000, .Format = CU_AD_FORMAT_HALF, .NumChannels = 2};
	const CUDA_ARRAY3D_DESCRIPTOR deep = {
		.Width = 512, .Height = 512, .Depth = 512, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 1};
	const CUDA_ARRAY3D_DESCRIPTOR huge = {
		.Width = 4096, .Height = 4096, .Depth = 64, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 4};
	CUmipmappedArray mipmap;
	CUarray a, b, c;

	begin(GIB);
	CHECK_EQUAL(cuArrayCreate_v2(&a, &flat), CUDA_SUCCESS);
	check_exact(4063232); /* 4,000,000 in pieces of 64 KiB */
	CHECK_EQUAL(cuArray3DCreate_v2(&b, &deep), CUDA_SUCCESS);
	check_exact(4063232 + 512 * MIB);
	CHECK_EQUAL(cuArray3DCreate_v2(&c, &huge), CUDA_ERROR_OUT_OF_MEMORY);
	CHECK_EQUAL(cuMipmappedArrayCreate(&mipmap, &deep, 4), CUDA_ERROR_OUT_OF_MEMORY);
	CHECK_EQUAL(cuArrayDestroy(b), CUDA_SUCCESS);
	CHECK_EQUAL(cuMipmappedArrayCreate(&mipmap, &deep, 4), CUDA_SUCCESS);
	CHECK_EQUAL(rig_charged(0), fakeUsedBytes(0));
	CHECK_EQUAL(cuMipmappedArrayDestroy(mipmap), CUDA_SUCCESS);
	CHECK_EQUAL(cuArrayDestroy(a), CUDA_SUCCESS);
	check_exact(0);
}

static void the_oldest_arrays_count_too(void)
{
	const CUDA_ARRAY_DESCRIPTOR_v1 flat = {
		.Width = 16384, .Height = 16384, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 1};
	const CUDA_ARRAY3D_DESCRIPTOR_v1 deep = {
		.Width = 512, .Height = 512, .Depth = 512, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 1};
	CUarray a, b;

	begin(GIB);
	CHECK_EQUAL(cuArrayCreate(&a, &flat), CUDA_SUCCESS);
	CHECK_EQUAL(cuArray3DCreate(&b, &deep), CUDA_ERROR_OUT_OF_MEMORY);
	check_exact(GIB);
	CHECK_EQUAL(cuArrayDestroy(a), CUDA_SUCCESS);
	check_exact(0);
}

static void a_pool_is_charged_what_it_holds(void)
{
	CUdeviceptr a, b, c;

	begin(GIB);
	CHECK_EQUAL(cuMemAllocAsync(&a, 100, NULL), CUDA_SUCCESS);
	check_exact(2 * MIB);
	CHECK_EQUAL(cuMemAllocAsync_ptsz(&b, MIB, NULL), CUDA_SUCCESS); /* fits into what the pool has */
	check_exact(2 * MIB);
	CHECK_EQUAL(cuMemAllocAsync(&c, 2 * GIB, NULL), CUDA_ERROR_OUT_OF_MEMORY);
	CHECK_EQUAL(cuMemFreeAsync(a, NULL), CUDA_SUCCESS);
	CHECK_EQUAL(cuMemFree_v2(b), CUDA_SUCCESS); /* either free takes it */
	check_exact(2 * MIB);
	CHECK_EQUAL(cuStreamSynchronize(NULL), CUDA_SUCCESS); /* the pool gives back now */
	CHECK_EQUAL(rig_free(), GIB);
	check_exact(0);
}

static void what_a_pool_gave_back_is_room_for_others(void)
{
	CUdeviceptr a, b;

	begin(GIB);
	CHECK_EQUAL(cuMemAllocAsync(&a, GIB, NULL), CUDA_SUCCESS);
	CHECK_EQUAL(cuMemAlloc_v2(&b, 1), CUDA_ERROR_OUT_OF_MEMORY);
	CHECK_EQUAL(cuMemFreeAsync_ptsz(a, NULL), CUDA_SUCCESS);
	CHECK_EQUAL(cuStreamSynchronize(NULL), CUDA_SUCCESS);
	CHECK_EQUAL(cuMemAlloc_v2(&b, GIB), CUDA_SUCCESS);
	check_exact(GIB);
}

static void a_destroyed_pool_is_charged_until_it_is_empty(void)
{
	const CUmemPoolProps props = {
		.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};
	CUmemoryPool pool;
	CUdeviceptr a, b;

	begin(GIB);
	CHECK_EQUAL(cuMemPoolCreate(&pool, &props), CUDA_SUCCESS);
	CHECK_EQUAL(cuMemAllocFromPoolAsync(&a, 512 * MIB, pool, NULL), CUDA_SUCCESS);
	CHECK_EQUAL(cuMemAllocFromPoolAsync_ptsz(&b, 256 * MIB, pool, NULL), CUDA_SUCCESS);
	check_exact(768 * MIB);
	CHECK_EQUAL(cuMemPoolDestroy(pool), CUDA_SUCCESS);
	check_exact(768 * MIB);
	CHECK_EQUAL(cuMemFreeAsync(a, NULL), CUDA_SUCCESS);
	check_exact(256 * MIB);
	CHECK_EQUAL(cuMemFreeAsync(b, NULL), CUDA_SUCCESS);
	check_exact(0);
}

static void a_pool_with_a_threshold_stays_charged_until_it_is_trimmed(void)
{
	cuuint64_t threshold = GIB;
	CUmemoryPool pool;
	CUdeviceptr a;

	begin(GIB);
	CHECK_EQUAL(cuDeviceGetDefaultMemPool(&pool, 0), CUDA_SUCCESS);
	CHECK_EQUAL(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold), CUDA_SUCCESS);
	CHECK_EQUAL(cuMemAllocAsync(&a, 512 * MIB, NULL), CUDA_SUCCESS);
	CHECK_EQUAL(cuMemFreeAsync(a, NULL), CUDA_SUCCESS);
	CHECK_EQUAL(cuStreamSynchronize(NULL), CUDA_SUCCESS);
	check_exact(512 * MIB);
	CHECK_EQUAL(cuMemPoolTrimTo(pool, 0), CUDA_SUCCESS);
	check_exact(0);
}

static void what_a_pool_keeps_and_nobody_uses_is_room(void)
{
	cuuint64_t threshold = GIB;
	CUdeviceptr a, b;
	CUmemoryPool pool;

	begin(GIB);
	CHECK_EQUAL(cuDeviceGetDefaultMemPool(&pool, 0), CUDA_SUCCESS);
	CHECK_EQUAL(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold), CUDA_SUCCESS);
	CHECK_EQUAL(cuMemAllocAsync(&a, 200 * MIB, NULL), CUDA_SUCCESS);
	CHECK_EQUAL(cuMemAllocAsync(&b, 800 * MIB, NULL), CUDA_SUCCESS);
	CHECK_EQUAL(cuMemFreeAsync(b, NULL), CUDA_SUCCESS);
	check_exact(1000 * MIB);
	CHECK_EQUAL(cuMemAlloc_v2(&b, 900 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
	CHECK_EQUAL(cuMemAlloc_v2(&b, 824 * MIB), CUDA_SUCCESS);
	check_exact(GIB);
}

static void unmapped_blocks_live_until_handle_and_mappings_are_gone(void)
{
	const CUmemAllocationProp prop = on_device(0);
	CUmemGenericAllocationHandle first, second;
	CUdeviceptr at;

	begin(GIB);
	CHECK_EQUAL(cuMemAddressReserve(&at, GIB, 0, 0, 0), CUDA_SUCCESS);
	CHECK_EQUAL(cuMemCreate(&first, 600 * MIB, &prop, 0), CUDA_SUCCESS);
	CHECK_EQUAL(cuMemMap(at, 600 * MIB, 0, first, 0), CUDA_SUCCESS);
	CHECK_EQUAL(cuMemRelease(first), CUDA_SUCCESS);
	check_exact(600 * MIB); /* mapped still */
	CHECK_EQUAL(cuMemCreate(&second, 424 * MIB, &prop, 0), CUDA_SUCCESS);
	CHECK_EQUAL(second, first); /* the driver uses the value again */
	CHECK_EQUAL(cuMemCreate(&first, 2 * MIB, &prop, 0), CUDA_ERROR_OUT_OF_MEMORY);
	CHECK_EQUAL(cuMemUnmap(at, 600 * MIB), CUDA_SUCCESS);
	check_exact(424 * MIB);
	CHECK_EQUAL(cuMemRelease(second), CUDA_SUCCESS);
	check_exact(0);
}

static void a_retained_handle_keeps_its_block(void)
{
	const CUmemAllocationProp prop = on_device(0);
	CUmemGenericAllocationHandle handle, again;
	CUdeviceptr at;

	begin(GIB);
	CHECK_EQUAL(cuMemAddressReserve(&at, GIB, 0, 0, 0), CUDA_SUCCESS);
	CHECK_EQUAL(cuMemCreate(&handle, 64 * MIB, &prop, 0), CUDA_SUCCESS);
	CHECK_EQUAL(cuMemMap(at, 64 * MIB, 0, handle, 0), CUDA_SUCCESS);
	CHECK_EQUAL(cuMemRetainAllocationHandle(&again, (void *)(uintptr_t)(at + MIB)), CUDA_SUCCESS);
	CHECK_EQUAL(cuMemUnmap(at, 64 * MIB), CUDA_SUCCESS);
	CHECK_EQUAL(cuMemRelease(handle), CUDA_SUCCESS);
	check_exact(64 * MIB);
	CHECK_EQUAL(cuMemRelease(again), CUDA_SUCCESS);
	check_exact(0);
}

static void memory_of_the_host_is_not_charged(void)
{
	CUmemAllocationProp prop = on_device(0);
	CUmemGenericAllocationHandle handle;

	begin(GIB);
	prop.location = (CUmemLocation){.type = CU_MEM_LOCATION_TYPE_HOST};
	CHECK_EQUAL(cuMemCreate(&handle, 4 * GIB, &prop, 0), CUDA_SUCCESS);
	check_exact(0);
	CHECK_EQUAL(cuMemRelease(handle), CUDA_SUCCESS);
}

static void graphs_are_charged_what_the_device_keeps_for_them(void)
{
	CUDA_MEM_ALLOC_NODE_PARAMS params = {.bytesize = 600 * MIB};
	CUgraphNode node;
	CUgraphExec exec;
	CUdeviceptr a;
	CUgraph graph;

	begin(GIB);
	CHECK_EQUAL(cuGraphCreate(&graph, 0), CUDA_SUCCESS);
	CHECK_EQUAL(cuGraphAddMemAllocNode(&node, graph, NULL, 0, &params), CUDA_SUCCESS);
	CHECK_EQUAL(cuGraphInstantiateWithFlags(&exec, graph, 0), CUDA_SUCCESS);
	check_exact(0);
	CHECK_EQUAL(cuMemAlloc_v2(&a, 500 * MIB), CUDA_SUCCESS);
	CHECK_EQUAL(cuGraphLaunch(exec, NULL), CUDA_ERROR_OUT_OF_MEMORY);
	CHECK_EQUAL(cuMemFree_v2(a), CUDA_SUCCESS);
	CHECK_EQUAL(cuGraphLaunch(exec, NULL), CUDA_SUCCESS);
	CHECK_EQUAL(cuGraphLaunch_ptsz(exec, NULL), CUDA_SUCCESS); /* the same memory again */
	check_exact(600 * MIB);
	CHECK_EQUAL(cuDeviceGraphMemTrim(0), CUDA_SUCCESS);
	check_exact(0);
}

static CUgraph graph_that_allocates(uint64_t bytes, int device)
{
	CUDA_MEM_ALLOC_NODE_PARAMS params = {
		.bytesize = bytes, .poolProps.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device}};
	CUgraphNode node;
	CUgraph graph;

	CHECK_EQUAL(cuGraphCreate(&graph, 0), CUDA_SUCCESS);
	CHECK_EQUAL(cuGraphAddMemAllocNode(&node, graph, NULL, 0, &params), CUDA_SUCCESS);
	return graph;
}

static void a_graph_within_a_graph_is_charged_too(void)
{
	CUgraphNode node;
	CUgraphExec exec;
	CUgraph outer;

	begin(GIB);
	CHECK_EQUAL(cuGraphCreate(&outer, 0), CUDA_SUCCESS);
	for (int i = 0; i < 2; i++)
		CHECK_EQUAL(cuGraphAddChildGraphNode(&node, outer, NULL, 0, graph_that_allocates(400 * MIB, 0)),
			CUDA_SUCCESS);
	CHECK_EQUAL(cuGraphInstantiateWithFlags(&exec, outer, 0), CUDA_SUCCESS);
	CHECK_EQUAL(cuGraphLaunch(exec, NULL), CUDA_SUCCESS);
	check_exact(800 * MIB);
	CHECK_EQUAL(cuGraphAddChildGraphNode(&node, outer, NULL, 0, graph_that_allocates(400 * MIB, 0)), CUDA_SUCCESS);
	CHECK_EQUAL(cuGraphInstantiateWithFlags(&exec, outer, 0), CUDA_SUCCESS);
	CHECK_EQUAL(cuGraphLaunch(exec, NULL), CUDA_ERROR_OUT_OF_MEMORY);
	check_exact(800 * MIB);
}

static void a_graph_is_charged_when_it_is_uploaded(void)
{
	CUDA_GRAPH_INSTANTIATE_PARAMS at_once = {.flags = CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD};
	CUgraphExec small, large;

	begin(GIB);
	CHECK_EQUAL(cuGraphInstantiateWithFlags(&small, graph_that_allocates(600 * MIB, 0), 0), CUDA_SUCCESS);
	CHECK_EQUAL(cuGraphInstantiateWithFlags(&large, graph_that_allocates(2 * GIB, 0), 0), CUDA_SUCCESS);
	check_exact(0);
	CHECK_EQUAL(cuGraphUpload(small, NULL), CUDA_SUCCESS);
	check_exact(600 * MIB);
	CHECK_EQUAL(cuGraphUpload(large, NULL), CUDA_ERROR_OUT_OF_MEMORY);
	CHECK_EQUAL(cuGraphUpload_ptsz(large, NULL), CUDA_ERROR_OUT_OF_MEMORY);
	CHECK_EQUAL(cuGraphInstantiateWithParams(&large, graph_that_allocates(2 * GIB, 0), &at_once),
		CUDA_ERROR_OUT_OF_MEMORY);
	CHECK_EQUAL(
		cuGraphInstantiateWithParams_ptsz(&small, graph_that_allocates(800 * MIB, 0), &at_once), CUDA_SUCCESS);
	check_exact(800 * MIB);
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

static void a_graph_is_charged_where_it_allocates(void)
{
	struct grant grant = rig_grant(2, GIB, 100);
	CUgraphExec exec;

	rig_cards(2, 8 * GIB);
	rig_write(&grant);
	rig_context(1);
	rig_context(0);
	CHECK_EQUAL(cuGraphInstantiateWithFlags(&exec, graph_that_allocates(600 * MIB, 1), 0), CUDA_SUCCESS);
	CHECK_EQUAL(cuGraphLaunch(exec, NULL), CUDA_SUCCESS);
	CHECK_EQUAL(rig_charged(0), 0);
	CHECK_EQUAL(rig_charged(1), 600 * MIB);
	CHECK_EQUAL(fakeUsedBytes(1), 600 * MIB);
}

static void a_captured_allocation_is_charged_when_its_graph_runs(void)
{
	CUgraphExec exec;
	CUstream stream;
	CUgraph graph;
	CUdeviceptr a;

	begin(GIB);
	CHECK_EQUAL(cuStreamCreate(&stream, 0), CUDA_SUCCESS);
	CHECK_EQUAL(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
	CHECK_EQUAL(cuMemAllocAsync(&a, 64 * MIB, stream), CUDA_SUCCESS);
	CHECK_EQUAL(cuStreamEndCapture(stream, &graph), CUDA_SUCCESS);
	check_exact(0);
	CHECK_EQUAL(cuGraphInstantiate_v2(&exec, graph, NULL, NULL, 0), CUDA_SUCCESS);
	CHECK_EQUAL(cuGraphLaunch(exec, stream), CUDA_SUCCESS);
	check_exact(64 * MIB);
}

static void imported_memory_is_shown_and_not_charged(void)
{
	const CUDA_EXTERNAL_MEMORY_HANDLE_DESC desc = {
		.type = CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD, .size = 4 * GIB};
	CUexternalMemory memory;

	begin(GIB);
	CHECK_EQUAL(cuImportExternalMemory(&memory, &desc), CUDA_SUCCESS);
	CHECK_EQUAL(rig_charged(0), 0);
	CHECK_EQUAL(atomic_load(&rig_region()->slots[0].external_bytes[0]), 4 * GIB);
	CHECK_EQUAL(cuDestroyExternalMemory(memory), CUDA_SUCCESS);
	CHECK_EQUAL(atomic_load(&rig_region()->slots[0].external_bytes[0]), 0);
}

static void a_context_is_charged_once_and_takes_its_memory_with_it(void)
{
	struct grant grant = rig_grant(1, GIB, 100);
	CUcontext first, second;
	CUdeviceptr a;

	rig_cards(1, 8 * GIB);
	grant.devices[0].context_bytes = 100 * MIB;
	rig_write(&grant);
	CHECK_EQUAL(cuInit(0), CUDA_SUCCESS);
	CHECK_EQUAL(cuCtxCreate_v2(&first, 0, 0), CUDA_SUCCESS);
	CHECK_EQUAL(cuCtxCreate_v4(&second, NULL, 0, 0), CUDA_SUCCESS);
	CHECK_EQUAL(rig_charged(0), 100 * MIB);
	CHECK_EQUAL(cuMemAlloc_v2(&a, 925 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
	CHECK_EQUAL(cuMemAlloc_v2(&a, 924 * MIB), CUDA_SUCCESS);
	CHECK_EQUAL(cuCtxDestroy_v2(second), CUDA_SUCCESS);
	CHECK_EQUAL(rig_charged(0), 100 * MIB);
	CHECK_EQUAL(cuCtxDestroy_v2(first), CUDA_SUCCESS);
	CHECK_EQUAL(rig_charged(0), 0);
	CHECK_EQUAL(fakeUsedBytes(0), 0);
}

static void a_context_that_does_not_fit_is_refused(void)
{
	struct grant grant = rig_grant(1, 64 * MIB, 100);
	CUcontext context;

	rig_cards(1, 8 * GIB);
	grant.devices[0].context_bytes = 100 * MIB;
	rig_write(&grant);
	CHECK_EQUAL(cuInit(0), CUDA_SUCCESS);
	CHECK_EQUAL(cuDevicePrimaryCtxRetain(&context, 0), CUDA_ERROR_OUT_OF_MEMORY);
	CHECK_EQUAL(rig_charged(0), 0);
}

static void the_last_release_of_a_primary_context_ends_it(void)
{
	CUcontext context;
	CUdeviceptr a;

	begin(GIB);
	CHECK_EQUAL(cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
	CHECK_EQUAL(cuMemAlloc_v2(&a, GIB), CUDA_SUCCESS);
	CHECK_EQUAL(cuDevicePrimaryCtxRelease_v2(0), CUDA_SUCCESS);
	check_exact(GIB);
	CHECK_EQUAL(cuDevicePrimaryCtxRelease_v2(0), CUDA_SUCCESS);
	check_exact(0);
	rig_context(0);
	CHECK_EQUAL(cuMemAlloc_v2(&a, GIB), CUDA_SUCCESS);
	CHECK_EQUAL(cuDevicePrimaryCtxReset_v2(0), CUDA_SUCCESS);
	check_exact(0);
}

static void what_the_driver_refuses_costs_nothing(void)
{
	const CUmemAllocationProp prop = on_device(0);
	CUmemGenericAllocationHandle handle;
	CUdeviceptr a;
	CUarray array;
	const CUDA_ARRAY_DESCRIPTOR flat = {.Width = 64, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 1};

	begin(GIB);
	fakeFail("cuMemAlloc_v2", CUDA_ERROR_LAUNCH_FAILED, 1);
	CHECK_EQUAL(cuMemAlloc_v2(&a, MIB), CUDA_ERROR_LAUNCH_FAILED);
	fakeFail("cuMemCreate", CUDA_ERROR_NOT_PERMITTED, 1);
	CHECK_EQUAL(cuMemCreate(&handle, 2 * MIB, &prop, 0), CUDA_ERROR_NOT_PERMITTED);
	fakeFail("cuMemAllocAsync", CUDA_ERROR_NOT_SUPPORTED, 1);
	CHECK_EQUAL(cuMemAllocAsync(&a, MIB, NULL), CUDA_ERROR_NOT_SUPPORTED);
	fakeFail("cuArrayCreate_v2", CUDA_ERROR_UNKNOWN, 1);
	CHECK_EQUAL(cuArrayCreate_v2(&array, &flat), CUDA_ERROR_UNKNOWN);
	check_exact(0);
	CHECK_EQUAL(cuMemAlloc_v2(&a, MIB), CUDA_SUCCESS);
	fakeFail("cuMemFree_v2", CUDA_ERROR_LAUNCH_FAILED, 1);
	CHECK_EQUAL(cuMemFree_v2(a), CUDA_ERROR_LAUNCH_FAILED);
	check_exact(MIB); /* it is still there */
	CHECK_EQUAL(cuMemFree_v2(a), CUDA_SUCCESS);
	check_exact(0);
}

static void unknown_pointers_get_the_drivers_answer(void)
{
	begin(GIB);
	CHECK_EQUAL(cuMemFree_v2(0), CUDA_SUCCESS);
	CHECK_EQUAL(cuMemFree_v2(12345), CUDA_ERROR_INVALID_VALUE);
	CHECK_EQUAL(cuMemFreeAsync(12345, NULL), CUDA_ERROR_INVALID_VALUE);
	CHECK_EQUAL(cuMemRelease(99), CUDA_ERROR_INVALID_VALUE);
	CHECK_EQUAL(cuArrayDestroy((CUarray)99), CUDA_ERROR_INVALID_HANDLE);
}

static void without_a_context_the_driver_says_so(void)
{
	size_t free_bytes;
	CUdeviceptr a;

	(void)rig_one(GIB, 100);
	CHECK_EQUAL(cuMemAlloc_v2(&a, MIB), CUDA_ERROR_NOT_INITIALIZED);
	CHECK_EQUAL(cuInit(0), CUDA_SUCCESS);
	CHECK_EQUAL(cuMemAlloc_v2(&a, MIB), CUDA_ERROR_INVALID_CONTEXT);
	CHECK_EQUAL(cuMemGetInfo_v2(&free_bytes, NULL), CUDA_ERROR_INVALID_CONTEXT);
}

static void a_device_that_cannot_be_asked_for_is_not_guessed(void)
{
	CUdeviceptr a;

	(void)rig_one(GIB, 100);
	rig_context(0);
	fakeFail("cuCtxGetDevice", CUDA_ERROR_UNKNOWN, 1000);
	CHECK_EQUAL(cuMemAlloc_v2(&a, GIB), CUDA_SUCCESS); /* the container has one device: it can only be that */
	CHECK_EQUAL(cuMemAlloc_v2(&a, 1), CUDA_ERROR_OUT_OF_MEMORY);
}

static void a_full_card_pages_where_the_grant_oversubscribes(void)
{
	struct grant grant = rig_grant(1, 4 * GIB, 100);
	CUdeviceptr a, b;

	rig_cards(1, 2 * GIB);
	grant.flags = GRANT_OVERSUBSCRIBE;
	rig_write(&grant);
	rig_context(0);
	CHECK_EQUAL(cuMemAlloc_v2(&a, 2 * GIB), CUDA_SUCCESS);
	CHECK_EQUAL(cuMemAlloc_v2(&b, 2 * GIB), CUDA_SUCCESS);
	CHECK_EQUAL(cuMemAlloc_v2(&b, 1), CUDA_ERROR_OUT_OF_MEMORY); /* the share is a share all the same */
	CHECK_EQUAL(rig_charged(0), 4 * GIB);
}

static void a_full_card_is_the_drivers_to_report_otherwise(void)
{
	CUdeviceptr a;

	(void)rig_one(4 * GIB, 100);
	rig_cards(1, 2 * GIB);
	rig_context(0);
	CHECK_EQUAL(cuMemAlloc_v2(&a, 3 * GIB), CUDA_ERROR_OUT_OF_MEMORY);
	check_exact(0);
}

static void ten_thousand_allocations_are_found_again(void)
{
	enum { COUNT = 10000 };
	static CUdeviceptr pointers[COUNT];

	begin(GIB);
	for (int i = 0; i < COUNT; i++)
		CHECK_EQUAL(cuMemAlloc_v2(&pointers[i], 4096), CUDA_SUCCESS);
	check_exact(COUNT * 4096ull);
	for (int i = 0; i < COUNT; i++)
		CHECK_EQUAL(cuMemFree_v2(pointers[(i * 7919) % COUNT]), CUDA_SUCCESS);
	check_exact(0);
}

static void what_is_kept_for_the_next_is_judged_by_the_limit_of_then(void)
{
	struct grant grant = rig_one(GIB, 100);
	CUdeviceptr a, b, c;

	rig_context(0);
	CHECK_EQUAL(cuMemAlloc_v2(&a, 900 * MIB), CUDA_SUCCESS);
	CHECK_EQUAL(cuMemAlloc_v2(&b, 4 * MIB), CUDA_SUCCESS);
	CHECK_EQUAL(cuMemFree_v2(b), CUDA_SUCCESS);
	CHECK_EQUAL(rig_charged(0), 900 * MIB);
	CHECK_EQUAL(rig_free(), 124 * MIB);
	CHECK_EQUAL(cuMemAlloc_v2(&b, 2 * MIB), CUDA_SUCCESS);
	CHECK_EQUAL(cuMemFree_v2(b), CUDA_SUCCESS);
	grant.devices[0].memory_limit_bytes = 901 * MIB;
	rig_write(&grant);
	CHECK_EQUAL(cuMemAlloc_v2(&b, 2 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
	grant.devices[0].memory_limit_bytes = GIB;
	grant.overhead_bytes[0] = 123 * MIB;
	rig_write(&grant);
	CHECK_EQUAL(cuMemAlloc_v2(&b, 2 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
	CHECK_EQUAL(cuMemAlloc_v2(&b, MIB), CUDA_SUCCESS);
	CHECK_EQUAL(cuMemAlloc_v2(&c, 1), CUDA_ERROR_OUT_OF_MEMORY);
	CHECK_EQUAL(rig_free(), 0);
}

static void a_whole_card_is_not_counted(void)
{
	struct grant grant = rig_grant(1, 0, 0);
	char region[PATH_MAX];
	CUdeviceptr a;

	rig_cards(1, 8 * GIB);
	grant.devices[0].flags = GRANT_DEVICE_WHOLE;
	rig_write(&grant);
	rig_context(0);
	CHECK_EQUAL(cuMemAlloc_v2(&a, 8 * GIB), CUDA_SUCCESS);
	rig_path(region, "region");
	CHECK(access(region, F_OK) != 0); /* not even attached */
}

static void memory_without_a_limit_is_counted(void)
{
	CUdeviceptr a;
	size_t free_bytes, total_bytes;

	begin(0);
	CHECK_EQUAL(cuMemAlloc_v2(&a, 6 * GIB), CUDA_SUCCESS);
	check_exact(6 * GIB);
	CHECK_EQUAL(cuMemGetInfo_v2(&free_bytes, &total_bytes), CUDA_SUCCESS);
	CHECK_EQUAL(total_bytes, 8 * GIB);
}

int main(int argc, char **argv)
{
	static const struct test tests[] = {
		TEST(plain_memory_is_held_to_the_limit),
		TEST(the_oldest_functions_count_too),
		TEST(pitched_memory_counts_its_padding),
		TEST(managed_memory_counts),
		TEST(arrays_count_what_the_driver_takes_for_them),
		TEST(the_oldest_arrays_count_too),
		TEST(a_pool_is_charged_what_it_holds),
		TEST(what_a_pool_gave_back_is_room_for_others),
		TEST(a_destroyed_pool_is_charged_until_it_is_empty),
		TEST(a_pool_with_a_threshold_stays_charged_until_it_is_trimmed),
		TEST(what_a_pool_keeps_and_nobody_uses_is_room),
		TEST(unmapped_blocks_live_until_handle_and_mappings_are_gone),
		TEST(a_retained_handle_keeps_its_block),
		TEST(memory_of_the_host_is_not_charged),
		TEST(graphs_are_charged_what_the_device_keeps_for_them),
		TEST(a_graph_within_a_graph_is_charged_too),
		TEST(a_graph_is_charged_when_it_is_uploaded),
		TEST(a_graph_is_charged_where_it_allocates),
		TEST(a_stream_takes_its_memory_from_its_own_device),
		TEST(a_captured_allocation_is_charged_when_its_graph_runs),
		TEST(imported_memory_is_shown_and_not_charged),
		TEST(a_context_is_charged_once_and_takes_its_memory_with_it),
		TEST(a_context_that_does_not_fit_is_refused),
		TEST(the_last_release_of_a_primary_context_ends_it),
		TEST(what_the_driver_refuses_costs_nothing),
		TEST(unknown_pointers_get_the_drivers_answer),
		TEST(without_a_context_the_driver_says_so),
		TEST(a_device_that_cannot_be_asked_for_is_not_guessed),
		TEST(a_full_card_pages_where_the_grant_oversubscribes),
		TEST(a_full_card_is_the_drivers_to_report_otherwise),
		TEST(ten_thousand_allocations_are_found_again),
		TEST(what_is_kept_for_the_next_is_judged_by_the_limit_of_then),
		TEST(a_whole_card_is_not_counted),
		TEST(memory_without_a_limit_is_counted),
	};
	return RUN_TESTS(tests, argc, argv);
}
