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

/* What a graph's nodes allocate, at most: one that frees in between needs less. */
struct graph_need {
	uint64_t bytes;
	CUdevice device; /* of the first of them */
};

static void graph_need_add(struct graph_need *need, CUgraph graph, int depth);

static void node_need_add(struct graph_need *need, CUgraphNode node, int depth)
{
	CUDA_MEM_ALLOC_NODE_PARAMS params;
	CUgraphNodeType type;
	CUgraph child;

	if (driver.cuGraphNodeGetType(node, &type) != CUDA_SUCCESS)
		return;
	if (type == CU_GRAPH_NODE_TYPE_MEM_ALLOC && driver.cuGraphMemAllocNodeGetParams != NULL &&
		driver.cuGraphMemAllocNodeGetParams(node, &params) == CUDA_SUCCESS) {
		if (need->bytes == 0)
			need->device = params.poolProps.location.id;
		need->bytes = quota_add(need->bytes, quota_round_up(params.bytesize, GRAPH_PIECE));
	}
	if (type == CU_GRAPH_NODE_TYPE_GRAPH && depth < GRAPH_DEPTH && driver.cuGraphChildGraphNodeGetGraph != NULL &&
		driver.cuGraphChildGraphNodeGetGraph(node, &child) == CUDA_SUCCESS)
		graph_need_add(need, child, depth + 1);
}

