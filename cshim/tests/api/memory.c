/* Memory of every kind: counted as the card counts it, held to the limit, given back in full; and the driver's own
 * answers for everything that is not the limit's business. */
#define _GNU_SOURCE
#include <setjmp.h>

#include "rig.h"

static void plain_memory_is_held_to_the_limit(void)
{
	CUdeviceptr a, b;

	rig_begin(GIB);
	CHECK_EQUAL(cuMemAlloc_v2(&a, 600 * MIB), CUDA_SUCCESS);
	CHECK_EQUAL(cuMemAlloc_v2(&b, 425 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
	CHECK_EQUAL(cuMemAlloc_v2(&b, 424 * MIB), CUDA_SUCCESS);
	rig_exact(GIB);
	CHECK_EQUAL(cuMemFree_v2(a), CUDA_SUCCESS);
	rig_exact(424 * MIB);
	CHECK_EQUAL(cuMemFree_v2(b), CUDA_SUCCESS);
	rig_exact(0);
}

static void the_oldest_functions_count_too(void)
{
	CUdeviceptr_v1 a, b;
	unsigned int pitch, free_bytes, total_bytes;

	rig_begin(GIB);
	CHECK_EQUAL(cuMemAlloc(&a, 600u << 20), CUDA_SUCCESS);
	CHECK_EQUAL(cuMemAllocPitch(&b, &pitch, 500, 1024 * 1024, 4), CUDA_ERROR_OUT_OF_MEMORY);
	CHECK_EQUAL(cuMemGetInfo(&free_bytes, &total_bytes), CUDA_SUCCESS);
	CHECK_EQUAL(total_bytes, GIB);
	CHECK_EQUAL(free_bytes, 424 * MIB);
	CHECK_EQUAL(cuMemFree(a), CUDA_SUCCESS);
	rig_exact(0);
}

static void pitched_memory_counts_its_padding(void)
{
	CUdeviceptr a;
	size_t pitch;

	rig_begin(GIB);
	CHECK_EQUAL(cuMemAllocPitch_v2(&a, &pitch, 8, MIB, 8), CUDA_SUCCESS);
	rig_exact(512 * MIB);
	CHECK_EQUAL(cuMemAllocPitch_v2(&a, &pitch, 8, 2 * MIB, 8), CUDA_ERROR_OUT_OF_MEMORY);
	CHECK_EQUAL(cuMemAllocPitch_v2(&a, &pitch, 8, 16, 0),
		CUDA_ERROR_INVALID_VALUE); /* the driver's answer, no division */
	rig_exact(512 * MIB);
}

static void managed_memory_counts(void)
{
	CUdeviceptr a;

	rig_begin(GIB);
	CHECK_EQUAL(cuMemAllocManaged(&a, 2 * GIB, CU_MEM_ATTACH_GLOBAL), CUDA_ERROR_OUT_OF_MEMORY);
	CHECK_EQUAL(cuMemAllocManaged(&a, GIB, CU_MEM_ATTACH_GLOBAL), CUDA_SUCCESS);
	rig_exact(GIB);
	CHECK_EQUAL(cuMemFree_v2(a), CUDA_SUCCESS);
	rig_exact(0);
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

	rig_begin(GIB);
	CHECK_EQUAL(cuArrayCreate_v2(&a, &flat), CUDA_SUCCESS);
	rig_exact(4063232); /* 4,000,000 in pieces of 64 KiB */
	CHECK_EQUAL(cuArray3DCreate_v2(&b, &deep), CUDA_SUCCESS);
	rig_exact(4063232 + 512 * MIB);
	CHECK_EQUAL(cuArray3DCreate_v2(&c, &huge), CUDA_ERROR_OUT_OF_MEMORY);
	CHECK_EQUAL(cuMipmappedArrayCreate(&mipmap, &deep, 4), CUDA_ERROR_OUT_OF_MEMORY);
	CHECK_EQUAL(cuArrayDestroy(b), CUDA_SUCCESS);
	CHECK_EQUAL(cuMipmappedArrayCreate(&mipmap, &deep, 4), CUDA_SUCCESS);
	CHECK_EQUAL(rig_charged(0), fakeUsedBytes(0));
	CHECK_EQUAL(cuMipmappedArrayDestroy(mipmap), CUDA_SUCCESS);
	CHECK_EQUAL(cuArrayDestroy(a), CUDA_SUCCESS);
	rig_exact(0);
}

static void the_oldest_arrays_count_too(void)
{
	const CUDA_ARRAY_DESCRIPTOR_v1 flat = {
		.Width = 16384, .Height = 16384, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 1};
	const CUDA_ARRAY3D_DESCRIPTOR_v1 deep = {
		.Width = 512, .Height = 512, .Depth = 512, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 1};
	CUarray a, b;

	rig_begin(GIB);
	CHECK_EQUAL(cuArrayCreate(&a, &flat), CUDA_SUCCESS);
	CHECK_EQUAL(cuArray3DCreate(&b, &deep), CUDA_ERROR_OUT_OF_MEMORY);
	rig_exact(GIB);
	CHECK_EQUAL(cuArrayDestroy(a), CUDA_SUCCESS);
	rig_exact(0);
}

static void imported_memory_is_shown_and_not_charged(void)
{
	const CUDA_EXTERNAL_MEMORY_HANDLE_DESC desc = {
		.type = CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD, .size = 4 * GIB};
	CUexternalMemory memory;

	rig_begin(GIB);
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

	rig_begin(GIB);
	CHECK_EQUAL(cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
	CHECK_EQUAL(cuMemAlloc_v2(&a, GIB), CUDA_SUCCESS);
	CHECK_EQUAL(cuDevicePrimaryCtxRelease_v2(0), CUDA_SUCCESS);
	rig_exact(GIB);
	CHECK_EQUAL(cuDevicePrimaryCtxRelease_v2(0), CUDA_SUCCESS);
	rig_exact(0);
	rig_context(0);
	CHECK_EQUAL(cuMemAlloc_v2(&a, GIB), CUDA_SUCCESS);
	CHECK_EQUAL(cuDevicePrimaryCtxReset_v2(0), CUDA_SUCCESS);
	rig_exact(0);
}

static void what_the_driver_refuses_costs_nothing(void)
{
	const CUmemAllocationProp prop = rig_on_device(0);
	CUmemGenericAllocationHandle handle;
	CUdeviceptr a;
	CUarray array;
	const CUDA_ARRAY_DESCRIPTOR flat = {.Width = 64, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 1};

	rig_begin(GIB);
	fakeFail("cuMemAlloc_v2", CUDA_ERROR_LAUNCH_FAILED, 1);
	CHECK_EQUAL(cuMemAlloc_v2(&a, MIB), CUDA_ERROR_LAUNCH_FAILED);
	fakeFail("cuMemCreate", CUDA_ERROR_NOT_PERMITTED, 1);
	CHECK_EQUAL(cuMemCreate(&handle, 2 * MIB, &prop, 0), CUDA_ERROR_NOT_PERMITTED);
	fakeFail("cuMemAllocAsync", CUDA_ERROR_NOT_SUPPORTED, 1);
	CHECK_EQUAL(cuMemAllocAsync(&a, MIB, NULL), CUDA_ERROR_NOT_SUPPORTED);
	fakeFail("cuArrayCreate_v2", CUDA_ERROR_UNKNOWN, 1);
	CHECK_EQUAL(cuArrayCreate_v2(&array, &flat), CUDA_ERROR_UNKNOWN);
	rig_exact(0);
	CHECK_EQUAL(cuMemAlloc_v2(&a, MIB), CUDA_SUCCESS);
	fakeFail("cuMemFree_v2", CUDA_ERROR_LAUNCH_FAILED, 1);
	CHECK_EQUAL(cuMemFree_v2(a), CUDA_ERROR_LAUNCH_FAILED);
	rig_exact(MIB); /* it is still there */
	CHECK_EQUAL(cuMemFree_v2(a), CUDA_SUCCESS);
	rig_exact(0);
}

static void unknown_pointers_get_the_drivers_answer(void)
{
	rig_begin(GIB);
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
	rig_exact(0);
}

static void ten_thousand_allocations_are_found_again(void)
{
	enum { COUNT = 10000 };
	static CUdeviceptr pointers[COUNT];

	rig_begin(GIB);
	for (int i = 0; i < COUNT; i++)
		CHECK_EQUAL(cuMemAlloc_v2(&pointers[i], 4096), CUDA_SUCCESS);
	rig_exact(COUNT * 4096ull);
	for (int i = 0; i < COUNT; i++)
		CHECK_EQUAL(cuMemFree_v2(pointers[(i * 7919) % COUNT]), CUDA_SUCCESS);
	rig_exact(0);
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

	rig_begin(0);
	CHECK_EQUAL(cuMemAlloc_v2(&a, 6 * GIB), CUDA_SUCCESS);
	rig_exact(6 * GIB);
	CHECK_EQUAL(cuMemGetInfo_v2(&free_bytes, &total_bytes), CUDA_SUCCESS);
	CHECK_EQUAL(total_bytes, 8 * GIB);
}

static void arrays_of_every_format_are_charged_what_they_take(void)
{
	static const int formats[] = {0x01, 0x02, 0x03, 0x08, 0x09, 0x0a, 0x10, 0x20, 0x50, 0x51, 0x52, 0x53, 0x54,
		0x55, 0x56, 0x57, 0x58, 0x59, 0x5a, 0x5b, 0x5c, 0x5d, 0x5e, 0x91, 0x92, 0x93, 0x94, 0x95, 0x96, 0x97,
		0x98, 0x99, 0x9a, 0x9b, 0x9c, 0x9d, 0x9e, 0x9f, 0xa1, 0xa2, 0xa3, 0xa4, 0xa5, 0xa6, 0xa7, 0xa8, 0xa9,
		0xb0, 0xb1, 0xb2, 0xb3, 0xb4, 0xb5, 0xc0, 0xc1, 0xc2, 0xc3, 0xc4, 0xc5, 0xc6, 0xc7, 0xc8, 0xc9, 0xca,
		0xcb};

	rig_begin(4 * GIB);
	for (size_t i = 0; i < sizeof(formats) / sizeof(formats[0]); i++) {
		const CUDA_ARRAY3D_DESCRIPTOR desc = {.Width = 1022,
			.Height = 514,
			.Depth = 3,
			.Format = (CUarray_format)formats[i],
			.NumChannels = 4,
			.Flags = 0x01};
		CUmipmappedArray mipmap;
		CUarray array;

		CHECK_EQUAL(cuArray3DCreate_v2(&array, &desc), CUDA_SUCCESS);
		CHECK_EQUAL(rig_charged(0), fakeUsedBytes(0));
		CHECK_EQUAL(cuMipmappedArrayCreate(&mipmap, &desc, 9), CUDA_SUCCESS);
		CHECK_EQUAL(rig_charged(0), fakeUsedBytes(0));
		CHECK_EQUAL(cuArrayDestroy(array), CUDA_SUCCESS);
		CHECK_EQUAL(cuMipmappedArrayDestroy(mipmap), CUDA_SUCCESS);
		rig_exact(0);
	}
}

static void the_heap_and_the_output_of_kernels_are_charged(void)
{
	CUcontext context;

	rig_begin(GIB);
	CHECK_EQUAL(cuCtxCreate_v2(&context, 0, 0), CUDA_SUCCESS);
	CHECK_EQUAL(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 2 * GIB), CUDA_ERROR_OUT_OF_MEMORY);
	CHECK_EQUAL(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 600 * MIB), CUDA_SUCCESS);
	CHECK_EQUAL(cuCtxSetLimit(CU_LIMIT_PRINTF_FIFO_SIZE, 100 * MIB), CUDA_SUCCESS);
	CHECK_EQUAL(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 1024), CUDA_SUCCESS);
	rig_exact(700 * MIB);
	CHECK_EQUAL(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 800 * MIB), CUDA_SUCCESS);
	rig_exact(900 * MIB);
	CHECK_EQUAL(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 100 * MIB), CUDA_SUCCESS);
	rig_exact(200 * MIB);
	CHECK_EQUAL(cuCtxDestroy_v2(context), CUDA_SUCCESS);
	rig_exact(0);
}

