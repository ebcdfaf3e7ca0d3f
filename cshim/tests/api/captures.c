/* Stream capture: what can be captured without the library can be captured with it, in every mode and from every
 * thread, and the charge is right afterwards. The fake driver refuses what spoils a capture, as the documentation of
 * cuThreadExchangeStreamCaptureMode says. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdbool.h>

#include "rig.h"

static const CUstreamCaptureMode modes[] = {
	CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, CU_STREAM_CAPTURE_MODE_RELAXED};

static CUfunction kernel;
static CUstream other;
static CUgraphExec allocating;

/* Every call that the library answers with calls of its own. */
static void use_the_library(void)
{
	CUdeviceptr a, b;
	CUmemoryPool pool;

	CHECK_EQUAL(cuMemAllocAsync(&a, 100 * MIB, other), CUDA_SUCCESS);
	CHECK_EQUAL(cuDeviceGetDefaultMemPool(&pool, 0), CUDA_SUCCESS);
	CHECK_EQUAL(cuMemAllocFromPoolAsync(&b, 50 * MIB, pool, other), CUDA_SUCCESS);
	CHECK_EQUAL(cuMemAllocFromPoolAsync(&b, 4 * GIB, pool, other), CUDA_ERROR_OUT_OF_MEMORY); /* trims first */
	CHECK_EQUAL(cuMemFreeAsync(a, other), CUDA_SUCCESS);
	CHECK(rig_free() > 0);
	for (int i = 0; i < 20; i++)
		CHECK_EQUAL(cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, other, NULL, NULL), CUDA_SUCCESS);
	CHECK_EQUAL(cuGraphLaunch(allocating, other), CUDA_SUCCESS);
}

static void *use_it_in_a_thread(void *unused)
{
	CUcontext context;

	CHECK_EQUAL(cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
	CHECK_EQUAL(cuCtxSetCurrent(context), CUDA_SUCCESS);
	use_the_library();
	return unused;
}

static void prepare(void)
{
	CUDA_MEM_ALLOC_NODE_PARAMS params = {
		.bytesize = 10 * MIB, .poolProps.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
	CUgraphNode node;
	CUgraph graph;

	(void)rig_one(GIB, 90);
	rig_context(0);
	kernel = rig_kernel("k_10us");
	CHECK_EQUAL(cuStreamCreate(&other, 0), CUDA_SUCCESS);
	CHECK_EQUAL(cuGraphCreate(&graph, 0), CUDA_SUCCESS);
	CHECK_EQUAL(cuGraphAddMemAllocNode(&node, graph, NULL, 0, &params), CUDA_SUCCESS);
	CHECK_EQUAL(cuGraphInstantiateWithFlags(&allocating, graph, 0), CUDA_SUCCESS);
}

static void capture(CUstreamCaptureMode mode, bool in_a_thread)
{
	CUstream captured;
	CUgraphExec exec;
	pthread_t thread;
	CUgraph graph;
	CUdeviceptr a;

	prepare();
	CHECK_EQUAL(cuStreamCreate(&captured, 0), CUDA_SUCCESS);
	CHECK_EQUAL(cuStreamBeginCapture_v2(captured, mode), CUDA_SUCCESS);
	CHECK_EQUAL(cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, captured, NULL, NULL), CUDA_SUCCESS);
	CHECK_EQUAL(cuMemAllocAsync(&a, 30 * MIB, captured), CUDA_SUCCESS);
	if (in_a_thread) {
		CHECK_EQUAL(pthread_create(&thread, NULL, use_it_in_a_thread, NULL), 0);
		CHECK_EQUAL(pthread_join(thread, NULL), 0);
	} else {
		use_the_library();
	}
	CHECK_EQUAL(cuStreamEndCapture(captured, &graph), CUDA_SUCCESS);
	CHECK_EQUAL(cuGraphInstantiateWithFlags(&exec, graph, 0), CUDA_SUCCESS);
	CHECK_EQUAL(cuGraphLaunch(exec, captured), CUDA_SUCCESS);
	CHECK(rig_free() > 0);
	CHECK_EQUAL(rig_charged(0), fakeUsedBytes(0));
}

static void a_capture_survives_all_that_goes_on_beside_it(void)
{
	for (size_t i = 0; i < 2 * sizeof(modes) / sizeof(modes[0]); i++) {
		int status;

		if (fork() == 0) {
			capture(modes[i / 2], i % 2 != 0);
			exit(0);
		}
		wait(&status);
		CHECK_EQUAL(status, 0);
		unlink("region");
		unlink("cards.state");
	}
}

/* The program's own mistake is answered as without the library. */
static void what_spoils_a_capture_spoils_it(void)
{
	CUstream captured;
	CUgraph graph;
	CUdeviceptr a;

	prepare();
	CHECK_EQUAL(cuStreamCreate(&captured, 0), CUDA_SUCCESS);
	CHECK_EQUAL(cuStreamBeginCapture_v2(captured, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
	CHECK_EQUAL(cuMemAlloc_v2(&a, MIB), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
	CHECK_EQUAL(cuStreamEndCapture(captured, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
	rig_exact(0);
}

int main(int argc, char **argv)
{
	static const struct test tests[] = {
		TEST(a_capture_survives_all_that_goes_on_beside_it),
		TEST(what_spoils_a_capture_spoils_it),
	};
	return RUN_TESTS(tests, argc, argv);
}
