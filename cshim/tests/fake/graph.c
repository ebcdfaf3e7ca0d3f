/* graph.c: graphs. */
#define _GNU_SOURCE
#include <stdlib.h>

#include "driver.h"

struct CUgraphNode_st {
	CUgraphNodeType type;
	uint64_t ns;
	uint64_t bytes;
	CUdeviceptr dptr;
	struct CUgraphNode_st *next;
};

struct CUgraph_st {
	struct CUgraphNode_st *nodes;
	size_t count;
};

struct CUgraphExec_st {
	uint64_t ns;
	uint64_t bytes;
};

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

CUdeviceptr fake_graph_add_alloc(struct CUgraph_st *graph, uint64_t bytes, int device)
{
	struct CUgraphNode_st *node = node_add(graph, CU_GRAPH_NODE_TYPE_MEM_ALLOC);

	(void)device;
	node->bytes = bytes;
	node->dptr = fake_address(bytes, false);
	return node->dptr;
}

struct CUgraph_st *fake_graph_new(void)
{
	return calloc(1, sizeof(struct CUgraph_st));
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
	while (hGraph->nodes != NULL) {
		struct CUgraphNode_st *next = hGraph->nodes->next;

		free(hGraph->nodes);
		hGraph->nodes = next;
	}
	free(hGraph);
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
	(void)dependencies, (void)numDependencies;
	ENTER();
	*phGraphNode = node_add(hGraph, CU_GRAPH_NODE_TYPE_MEM_ALLOC);
	(*phGraphNode)->bytes = nodeParams->bytesize;
	(*phGraphNode)->dptr = nodeParams->dptr = fake_address(nodeParams->bytesize, false);
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
	(void)hNode, (void)phGraph;
	ENTER();
	return CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGraphMemAllocNodeGetParams(CUgraphNode hNode, CUDA_MEM_ALLOC_NODE_PARAMS *params_out)
{
	ENTER();
	*params_out = (CUDA_MEM_ALLOC_NODE_PARAMS){.bytesize = hNode->bytes, .dptr = hNode->dptr};
	return CUDA_SUCCESS;
}

static CUresult instantiate(CUgraphExec *exec, CUgraph graph)
{
	*exec = calloc(1, sizeof(**exec));
	if (*exec == NULL)
		return CUDA_ERROR_OUT_OF_MEMORY;
	for (struct CUgraphNode_st *node = graph->nodes; node != NULL; node = node->next) {
		(*exec)->ns += node->ns;
		(*exec)->bytes += node->bytes;
	}
	return CUDA_SUCCESS;
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
	(void)instantiateParams;
	ENTER();
	return instantiate(phGraphExec, hGraph);
}

CUresult cuGraphInstantiateWithParams_ptsz(
	CUgraphExec *phGraphExec, CUgraph hGraph, CUDA_GRAPH_INSTANTIATE_PARAMS *instantiateParams)
{
	(void)instantiateParams;
	ENTER();
	return instantiate(phGraphExec, hGraph);
}

static CUresult graph_run(CUgraphExec exec, struct CUstream_st *stream)
{
	CUresult result;

	NEED_CONTEXT(context);
	result = fake_graph_memory(context->device, exec->bytes);
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
	free(hGraphExec);
	return CUDA_SUCCESS;
}
