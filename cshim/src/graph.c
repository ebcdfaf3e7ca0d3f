/* graph.c: graphs. A launch of one is paid for like a kernel of its own cost. What its nodes allocate is taken by the
 * driver when it is launched and kept by the device until it is trimmed, so it is reserved before a launch and the
 * charge corrected afterwards to what the device says it keeps for graphs.
 */
#define _GNU_SOURCE
#include <sys/mman.h>

#include "charge.h"
#include "graph.h"
#include "limiter.h"
#include "quota.h"

enum { GRAPH_POINTERS = 16 };
#define GRAPH_PIECE (UINT64_C(2) << 20)

/* What a graph's nodes allocate on each device, at most: one that frees in between needs less. */
struct graph_need {
	uint64_t bytes[GRANT_DEVICES];
	uint32_t rows; /* a bit for each that is above zero */
	uint32_t pointers;
	CUdeviceptr pointer[GRAPH_POINTERS]; /* of its first allocations: by these it is seen that they are freed */
	bool launched;                       /* and has its memory since, which serves it again */
	bool refused; /* it allocates where this container may not, or could not be looked into */
};

/* Graphs that are still to be looked into: any number, however deep they lie within each other. */
struct graph_list {
	CUgraph *graphs;
	size_t count, room;
};

static void *memory_new(size_t bytes)
{
	void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	return memory == MAP_FAILED ? NULL : memory;
}

static bool list_add(struct graph_list *list, CUgraph graph)
{
	if (list->count == list->room) {
		const size_t room = list->room == 0 ? 512 : list->room * 2;
		CUgraph *larger = memory_new(room * sizeof(*larger));

		if (larger == NULL)
			return false;
		for (size_t i = 0; i < list->count; i++)
			larger[i] = list->graphs[i];
		if (list->graphs != NULL)
			munmap(list->graphs, list->room * sizeof(*larger));
		list->graphs = larger;
		list->room = room;
	}
	list->graphs[list->count++] = graph;
	return true;
}

static void need_add(struct graph_need *need, int row, uint64_t bytes, CUdeviceptr pointer)
{
	need->refused |= row == ROW_DENIED;
	if (row < 0)
		return;
	need->bytes[row] = quota_add(need->bytes[row], quota_round_up(bytes, GRAPH_PIECE));
	need->rows |= need->bytes[row] > 0 ? 1u << row : 0;
	if (need->pointers < GRAPH_POINTERS)
		need->pointer[need->pointers++] = pointer;
}

static bool node_look(struct shim *shim, struct graph_need *need, struct graph_list *list, CUgraphNode node)
{
	CUDA_MEM_ALLOC_NODE_PARAMS params;
	CUgraphNodeType type;
	CUgraph child;

	if (driver.cuGraphNodeGetType(node, &type) != CUDA_SUCCESS)
		return true;
	if (type == CU_GRAPH_NODE_TYPE_MEM_ALLOC && driver.cuGraphMemAllocNodeGetParams != NULL &&
		driver.cuGraphMemAllocNodeGetParams(node, &params) == CUDA_SUCCESS)
		need_add(need, shim_row_of_location(shim, &params.poolProps.location), params.bytesize, params.dptr);
	return type != CU_GRAPH_NODE_TYPE_GRAPH || driver.cuGraphChildGraphNodeGetGraph == NULL ||
	       driver.cuGraphChildGraphNodeGetGraph(node, &child) != CUDA_SUCCESS || list_add(list, child);
}

static bool graph_look(struct shim *shim, struct graph_need *need, struct graph_list *list, CUgraph graph)
{
	CUgraphNode *nodes;
	size_t count = 0, room;
	bool looked = true;

	if (driver.cuGraphGetNodes(graph, NULL, &count) != CUDA_SUCCESS || count == 0)
		return true;
	room = count * sizeof(*nodes);
	nodes = memory_new(room);
	if (nodes == NULL)
		return false;
	if (driver.cuGraphGetNodes(graph, nodes, &count) == CUDA_SUCCESS)
		for (size_t i = 0; i < count && looked; i++)
			looked = node_look(shim, need, list, nodes[i]);
	munmap(nodes, room);
	return looked;
}

/* Before it is known under a handle: what it needs. */
static struct graph_need graph_need_of(struct shim *shim, CUgraph graph)
{
	struct graph_list list = {0};
	struct graph_need need = {0};

	if (shim == NULL || driver.cuGraphGetNodes == NULL || driver.cuGraphNodeGetType == NULL)
		return need;
	need.refused = !list_add(&list, graph);
	while (list.count > 0 && !need.refused)
		need.refused |= !graph_look(shim, &need, &list, list.graphs[--list.count]);
	if (list.graphs != NULL)
		munmap(list.graphs, list.room * sizeof(*list.graphs));
	return need;
}

