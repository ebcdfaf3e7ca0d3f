/* graph.c: graphs. A launch of one is paid for like a kernel of its own cost. What its nodes allocate is taken by the
 * driver when it is launched and kept by the device until it is trimmed, so it is reserved before a launch and the
 * charge corrected afterwards to what the device says it keeps for graphs.
 */
#define _GNU_SOURCE
#include <sys/mman.h>

#include "charge.h"
#include "limiter.h"
#include "quota.h"

enum { GRAPH_DEPTH = 8 }; /* graphs within graphs that are looked into */
#define GRAPH_PIECE (UINT64_C(2) << 20)

static uint64_t graph_bytes(CUgraph graph, int depth);

static uint64_t node_bytes(CUgraphNode node, int depth)
{
	CUDA_MEM_ALLOC_NODE_PARAMS params;
	CUgraphNodeType type;
	CUgraph child;

	if (driver.cuGraphNodeGetType(node, &type) != CUDA_SUCCESS)
		return 0;
	if (type == CU_GRAPH_NODE_TYPE_MEM_ALLOC && driver.cuGraphMemAllocNodeGetParams != NULL &&
		driver.cuGraphMemAllocNodeGetParams(node, &params) == CUDA_SUCCESS)
		return quota_round_up(params.bytesize, GRAPH_PIECE);
	if (type == CU_GRAPH_NODE_TYPE_GRAPH && depth < GRAPH_DEPTH && driver.cuGraphChildGraphNodeGetGraph != NULL &&
		driver.cuGraphChildGraphNodeGetGraph(node, &child) == CUDA_SUCCESS)
		return graph_bytes(child, depth + 1);
	return 0;
}

