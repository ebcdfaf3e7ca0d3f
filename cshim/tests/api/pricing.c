/* Kernels whose cost nobody knows, or no longer: they are held to the share like any others. */
#define _GNU_SOURCE
#include "share.h"

/* Kernels whose cost nobody knows yet, one after the other: each grid is a kernel of its own. */
static void kernels_that_run_only_once(const char *name, uint64_t kernel_ns, uint32_t percent)
{
	uint64_t started, busy, window;
	CUfunction kernel;

	share_begin(percent);
	kernel = rig_kernel(name);
	window = share_window_ns(kernel_ns, percent);
	started = clock_now();
	busy = fakeBusyNanoseconds(0);
	for (unsigned grid = 1; clock_now() - started < window; grid++) {
		CHECK_EQUAL(cuLaunchKernel(kernel, grid, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL), CUDA_SUCCESS);
		clock_sleep(HOST_NS);
	}
	CHECK_EQUAL(cuStreamSynchronize(NULL), CUDA_SUCCESS);
	CHECK_SHARE(share_since(started, busy), percent, 3);
}

static void short_kernels_that_run_only_once_are_held(void)
{
	kernels_that_run_only_once("k_20us", 20000, 30);
}

static void kernels_of_1_ms_that_run_only_once_are_held(void)
{
	kernels_that_run_only_once("k_1ms", 1000000, 30);
}

static void long_kernels_that_run_only_once_are_held(void)
{
	kernels_that_run_only_once("k_50ms", 50000000, 50);
}

static void more_kernels_than_are_remembered_are_held(void)
{
	uint64_t started, busy;
	CUfunction kernel;

	share_begin(40);
	kernel = rig_kernel("k_50us");
	started = clock_now();
	busy = fakeBusyNanoseconds(0);
	for (unsigned i = 0; clock_now() - started < SECOND_NS; i++) {
		CHECK_EQUAL(cuLaunchKernel(kernel, 1 + i % 3000, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL), CUDA_SUCCESS);
		clock_sleep(HOST_NS);
	}
	CHECK_EQUAL(cuStreamSynchronize(NULL), CUDA_SUCCESS);
	CHECK_SHARE(share_since(started, busy), 40, 3);
}

static void a_capture_that_stays_open_lets_nothing_through(void)
{
	CUstream captured;
	CUgraph graph;

	share_begin(30);
	CHECK_EQUAL(cuStreamCreate(&captured, 0), CUDA_SUCCESS);
	CHECK_EQUAL(cuStreamBeginCapture_v2(captured, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
	CHECK_SHARE(share_run(rig_kernel("k_200us"), SECOND_NS, false), 30, 3);
	CHECK_EQUAL(cuStreamEndCapture(captured, &graph), CUDA_SUCCESS); /* nor is it spoiled */
}

static CUgraph graph_of(CUfunction kernel, int nodes)
{
	CUDA_KERNEL_NODE_PARAMS_v1 params = {.func = kernel};
	CUgraphNode node;
	CUgraph graph;

	CHECK_EQUAL(cuGraphCreate(&graph, 0), CUDA_SUCCESS);
	for (int i = 0; i < nodes; i++)
		CHECK_EQUAL(cuGraphAddKernelNode(&node, graph, NULL, 0, &params), CUDA_SUCCESS);
	return graph;
}

static void a_graph_in_the_place_of_another_has_its_own_cost(void)
{
	CUgraph graphs[2];
	CUfunction kernel;

	share_begin(30);
	kernel = rig_kernel("k_20us");
	graphs[0] = graph_of(kernel, 1);
	graphs[1] = graph_of(kernel, 400);
	for (int i = 0; i < 2;
		i++) { /* the second comes to lie where the first was, as memory that was just freed does */
		const uint64_t started = clock_now(), busy = fakeBusyNanoseconds(0);
		CUgraphExec exec;

		CHECK_EQUAL(cuGraphInstantiateWithFlags(&exec, graphs[i], 0), CUDA_SUCCESS);
		while (clock_now() - started < SECOND_NS) {
			CHECK_EQUAL(cuGraphLaunch(exec, NULL), CUDA_SUCCESS);
			clock_sleep(HOST_NS);
		}
		CHECK_EQUAL(cuCtxSynchronize(), CUDA_SUCCESS);
		CHECK_SHARE(share_since(started, busy), 30, 3);
		CHECK_EQUAL(cuGraphExecDestroy(exec), CUDA_SUCCESS);
	}
}

static void a_kernel_that_cannot_finish_does_not_hold_the_next_for_ever(void)
{
	uint64_t started;
	CUfunction kernel;

	share_begin(50);
	kernel = rig_kernel("k_100000ms");
	started = clock_now();
	CHECK_EQUAL(rig_launch(kernel), CUDA_SUCCESS);
	CHECK_EQUAL(rig_launch(kernel), CUDA_SUCCESS);
	CHECK(clock_now() - started < SECOND_NS);
}

int main(int argc, char **argv)
{
	static const struct test tests[] = {
		TEST(short_kernels_that_run_only_once_are_held),
		TEST(kernels_of_1_ms_that_run_only_once_are_held),
		TEST(long_kernels_that_run_only_once_are_held),
		TEST(more_kernels_than_are_remembered_are_held),
		TEST(a_capture_that_stays_open_lets_nothing_through),
		TEST(a_graph_in_the_place_of_another_has_its_own_cost),
		TEST(a_kernel_that_cannot_finish_does_not_hold_the_next_for_ever),
	};
	return RUN_TESTS(tests, argc, argv);
}