static bool graphs_ask(const struct shim *shim, CUdevice device, CUgraphMem_attribute attribute, cuuint64_t *value)
{
	struct relaxed relaxed;
	bool told;

	if (driver.cuDeviceGetGraphMemAttribute == NULL || !shim_may_ask(shim))
		return false;
	relaxed = shim_relax();
	told = driver.cuDeviceGetGraphMemAttribute(device, attribute, value) == CUDA_SUCCESS;
	shim_restore(relaxed);
	return told;
}

/* Bring the charge for graphs on a device to what it keeps for them; `reserved` is given back. */
static void graphs_settle(struct shim *shim, int row, CUdevice device, uint64_t reserved)
{
	cuuint64_t held = 0;
	uint64_t charged;

	if (!graphs_ask(shim, device, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, &held)) {
		atomic_fetch_add(&shim->graph_charges[row], reserved); /* unknown: what was reserved stays */
		return;
	}
	charged = quota_add(atomic_exchange(&shim->graph_charges[row], held), reserved);
	if (held > charged)
		charge_force(shim, row, held - charged);
	else
		charge_give(shim, row, charged - held);
}

/* Room for a graph's memory on each of its devices, beyond what they keep for graphs already. */
struct graph_charge {
	struct shim *shim; /* NULL: it allocates nothing that counts */
	uint32_t rows;
	uint64_t reserved[GRANT_DEVICES];
};

static void graph_give_back(struct graph_charge *taking)
{
	for (int row = 0; row < (int)GRANT_DEVICES; row++)
		if (taking->reserved[row] > 0)
			charge_give(taking->shim, row, taking->reserved[row]);
}

static CUdevice device_of_row(const struct shim *shim, int row)
{
	CUdevice device = 0;

	while (device < shim->device_count && shim->rows[device] != row)
		device++;
	return device;
}

/* What a device keeps for graphs and this one may have: its own memory of the last launch, or what no other graph uses.
 */
static uint64_t kept_for(struct shim *shim, const struct graph_need *need, int row)
{
	const uint64_t kept = atomic_load(&shim->graph_charges[row]);
	cuuint64_t used;

	if (need->launched || kept == 0 ||
		!graphs_ask(shim, device_of_row(shim, row), CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT, &used))
		return kept;
	return quota_left(used, kept);
}

static bool graph_reserve(struct graph_charge *taking, struct shim *shim, const struct graph_need *need)
{
	taking->shim = shim != NULL && need->rows != 0 ? shim : NULL;
	taking->rows = need->rows;
	if (shim != NULL && need->refused)
		return false;
	if (taking->shim == NULL)
		return true;
	for (int row = 0; row < (int)GRANT_DEVICES; row++)
		taking->reserved[row] = 0;
	for (int row = 0; row < (int)GRANT_DEVICES; row++) {
		const uint64_t more =
			need->bytes[row] > 0 ? quota_left(kept_for(shim, need, row), need->bytes[row]) : 0;

		if (need->rows >> row == 0)
			break;
		if (more > 0 && !charge_take(shim, row, more)) {
			graph_give_back(taking);
			return false;
		}
		taking->reserved[row] = more;
	}
	charge_nested = 1;
	return true;
}

static void graph_settle(struct graph_charge *taking)
{
	struct shim *shim = taking->shim;

	if (shim == NULL)
		return;
	charge_nested = 0;
	for (CUdevice device = 0; device < shim->device_count; device++) {
		const int row = shim_row_of_device(shim, device);

		if (row >= 0 && taking->rows >> row & 1)
			graphs_settle(shim, row, device, taking->reserved[row]);
	}
}

/* An executable graph and its devices have an entry, and each device one with the bytes. Handles have less than 56
 * bits. */
static uint64_t need_key(CUgraphExec exec, int row)
{
	return (uint64_t)(uintptr_t)exec | (uint64_t)(row + 1) << 56;
}

static CUresult instantiated(CUresult result, const CUgraphExec *exec, const struct graph_need *need)
{
	struct shim *shim = charge_nested ? NULL : shim_get();
	struct table_entry entry = {.tag = need->rows};
	bool put = true;

	if (result != CUDA_SUCCESS || shim == NULL || exec == NULL || need->rows == 0)
		return result;
	entry.key = (uint64_t)(uintptr_t)*exec;
	put = table_put(&shim->graphs, &entry);
	for (int row = 0; row < (int)GRANT_DEVICES; row++) {
		entry = (struct table_entry){.key = need_key(*exec, row), .bytes = need->bytes[row]};
		if (entry.bytes > 0)
			put &= table_put(&shim->graphs, &entry);
	}
	for (uint32_t i = 0; i < need->pointers; i++) {
		entry = (struct table_entry){.key = need->pointer[i], .scope = (uint64_t)(uintptr_t)*exec};
		put &= table_put(&shim->graph_pointers, &entry);
	}
	if (put)
		return result;
	(void)driver.cuGraphExecDestroy(*exec);
	return CUDA_ERROR_OUT_OF_MEMORY;
}

