/* Graphs that allocate: charged what the devices keep for them, from an upload or a launch on. */
#include "rig.h"

static void graphs_are_charged_what_the_device_keeps_for_them(void)
{
	CUDA_MEM_ALLOC_NODE_PARAMS params = {
		.bytesize = 600 * MIB, .poolProps.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
	CUgraphNode node;
	CUgraphExec exec;
	CUdeviceptr a;
	CUgraph graph;

	rig_begin(GIB);
	CHECK_EQUAL(cuGraphCreate(&graph, 0), CUDA_SUCCESS);
	CHECK_EQUAL(cuGraphAddMemAllocNode(&node, graph, NULL, 0, &params), CUDA_SUCCESS);
	CHECK_EQUAL(cuGraphInstantiateWithFlags(&exec, graph, 0), CUDA_SUCCESS);
	rig_exact(0);
	CHECK_EQUAL(cuMemAlloc_v2(&a, 500 * MIB), CUDA_SUCCESS);
	CHECK_EQUAL(cuGraphLaunch(exec, NULL), CUDA_ERROR_OUT_OF_MEMORY);
	CHECK_EQUAL(cuMemFree_v2(a), CUDA_SUCCESS);
	CHECK_EQUAL(cuGraphLaunch(exec, NULL), CUDA_SUCCESS);
	CHECK_EQUAL(cuGraphLaunch_ptsz(exec, NULL), CUDA_SUCCESS); /* the same memory again */
	rig_exact(600 * MIB);
	CHECK_EQUAL(cuDeviceGraphMemTrim(0), CUDA_SUCCESS);
	rig_exact(0);
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

	rig_begin(GIB);
	CHECK_EQUAL(cuGraphCreate(&outer, 0), CUDA_SUCCESS);
	for (int i = 0; i < 2; i++)
		CHECK_EQUAL(cuGraphAddChildGraphNode(&node, outer, NULL, 0, graph_that_allocates(400 * MIB, 0)),
			CUDA_SUCCESS);
	CHECK_EQUAL(cuGraphInstantiateWithFlags(&exec, outer, 0), CUDA_SUCCESS);
	CHECK_EQUAL(cuGraphLaunch(exec, NULL), CUDA_SUCCESS);
	rig_exact(800 * MIB);
	CHECK_EQUAL(cuGraphAddChildGraphNode(&node, outer, NULL, 0, graph_that_allocates(400 * MIB, 0)), CUDA_SUCCESS);
	CHECK_EQUAL(cuGraphInstantiateWithFlags(&exec, outer, 0), CUDA_SUCCESS);
	CHECK_EQUAL(cuGraphLaunch(exec, NULL), CUDA_ERROR_OUT_OF_MEMORY);
	rig_exact(800 * MIB);
}

static void a_graph_is_charged_when_it_is_uploaded(void)
{
	CUDA_GRAPH_INSTANTIATE_PARAMS at_once = {.flags = CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD};
	CUgraphExec small, large;

	rig_begin(GIB);
	CHECK_EQUAL(cuGraphInstantiateWithFlags(&small, graph_that_allocates(600 * MIB, 0), 0), CUDA_SUCCESS);
	CHECK_EQUAL(cuGraphInstantiateWithFlags(&large, graph_that_allocates(2 * GIB, 0), 0), CUDA_SUCCESS);
	rig_exact(0);
	CHECK_EQUAL(cuGraphUpload(small, NULL), CUDA_SUCCESS);
	rig_exact(600 * MIB);
	CHECK_EQUAL(cuGraphUpload(large, NULL), CUDA_ERROR_OUT_OF_MEMORY);
	CHECK_EQUAL(cuGraphUpload_ptsz(large, NULL), CUDA_ERROR_OUT_OF_MEMORY);
	CHECK_EQUAL(cuGraphInstantiateWithParams(&large, graph_that_allocates(2 * GIB, 0), &at_once),
		CUDA_ERROR_OUT_OF_MEMORY);
	CHECK_EQUAL(
		cuGraphInstantiateWithParams_ptsz(&small, graph_that_allocates(800 * MIB, 0), &at_once), CUDA_SUCCESS);
	rig_exact(800 * MIB);
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

static void two_shares(uint64_t first, uint64_t second)
{
	struct grant grant = rig_grant(2, GIB, 100);

	rig_cards(2, 16 * GIB);
	grant.devices[0].memory_limit_bytes = grant.devices[0].started_with_bytes = first;
	grant.devices[1].memory_limit_bytes = grant.devices[1].started_with_bytes = second;
	rig_write(&grant);
	rig_context(1);
	rig_context(0);
}

static void graph_add_alloc(CUgraph graph, uint64_t bytes, CUmemLocation location)
{
	CUDA_MEM_ALLOC_NODE_PARAMS params = {.bytesize = bytes, .poolProps.location = location};
	CUgraphNode node;

	CHECK_EQUAL(cuGraphAddMemAllocNode(&node, graph, NULL, 0, &params), CUDA_SUCCESS);
}

static void each_device_of_a_graph_is_asked(void)
{
	CUgraph over = NULL, within = NULL;
	CUgraphExec exec;

	two_shares(GIB, 4 * GIB);
	over = graph_that_allocates(2 * MIB, 1);
	graph_add_alloc(over, 2 * GIB, (CUmemLocation){.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0});
	CHECK_EQUAL(cuGraphInstantiateWithFlags(&exec, over, 0), CUDA_SUCCESS);
	CHECK_EQUAL(cuGraphLaunch(exec, NULL), CUDA_ERROR_OUT_OF_MEMORY);
	CHECK_EQUAL(rig_charged(0) + rig_charged(1) + fakeUsedBytes(0) + fakeUsedBytes(1), 0);
	within = graph_that_allocates(2 * MIB, 0);
	graph_add_alloc(within, 2 * GIB, (CUmemLocation){.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 1});
	graph_add_alloc(within, 512 * MIB,
		(CUmemLocation){.type = CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN, .localized = {.deviceId = 1}});
	graph_add_alloc(within, 8 * GIB, (CUmemLocation){.type = CU_MEM_LOCATION_TYPE_HOST});
	CHECK_EQUAL(cuGraphInstantiateWithFlags(&exec, within, 0), CUDA_SUCCESS);
	CHECK_EQUAL(cuGraphLaunch(exec, NULL), CUDA_SUCCESS);
	CHECK_EQUAL(rig_charged(0), 2 * MIB);
	CHECK_EQUAL(rig_charged(1), 2 * GIB + 512 * MIB);
	CHECK_EQUAL(fakeUsedBytes(1), 2 * GIB + 512 * MIB);
	CHECK_EQUAL(cuDeviceGraphMemTrim(1), CUDA_SUCCESS);
	CHECK_EQUAL(rig_charged(1), 0);
	CHECK_EQUAL(cuGraphExecDestroy(exec), CUDA_SUCCESS);
}

/* What one graph has in use is not there for another; what it was freed of is. */
static void graphs_that_have_their_memory_at_once_need_it_at_once(void)
{
	CUDA_MEM_ALLOC_NODE_PARAMS params = {
		.bytesize = 600 * MIB, .poolProps.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
	CUgraphExec first, second;
	CUgraphNode node;
	CUgraph graph;

	rig_begin(GIB);
	CHECK_EQUAL(cuGraphCreate(&graph, 0), CUDA_SUCCESS);
	CHECK_EQUAL(cuGraphAddMemAllocNode(&node, graph, NULL, 0, &params), CUDA_SUCCESS);
	CHECK_EQUAL(cuGraphInstantiateWithFlags(&first, graph, 0), CUDA_SUCCESS);
	CHECK_EQUAL(cuGraphInstantiateWithFlags(&second, graph_that_allocates(600 * MIB, 0), 0), CUDA_SUCCESS);
	CHECK_EQUAL(cuGraphLaunch(first, NULL), CUDA_SUCCESS);
	CHECK_EQUAL(cuGraphLaunch(second, NULL), CUDA_ERROR_OUT_OF_MEMORY);
	CHECK_EQUAL(cuGraphLaunch(first, NULL), CUDA_SUCCESS); /* again in its own */
	rig_exact(600 * MIB);
	CHECK_EQUAL(cuMemFree_v2(params.dptr), CUDA_SUCCESS);
	CHECK_EQUAL(cuGraphLaunch(second, NULL), CUDA_SUCCESS);
	rig_exact(600 * MIB);
	CHECK_EQUAL(cuGraphLaunch(first, NULL), CUDA_ERROR_OUT_OF_MEMORY); /* it has none any more */
	rig_exact(600 * MIB);
}

static void a_graph_of_any_depth_is_looked_into(void)
{
	CUgraph graph, outer;
	CUgraphExec exec;
	CUgraphNode node;
	CUdeviceptr a;

	rig_begin(GIB);
	graph = graph_that_allocates(5 * GIB, 0);
	for (int depth = 0; depth < 300; depth++) {
		CHECK_EQUAL(cuGraphCreate(&outer, 0), CUDA_SUCCESS);
		CHECK_EQUAL(cuGraphAddChildGraphNode(&node, outer, NULL, 0, graph), CUDA_SUCCESS);
		CHECK_EQUAL(cuGraphDestroy(graph), CUDA_SUCCESS); /* the child is a copy */
		graph = outer;
	}
	CHECK_EQUAL(cuGraphInstantiateWithFlags(&exec, graph, 0), CUDA_SUCCESS);
	CHECK_EQUAL(cuGraphLaunch(exec, NULL), CUDA_ERROR_OUT_OF_MEMORY);
	rig_exact(0);
	CHECK_EQUAL(cuMemAlloc_v2(&a, GIB), CUDA_SUCCESS);
}

static void a_graph_that_allocates_in_an_unknown_place_is_refused(void)
{
	CUgraphExec exec;
	CUgraph graph;

	rig_begin(GIB);
	CHECK_EQUAL(cuGraphCreate(&graph, 0), CUDA_SUCCESS);
	graph_add_alloc(graph, 5 * GIB, (CUmemLocation){.type = (CUmemLocationType)77});
	CHECK_EQUAL(cuGraphInstantiateWithFlags(&exec, graph, 0), CUDA_ERROR_OUT_OF_MEMORY);
	rig_exact(0);
}

static void what_is_only_recorded_takes_no_room(void)
{
	CUgraphExec exec;
	CUstream stream;
	CUgraph graph;
	CUdeviceptr a;

	rig_begin(GIB);
	CHECK_EQUAL(cuStreamCreate(&stream, 0), CUDA_SUCCESS);
	CHECK_EQUAL(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
	CHECK_EQUAL(cuMemAllocAsync(&a, 2 * GIB, stream), CUDA_SUCCESS); /* the driver's answer: it is not taken yet */
	CHECK_EQUAL(cuStreamEndCapture(stream, &graph), CUDA_SUCCESS);
	CHECK_EQUAL(cuGraphInstantiateWithFlags(&exec, graph, 0), CUDA_SUCCESS);
	rig_exact(0);
	CHECK_EQUAL(cuGraphLaunch(exec, stream), CUDA_ERROR_OUT_OF_MEMORY);
	rig_exact(0);
}

static void a_captured_allocation_is_charged_when_its_graph_runs(void)
{
	CUstream stream, other;
	CUgraphExec exec;
	CUgraph graph;
	CUdeviceptr a, b;

	rig_begin(GIB);
	CHECK_EQUAL(cuStreamCreate(&stream, 0), CUDA_SUCCESS);
	CHECK_EQUAL(cuStreamCreate(&other, 0), CUDA_SUCCESS);
	CHECK_EQUAL(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
	CHECK_EQUAL(cuMemAllocAsync(&a, 64 * MIB, stream), CUDA_SUCCESS);
	CHECK_EQUAL(cuMemAllocAsync(&b, 2 * GIB, other), CUDA_ERROR_OUT_OF_MEMORY); /* this one is not recorded */
	CHECK_EQUAL(cuStreamEndCapture(stream, &graph), CUDA_SUCCESS);
	rig_exact(0);
	CHECK_EQUAL(cuGraphInstantiate_v2(&exec, graph, NULL, NULL, 0), CUDA_SUCCESS);
	CHECK_EQUAL(cuGraphLaunch(exec, stream), CUDA_SUCCESS);
	rig_exact(64 * MIB);
}

int main(int argc, char **argv)
{
	static const struct test tests[] = {
		TEST(graphs_are_charged_what_the_device_keeps_for_them),
		TEST(a_graph_within_a_graph_is_charged_too),
		TEST(a_graph_is_charged_when_it_is_uploaded),
		TEST(a_graph_is_charged_where_it_allocates),
		TEST(each_device_of_a_graph_is_asked),
		TEST(graphs_that_have_their_memory_at_once_need_it_at_once),
		TEST(a_graph_of_any_depth_is_looked_into),
		TEST(a_graph_that_allocates_in_an_unknown_place_is_refused),
		TEST(what_is_only_recorded_takes_no_room),
		TEST(a_captured_allocation_is_charged_when_its_graph_runs),
	};
	return RUN_TESTS(tests, argc, argv);
}
