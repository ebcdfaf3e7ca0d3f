/* graph.c: graphs. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdlib.h>

#include "driver.h"

struct CUgraphNode_st {
	CUgraphNodeType type;
	uint64_t ns;
	uint64_t bytes;
	CUmemLocation location; /* where it allocates */
	CUdeviceptr dptr;
	struct CUgraph_st *child;
	struct CUgraphNode_st *next;
};

struct CUgraph_st {
	struct CUgraphNode_st *nodes;
	size_t count;
};

enum { POINTERS = 8 };

struct CUgraphExec_st {
	uint64_t ns;
	uint64_t bytes[FAKE_DEVICES]; /* by card */
	bool in_use;                  /* launched, and not freed since; the next launch frees it first */
	unsigned trims;
	CUdeviceptr pointers[POINTERS]; /* of its first allocations */
	int pointer_count;
	struct CUgraphExec_st *next;
};

static struct CUgraphExec_st *execs;
static pthread_mutex_t exec_lock = PTHREAD_MUTEX_INITIALIZER;

static struct CUgraphNode_st *node_add(struct CUgraph_st *graph, CUgraphNodeType type)
{
	struct CUgraphNode_st *node = calloc(1, sizeof(*node));

	if (node == NULL)
		abort();
	node->type = type;
	node->next = graph->nodes;
	graph->nodes = node;
	graph->count++;
	return node;
}

void fake_graph_add_kernel(struct CUgraph_st *graph, uint64_t ns)
{
	node_add(graph, CU_GRAPH_NODE_TYPE_KERNEL)->ns = ns;
}

CUdeviceptr fake_graph_add_alloc(struct CUgraph_st *graph, uint64_t bytes, const CUmemLocation *location)
{
	struct CUgraphNode_st *node = node_add(graph, CU_GRAPH_NODE_TYPE_MEM_ALLOC);

	node->bytes = bytes;
	node->location = *location;
	node->dptr = fake_address(bytes, false);
	return node->dptr;
}

struct CUgraph_st *fake_graph_new(void)
{
	return calloc(1, sizeof(struct CUgraph_st));
}

/* A child is a copy, as it was when it was added. */
static struct CUgraph_st *graph_copy(const struct CUgraph_st *graph)
{
	struct CUgraph_st *copy = fake_graph_new();

	for (const struct CUgraphNode_st *node = graph->nodes; node != NULL; node = node->next) {
		struct CUgraphNode_st *added = node_add(copy, node->type);
		struct CUgraphNode_st *next = added->next;

		*added = *node;
		added->next = next;
		if (node->child != NULL)
			added->child = graph_copy(node->child);
	}
	return copy;
}

static void graph_free(struct CUgraph_st *graph)
{
	while (graph->nodes != NULL) {
		struct CUgraphNode_st *next = graph->nodes->next;

		if (graph->nodes->child != NULL)
			graph_free(graph->nodes->child);
		free(graph->nodes);
		graph->nodes = next;
	}
	free(graph);
}