#define INSTANTIATE(symbol, ...)                                                                                       \
	struct shim *shim = SHIM_HERE();                                                                               \
	struct graph_need need;                                                                                        \
                                                                                                                       \
	REAL(symbol);                                                                                                  \
	need = graph_need_of(shim, hGraph);                                                                            \
	if (need.refused)                                                                                              \
		return CUDA_ERROR_OUT_OF_MEMORY;                                                                       \
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
		struct shim *shim = SHIM_HERE();                                                                       \
		const bool uploads =                                                                                   \
			instantiateParams != NULL && instantiateParams->flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD;    \
		const struct graph_need need = graph_need_of(shim, hGraph);                                            \
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
	struct graph_need need = {0};
	struct table_entry entry;

	if (shim == NULL || !table_get(&shim->graphs, (uint64_t)(uintptr_t)exec, &entry))
		return need;
	need.rows = entry.tag;
	need.launched = entry.scope != 0;
	for (int row = 0; need.rows >> row != 0; row++)
		if (need.rows >> row & 1 && table_get(&shim->graphs, need_key(exec, row), &entry))
			need.bytes[row] = entry.bytes;
	return need;
}

/* Memory comes to a graph when it is uploaded, else when it is launched. */
#define UPLOAD(symbol)                                                                                                 \
	CUresult symbol(CUgraphExec hGraphExec, CUstream hStream)                                                      \
	{                                                                                                              \
		struct shim *shim = SHIM_HERE();                                                                       \
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
	CUgraphExec exec;
};

/* Note whether a graph has its memory. */
static void graph_note(struct shim *shim, uint64_t exec, bool launched)
{
	struct table_entry entry;

	if (table_get(&shim->graphs, exec, &entry) && (entry.scope != 0) != launched) {
		entry.scope = launched;
		(void)table_put(&shim->graphs, &entry); /* into the place that it has */
	}
}

void graph_freed(struct shim *shim, CUdeviceptr pointer)
{
	struct table_entry entry;

	if (table_get(&shim->graph_pointers, pointer, &entry))
		graph_note(shim, entry.scope, false);
}

static bool graph_begin(struct graph_launch *graph, CUgraphExec exec, CUstream stream, bool per_thread)
{
	struct shim *shim = charge_nested ? NULL : shim_get();
	const struct graph_need need = exec_need(shim, exec);

	if (!graph_reserve(&graph->taking, shim, &need))
		return false;
	graph->launch = (struct launch){0};
	graph->exec = exec;
	if (!launch_is_free(stream))
		limiter_enter(&graph->launch, (struct work){.key = (uint64_t)(uintptr_t)exec}, stream, per_thread);
	return true;
}

static CUresult graph_end(struct graph_launch *graph, CUresult result)
{
	(void)limiter_leave(&graph->launch, result);
	if (graph->taking.shim != NULL && result == CUDA_SUCCESS)
		graph_note(graph->taking.shim, (uint64_t)(uintptr_t)graph->exec, true);
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
	struct shim *shim = SHIM_HERE();
	struct table_entry entry;

	REAL(cuGraphExecDestroy);
	if (shim != NULL) {
		while (table_take_scope(&shim->graph_pointers, (uint64_t)(uintptr_t)hGraphExec, &entry))
			;
		if (table_take(&shim->graphs, (uint64_t)(uintptr_t)hGraphExec, &entry))
			for (int row = 0; row < (int)GRANT_DEVICES; row++)
				(void)table_take(&shim->graphs, need_key(hGraphExec, row), &entry);
		cost_forget(shim, (uint64_t)(uintptr_t)hGraphExec, 0); /* before another has its address */
	}
	return driver.cuGraphExecDestroy(hGraphExec);
}

CUresult cuDeviceGraphMemTrim(CUdevice device)
{
	struct shim *shim = SHIM_HERE();
	const int row = shim != NULL ? shim_row_of_device(shim, device) : ROW_NONE;
	CUresult result;

	REAL(cuDeviceGraphMemTrim);
	result = driver.cuDeviceGraphMemTrim(device);
	if (result == CUDA_SUCCESS && row >= 0)
		graphs_settle(shim, row, device, 0);
	return result;
}