/* At most what a graph allocates: one that frees in between needs less. */
static uint64_t graph_bytes(CUgraph graph, int depth)
{
	CUgraphNode *nodes;
	size_t count = 0, room;
	uint64_t bytes = 0;

	if (driver.cuGraphGetNodes == NULL || driver.cuGraphNodeGetType == NULL ||
		driver.cuGraphGetNodes(graph, NULL, &count) != CUDA_SUCCESS || count == 0)
		return 0;
	room = count * sizeof(*nodes);
	nodes = mmap(NULL, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (nodes == MAP_FAILED)
		return 0;
	if (driver.cuGraphGetNodes(graph, nodes, &count) == CUDA_SUCCESS)
		for (size_t i = 0; i < count; i++)
			bytes = quota_add(bytes, node_bytes(nodes[i], depth));
	munmap(nodes, room);
	return bytes;
}

static CUresult instantiated(CUresult result, const CUgraphExec *exec, CUgraph graph)
{
	struct shim *shim = charge_nested ? NULL : shim_get();
	struct table_entry entry = {0};

	if (result != CUDA_SUCCESS || shim == NULL || exec == NULL)
		return result;
	entry.bytes = graph_bytes(graph, 0);
	if (entry.bytes == 0)
		return result;
	entry.key = (uint64_t)(uintptr_t)*exec;
	(void)table_put(&shim->graphs, &entry);
	return result;
}

CUresult cuGraphInstantiate(
	CUgraphExec *phGraphExec, CUgraph hGraph, CUgraphNode *phErrorNode, char *logBuffer, size_t bufferSize)
{
	REAL(cuGraphInstantiate);
	return instantiated(driver.cuGraphInstantiate(phGraphExec, hGraph, phErrorNode, logBuffer, bufferSize),
		phGraphExec, hGraph);
}

CUresult cuGraphInstantiate_v2(
	CUgraphExec *phGraphExec, CUgraph hGraph, CUgraphNode *phErrorNode, char *logBuffer, size_t bufferSize)
{
	REAL(cuGraphInstantiate_v2);
	return instantiated(driver.cuGraphInstantiate_v2(phGraphExec, hGraph, phErrorNode, logBuffer, bufferSize),
		phGraphExec, hGraph);
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec *phGraphExec, CUgraph hGraph, unsigned long long flags)
{
	REAL(cuGraphInstantiateWithFlags);
	return instantiated(driver.cuGraphInstantiateWithFlags(phGraphExec, hGraph, flags), phGraphExec, hGraph);
}

CUresult cuGraphInstantiateWithParams(
	CUgraphExec *phGraphExec, CUgraph hGraph, CUDA_GRAPH_INSTANTIATE_PARAMS *instantiateParams)
{
	REAL(cuGraphInstantiateWithParams);
	return instantiated(
		driver.cuGraphInstantiateWithParams(phGraphExec, hGraph, instantiateParams), phGraphExec, hGraph);
}

CUresult cuGraphInstantiateWithParams_ptsz(
	CUgraphExec *phGraphExec, CUgraph hGraph, CUDA_GRAPH_INSTANTIATE_PARAMS *instantiateParams)
{
	REAL(cuGraphInstantiateWithParams_ptsz);
	return instantiated(
		driver.cuGraphInstantiateWithParams_ptsz(phGraphExec, hGraph, instantiateParams), phGraphExec, hGraph);
}

/* Bring the charge for graphs on the current device to what it keeps for them; `reserved` is given back. */
static void graphs_settle(struct shim *shim, int row, CUdevice device, uint64_t reserved)
{
	cuuint64_t held = 0;
	uint64_t charged;

	if (driver.cuDeviceGetGraphMemAttribute == NULL ||
		driver.cuDeviceGetGraphMemAttribute(device, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, &held) !=
			CUDA_SUCCESS) {
		atomic_fetch_add(&shim->graph_charges[row], reserved); /* unknown: what was reserved stays */
		return;
	}
	charged = quota_add(atomic_exchange(&shim->graph_charges[row], held), reserved);
	if (held > charged)
		charge_force(shim, row, held - charged);
	else
		charge_give(shim, row, charged - held);
}

struct graph_launch {
	struct launch launch;
	struct charge charge;
	CUdevice device;
	bool allocates;
};

static bool graph_begin(struct graph_launch *graph, CUgraphExec exec, CUstream stream, bool per_thread)
{
	struct shim *shim = charge_nested ? NULL : shim_get();
	struct table_entry entry;

	graph->allocates = shim != NULL && table_get(&shim->graphs, (uint64_t)(uintptr_t)exec, &entry) &&
			   driver.cuCtxGetDevice != NULL && driver.cuCtxGetDevice(&graph->device) == CUDA_SUCCESS;
	if (graph->allocates) {
		const int row = shim_row_of_device(shim, graph->device);
		const uint64_t kept = row >= 0 ? atomic_load(&shim->graph_charges[row]) : 0;

		if (!charge_begin_on(&graph->charge, shim, row, entry.bytes > kept ? entry.bytes - kept : 0))
			return false;
	}
	graph->launch = (struct launch){0};
	if (!launch_is_free())
		limiter_enter(&graph->launch, (uint64_t)(uintptr_t)exec, stream, per_thread);
	return true;
}

static CUresult graph_end(struct graph_launch *graph, CUresult result)
{
	(void)limiter_leave(&graph->launch, result);
	if (graph->allocates && graph->charge.shim != NULL) {
		charge_nested--;
		graphs_settle(graph->charge.shim, graph->charge.row, graph->device, graph->charge.bytes);
	}
	return result;
}

CUresult cuGraphLaunch(CUgraphExec hGraphExec, CUstream hStream)
{
	struct graph_launch graph;

	REAL(cuGraphLaunch);
	if (!graph_begin(&graph, hGraphExec, hStream, false))
		return CUDA_ERROR_OUT_OF_MEMORY;
	return graph_end(&graph, driver.cuGraphLaunch(hGraphExec, hStream));
}

CUresult cuGraphLaunch_ptsz(CUgraphExec hGraphExec, CUstream hStream)
{
	struct graph_launch graph;

	REAL(cuGraphLaunch_ptsz);
	if (!graph_begin(&graph, hGraphExec, hStream, true))
		return CUDA_ERROR_OUT_OF_MEMORY;
	return graph_end(&graph, driver.cuGraphLaunch_ptsz(hGraphExec, hStream));
}

CUresult cuGraphExecDestroy(CUgraphExec hGraphExec)
{
	struct shim *shim = charge_nested ? NULL : shim_get();
	struct table_entry entry;

	REAL(cuGraphExecDestroy);
	if (shim != NULL) {
		(void)table_take(&shim->graphs, (uint64_t)(uintptr_t)hGraphExec, &entry);
		cost_forget(shim, (uint64_t)(uintptr_t)hGraphExec); /* before another has its address */
	}
	return driver.cuGraphExecDestroy(hGraphExec);
}

CUresult cuDeviceGraphMemTrim(CUdevice device)
{
	struct shim *shim = charge_nested ? NULL : shim_get();
	const int row = shim != NULL ? shim_row_of_device(shim, device) : ROW_NONE;
	CUresult result;

	REAL(cuDeviceGraphMemTrim);
	result = driver.cuDeviceGraphMemTrim(device);
	if (result == CUDA_SUCCESS && row >= 0)
		graphs_settle(shim, row, device, 0);
	return result;
}