CUresult cuGraphCreate(CUgraph *phGraph, unsigned int flags)
{
	(void)flags;
	ENTER();
	*phGraph = fake_graph_new();
	return *phGraph != NULL ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuGraphDestroy(CUgraph hGraph)
{
	ENTER();
	graph_free(hGraph);
	return CUDA_SUCCESS;
}

CUresult cuGraphAddKernelNode(CUgraphNode *phGraphNode, CUgraph hGraph, const CUgraphNode *dependencies,
	size_t numDependencies, const CUDA_KERNEL_NODE_PARAMS_v1 *nodeParams)
{
	(void)dependencies, (void)numDependencies;
	ENTER();
	*phGraphNode = node_add(hGraph, CU_GRAPH_NODE_TYPE_KERNEL);
	(*phGraphNode)->ns = nodeParams->func->ns;
	return CUDA_SUCCESS;
}

CUresult cuGraphAddMemAllocNode(CUgraphNode *phGraphNode, CUgraph hGraph, const CUgraphNode *dependencies,
	size_t numDependencies, CUDA_MEM_ALLOC_NODE_PARAMS *nodeParams)
{
	bool known;

	(void)dependencies, (void)numDependencies;
	ENTER();
	(void)fake_location_card(&nodeParams->poolProps.location, &known);
	if (!known)
		return CUDA_ERROR_INVALID_VALUE;
	*phGraphNode = node_add(hGraph, CU_GRAPH_NODE_TYPE_MEM_ALLOC);
	(*phGraphNode)->bytes = nodeParams->bytesize;
	(*phGraphNode)->location = nodeParams->poolProps.location;
	(*phGraphNode)->dptr = nodeParams->dptr = fake_address(nodeParams->bytesize, false);
	return CUDA_SUCCESS;
}

CUresult cuGraphAddChildGraphNode(CUgraphNode *phGraphNode, CUgraph hGraph, const CUgraphNode *dependencies,
	size_t numDependencies, CUgraph childGraph)
{
	(void)dependencies, (void)numDependencies;
	ENTER();
	*phGraphNode = node_add(hGraph, CU_GRAPH_NODE_TYPE_GRAPH);
	(*phGraphNode)->child = graph_copy(childGraph);
	return CUDA_SUCCESS;
}

CUresult cuGraphGetNodes(CUgraph hGraph, CUgraphNode *nodes, size_t *numNodes)
{
	struct CUgraphNode_st *node = hGraph->nodes;

	ENTER();
	for (size_t i = 0; nodes != NULL && i < *numNodes && node != NULL; i++, node = node->next)
		nodes[i] = node;
	*numNodes = hGraph->count;
	return CUDA_SUCCESS;
}

CUresult cuGraphNodeGetType(CUgraphNode hNode, CUgraphNodeType *type)
{
	ENTER();
	*type = hNode->type;
	return CUDA_SUCCESS;
}

CUresult cuGraphChildGraphNodeGetGraph(CUgraphNode hNode, CUgraph *phGraph)
{
	ENTER();
	*phGraph = hNode->child;
	return hNode->child != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGraphMemAllocNodeGetParams(CUgraphNode hNode, CUDA_MEM_ALLOC_NODE_PARAMS *params_out)
{
	ENTER();
	*params_out = (CUDA_MEM_ALLOC_NODE_PARAMS){.bytesize = hNode->bytes, .dptr = hNode->dptr};
	params_out->poolProps.location = hNode->location;
	return CUDA_SUCCESS;
}

static void exec_add(CUgraphExec exec, const struct CUgraph_st *graph)
{
	for (struct CUgraphNode_st *node = graph->nodes; node != NULL; node = node->next) {
		bool known;
		const int card = node->bytes != 0 ? fake_location_card(&node->location, &known) : -1;

		exec->ns += node->ns;
		if (card >= 0)
			exec->bytes[card] += node->bytes;
		if (card >= 0 && exec->pointer_count < POINTERS)
			exec->pointers[exec->pointer_count++] = node->dptr;
		if (node->child != NULL)
			exec_add(exec, node->child);
	}
}

static CUresult instantiate(CUgraphExec *exec, CUgraph graph)
{
	*exec = calloc(1, sizeof(**exec));
	if (*exec == NULL)
		return CUDA_ERROR_OUT_OF_MEMORY;
	exec_add(*exec, graph);
	pthread_mutex_lock(&exec_lock);
	(*exec)->next = execs;
	execs = *exec;
	pthread_mutex_unlock(&exec_lock);
	return CUDA_SUCCESS;
}

static bool has_memory(const struct CUgraphExec_st *exec)
{
	return exec->in_use && exec->trims == fake_graph_trims();
}

static void memory_unused(struct CUgraphExec_st *exec)
{
	for (int card = 0; card < FAKE_DEVICES && has_memory(exec); card++)
		if (exec->bytes[card] > 0)
			fake_graph_unused(card, exec->bytes[card]);
	exec->in_use = false;
}

bool fake_graph_free(CUdeviceptr pointer)
{
	bool found = false;

	pthread_mutex_lock(&exec_lock);
	for (struct CUgraphExec_st *exec = execs; exec != NULL && !found; exec = exec->next)
		for (int i = 0; i < exec->pointer_count && !found; i++)
			if (has_memory(exec) && exec->pointers[i] == pointer) {
				found = true;
				memory_unused(exec);
			}
	pthread_mutex_unlock(&exec_lock);
	return found;
}

/* The memory that a graph allocates comes to it when it is uploaded, at the latest when it is launched. */
static CUresult memory_for(struct CUgraphExec_st *exec, bool use)
{
	CUresult result = CUDA_SUCCESS;

	if (has_memory(exec))
		return CUDA_SUCCESS;
	for (int card = 0; card < FAKE_DEVICES && result == CUDA_SUCCESS; card++)
		if (exec->bytes[card] > 0)
			result = fake_graph_memory(card, exec->bytes[card], use);
	exec->in_use = use && result == CUDA_SUCCESS;
	exec->trims = fake_graph_trims();
	return result;
}

static CUresult upload(struct CUgraphExec_st *exec)
{
	return memory_for(exec, false);
}

static CUresult instantiate_with(CUgraphExec *exec, CUgraph graph, const CUDA_GRAPH_INSTANTIATE_PARAMS *params)
{
	const CUresult result = instantiate(exec, graph);

	return result == CUDA_SUCCESS && params->flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD ? upload(*exec) : result;
}

CUresult cuGraphUpload(CUgraphExec hGraphExec, CUstream hStream)
{
	(void)hStream;
	ENTER();
	return upload(hGraphExec);
}

CUresult cuGraphUpload_ptsz(CUgraphExec hGraphExec, CUstream hStream)
{
	(void)hStream;
	ENTER();
	return upload(hGraphExec);
}

CUresult cuGraphInstantiate(
	CUgraphExec *phGraphExec, CUgraph hGraph, CUgraphNode *phErrorNode, char *logBuffer, size_t bufferSize)
{
	(void)phErrorNode, (void)logBuffer, (void)bufferSize;
	ENTER();
	return instantiate(phGraphExec, hGraph);
}

CUresult cuGraphInstantiate_v2(
	CUgraphExec *phGraphExec, CUgraph hGraph, CUgraphNode *phErrorNode, char *logBuffer, size_t bufferSize)
{
	(void)phErrorNode, (void)logBuffer, (void)bufferSize;
	ENTER();
	return instantiate(phGraphExec, hGraph);
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec *phGraphExec, CUgraph hGraph, unsigned long long flags)
{
	(void)flags;
	ENTER();
	return instantiate(phGraphExec, hGraph);
}

CUresult cuGraphInstantiateWithParams(
	CUgraphExec *phGraphExec, CUgraph hGraph, CUDA_GRAPH_INSTANTIATE_PARAMS *instantiateParams)
{
	ENTER();
	return instantiate_with(phGraphExec, hGraph, instantiateParams);
}

CUresult cuGraphInstantiateWithParams_ptsz(
	CUgraphExec *phGraphExec, CUgraph hGraph, CUDA_GRAPH_INSTANTIATE_PARAMS *instantiateParams)
{
	ENTER();
	return instantiate_with(phGraphExec, hGraph, instantiateParams);
}

static CUresult graph_run(CUgraphExec exec, struct CUstream_st *stream)
{
	const CUresult result = memory_for(exec, true);

	return result != CUDA_SUCCESS ? result : fake_launch(stream, exec->ns);
}

CUresult cuGraphLaunch(CUgraphExec hGraphExec, CUstream hStream)
{
	ENTER();
	return graph_run(hGraphExec, fake_stream(hStream, false));
}

CUresult cuGraphLaunch_ptsz(CUgraphExec hGraphExec, CUstream hStream)
{
	ENTER();
	return graph_run(hGraphExec, fake_stream(hStream, true));
}

CUresult cuGraphExecDestroy(CUgraphExec hGraphExec)
{
	ENTER();
	pthread_mutex_lock(&exec_lock);
	for (struct CUgraphExec_st **at = &execs; *at != NULL; at = &(*at)->next)
		if (*at == hGraphExec) {
			*at = hGraphExec->next;
			break;
		}
	pthread_mutex_unlock(&exec_lock);
	memory_unused(hGraphExec);
	free(hGraphExec);
	return CUDA_SUCCESS;
}