static void managed_memory_is_charged_wherever_it_is_fetched(void)
{
	struct grant grant = rig_grant(2, GIB, 100);
	CUmemLocation there[] = {{.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 1}, {.type = CU_MEM_LOCATION_TYPE_HOST}};
	size_t firsts[] = {0, 1}, sizes[] = {600 * MIB, 600 * MIB};
	CUdeviceptr pointers[2];

	grant.devices[0].memory_limit_bytes = grant.devices[0].started_with_bytes = 4 * GIB;
	rig_cards(2, 16 * GIB);
	rig_write(&grant);
	rig_context(1);
	rig_context(0);
	for (int i = 0; i < 2; i++)
		CHECK_EQUAL(cuMemAllocManaged(&pointers[i], 600 * MIB, CU_MEM_ATTACH_GLOBAL), CUDA_SUCCESS);
	CHECK_EQUAL(cuMemPrefetchAsync(pointers[0], 600 * MIB, 0, NULL), CUDA_SUCCESS); /* where it is */
	CHECK_EQUAL(rig_charged(1), 0);
	CHECK_EQUAL(cuMemPrefetchBatchAsync(pointers, sizes, 2, there, firsts, 2, 0, NULL), CUDA_SUCCESS);
	CHECK_EQUAL(rig_charged(1), 600 * MIB);
	CHECK_EQUAL(fakeUsedBytes(1), 600 * MIB);
	CHECK_EQUAL(cuMemPrefetchAsync_v2(pointers[1] + MIB, MIB, there[0], 0, NULL), CUDA_ERROR_OUT_OF_MEMORY);
	CHECK_EQUAL(cuMemPrefetchAsync(pointers[1], 600 * MIB, 1, NULL), CUDA_ERROR_OUT_OF_MEMORY);
	CHECK_EQUAL(cuMemPrefetchAsync_ptsz(pointers[0], 600 * MIB, 1, NULL), CUDA_SUCCESS); /* charged once */
	CHECK_EQUAL(rig_charged(1), 600 * MIB);
	CHECK_EQUAL(rig_charged(0), 1200 * MIB); /* it may come back at any time */
	CHECK_EQUAL(cuMemFree_v2(pointers[0]), CUDA_SUCCESS);
	CHECK_EQUAL(rig_charged(1), 0);
	CHECK_EQUAL(cuMemPrefetchAsync_v2_ptsz(pointers[1], 600 * MIB, there[0], 0, NULL), CUDA_SUCCESS);
	CHECK_EQUAL(rig_charged(1), 600 * MIB);
	CHECK_EQUAL(cuDevicePrimaryCtxReset_v2(0), CUDA_SUCCESS);
	CHECK_EQUAL(rig_charged(0) + rig_charged(1), 0);
}