static void graph_need_add(struct graph_need *need, CUgraph graph, int depth)
{
	CUgraphNode *nodes;
	size_t count = 0, room;

	if (driver.cuGraphGetNodes == NULL || driver.cuGraphNodeGetType == NULL ||
		driver.cuGraphGetNodes(graph, NULL, &count) != CUDA_SUCCESS || count == 0)
		return;
	room = count * sizeof(*nodes);
	nodes = mmap(NULL, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (nodes == MAP_FAILED)
		return;
	if (driver.cuGraphGetNodes(graph, nodes, &count) == CUDA_SUCCESS)
		for (size_t i = 0; i < count; i++)
			node_need_add(need, nodes[i], depth);
	munmap(nodes, room);
}

/* Bring the charge for graphs on a device to what it keeps for them; `reserved` is given back. */
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

/* Room for a graph's memory, beyond what its device keeps for graphs already. */
struct graph_charge {
	struct charge charge;
	CUdevice device;
};

static bool graph_reserve(struct graph_charge *taking, struct shim *shim, const struct graph_need *need)
{
	const int row = shim != NULL && need->bytes > 0 ? shim_row_of_device(shim, need->device) : ROW_NONE;
	const uint64_t kept = row >= 0 ? atomic_load(&shim->graph_charges[row]) : 0;

	taking->device = need->device;
	return charge_begin_on(&taking->charge, shim, row, need->bytes > kept ? need->bytes - kept : 0);
}

/* A graph may allocate on several devices: each is asked. */
static void graph_settle(struct graph_charge *taking)
{
	struct shim *shim = taking->charge.shim;

	if (shim == NULL)
		return;
	charge_nested--;
	graphs_settle(shim, taking->charge.row, taking->device, taking->charge.bytes);
	for (CUdevice device = 0; device < shim->device_count; device++) {
		const int row = shim_row_of_device(shim, device);

		if (row >= 0 && row != taking->charge.row)
			graphs_settle(shim, row, device, 0);
	}
}

/* Before it is known under a handle: what it needs. */
static struct graph_need graph_need_of(CUgraph graph)
{
	struct graph_need need = {0};

	if (!charge_nested && shim_get() != NULL)
		graph_need_add(&need, graph, 0);
	return need;
}

static CUresult instantiated(CUresult result, const CUgraphExec *exec, const struct graph_need *need)
{
	struct shim *shim = charge_nested ? NULL : shim_get();
	struct table_entry entry = {.bytes = need->bytes, .tag = (uint32_t)need->device};

	if (result != CUDA_SUCCESS || shim == NULL || exec == NULL || need->bytes == 0)
		return result;
	entry.key = (uint64_t)(uintptr_t)*exec;
	(void)table_put(&shim->graphs, &entry);
	return result;
}

#define INSTANTIATE(symbol, ...)                                                                                       \
	struct graph_need need;                                                                                        \
                                                                                                                       \
	REAL(symbol);                                                                                                  \
	need = graph_need_of(hGraph);                                                                                  \
	return instantiated(driver.symbol(__VA_ARGS__), phGraphExec, &need)

CUresult cuGraphInstantiate(
	CUgraphExec *phGraphExec, CUgraph hGraph, CUgraphNode *phErrorNode, char *logBuffer, size_t bufferSize)
{
	INSTANTIATE(cuGraphInstantiate, phGraphExec, hGraph, phErrorNode, logBuffer, bufferSize);
}

CUresult cuGraphInstantiate_v2(
	CUgraphExec *phGraphExec, CUgraph hGraph, CUgraphNode *phErrorNode, char *logBuffer, size_t bufferSize)
{
	INSTANTIATE(cuGraphInstantiate_v2, phGraphExec, hGraph, phErrorNode, logBuffer, bufferSize);
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec *phGraphExec, CUgraph hGraph, unsigned long long flags)
{
	INSTANTIATE(cuGraphInstantiateWithFlags, phGraphExec, hGraph, flags);
}

/* This one may upload the graph at once. */
#define INSTANTIATE_WITH_PARAMS(symbol)                                                                                \
	CUresult symbol(CUgraphExec *phGraphExec, CUgraph hGraph, CUDA_GRAPH_INSTANTIATE_PARAMS *instantiateParams)    \
	{                                                                                                              \
		struct shim *shim = charge_nested ? NULL : shim_get();                                                 \
		const bool uploads =                                                                                   \
			instantiateParams != NULL && instantiateParams->flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD;    \
		const struct graph_need need = graph_need_of(hGraph);                                                  \
		struct graph_charge taking;                                                                            \
		CUresult result;                                                                                       \
                                                                                                                       \
		REAL(symbol);                                                                                          \
		if (!graph_reserve(&taking, uploads ? shim : NULL, &need))                                             \
			return CUDA_ERROR_OUT_OF_MEMORY;                                                               \
		result = driver.symbol(phGraphExec, hGraph, instantiateParams);                                        \
		graph_settle(&taking);                                                                                 \
		return instantiated(result, phGraphExec, &need);                                                       \
	}

INSTANTIATE_WITH_PARAMS(cuGraphInstantiateWithParams)
INSTANTIATE_WITH_PARAMS(cuGraphInstantiateWithParams_ptsz)

/* What an executable graph needs, as it was when it was made. */
static struct graph_need exec_need(struct shim *shim, CUgraphExec exec)
{
	struct table_entry entry;

	if (shim == NULL || !table_get(&shim->graphs, (uint64_t)(uintptr_t)exec, &entry))
		return (struct graph_need){0};
	return (struct graph_need){.bytes = entry.bytes, .device = (CUdevice)entry.tag};
}

/* Memory comes to a graph when it is uploaded, else when it is launched. */
#define UPLOAD(symbol)                                                                                                 \
	CUresult symbol(CUgraphExec hGraphExec, CUstream hStream)                                                      \
	{                                                                                                              \
		struct shim *shim = charge_nested ? NULL : shim_get();                                                 \
		const struct graph_need need = exec_need(shim, hGraphExec);                                            \
		struct graph_charge taking;                                                                            \
		CUresult result;                                                                                       \
                                                                                                                       \
		REAL(symbol);                                                                                          \
		if (!graph_reserve(&taking, shim, &need))                                                              \
			return CUDA_ERROR_OUT_OF_MEMORY;                                                               \
		result = driver.symbol(hGraphExec, hStream);                                                           \
		graph_settle(&taking);                                                                                 \
		return result;                                                                                         \
	}

UPLOAD(cuGraphUpload)
UPLOAD(cuGraphUpload_ptsz)

struct graph_launch {
	struct launch launch;
	struct graph_charge taking;
};

static bool graph_begin(struct graph_launch *graph, CUgraphExec exec, CUstream stream, bool per_thread)
{
	struct shim *shim = charge_nested ? NULL : shim_get();
	const struct graph_need need = exec_need(shim, exec);

	if (!graph_reserve(&graph->taking, shim, &need))
		return false;
	graph->launch = (struct launch){0};
	if (!launch_is_free(stream))
		limiter_enter(&graph->launch, (struct work){.key = (uint64_t)(uintptr_t)exec}, stream, per_thread);
	return true;
}

static CUresult graph_end(struct graph_launch *graph, CUresult result)
{
	(void)limiter_leave(&graph->launch, result);
	graph_settle(&graph->taking);
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
		cost_forget(shim, (uint64_t)(uintptr_t)hGraphExec, 0); /* before another has its address */
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