static sigjmp_buf outside;

static void jump(int signal_number)
{
	(void)signal_number;
	siglongjmp(outside, 1);
}

/* A handler leaves a launch that waits for its share; what the thread does afterwards counts. */
static void a_call_that_is_left_by_a_jump_counts_no_less_afterwards(void)
{
	CUDA_MEM_ALLOC_NODE_PARAMS alloc = {
		.bytesize = 2 * MIB, .poolProps.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
	CUDA_KERNEL_NODE_PARAMS_v1 run = {0};
	CUgraphExec exec;
	CUgraphNode node;
	CUgraph graph;
	CUdeviceptr a;

	(void)rig_one(GIB, 5);
	rig_context(0);
	run.func = rig_kernel("spin_50ms");
	CHECK_EQUAL(cuGraphCreate(&graph, 0), CUDA_SUCCESS);
	CHECK_EQUAL(cuGraphAddMemAllocNode(&node, graph, NULL, 0, &alloc), CUDA_SUCCESS);
	CHECK_EQUAL(cuGraphAddKernelNode(&node, graph, NULL, 0, &run), CUDA_SUCCESS);
	CHECK_EQUAL(cuGraphInstantiateWithFlags(&exec, graph, 0), CUDA_SUCCESS);
	CHECK(signal(SIGALRM, jump) != SIG_ERR);
	if (sigsetjmp(outside, 1) == 0) {
		ualarm(300000, 0);
		for (;;)
			CHECK_EQUAL(cuGraphLaunch(exec, NULL), CUDA_SUCCESS);
	}
	CHECK_EQUAL(cuMemAlloc_v2(&a, 2 * GIB), CUDA_ERROR_OUT_OF_MEMORY);
	CHECK_EQUAL(cuMemAlloc_v2(&a, 100 * MIB), CUDA_SUCCESS);
	CHECK(rig_charged(0) >= 100 * MIB);
}

int main(int argc, char **argv)
{
	static const struct test tests[] = {
		TEST(arrays_of_every_format_are_charged_what_they_take),
		TEST(the_heap_and_the_output_of_kernels_are_charged),
		TEST(managed_memory_is_charged_wherever_it_is_fetched),
		TEST(a_call_that_is_left_by_a_jump_counts_no_less_afterwards),
		TEST(plain_memory_is_held_to_the_limit),
		TEST(the_oldest_functions_count_too),
		TEST(pitched_memory_counts_its_padding),
		TEST(managed_memory_counts),
		TEST(arrays_count_what_the_driver_takes_for_them),
		TEST(the_oldest_arrays_count_too),
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
