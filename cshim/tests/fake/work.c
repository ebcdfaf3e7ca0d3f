/* work.c: streams, events, kernels and graphs. A kernel's name says how long it runs: "spin_100us", "sort_2ms",
 * "x_500ns"; a name without a time runs for none. A card runs one kernel at a time, in the order of their launches.
 */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "driver.h"

struct CUfunc_st {
	char name[64];
	uint64_t ns;
};

struct CUevent_st {
	uint64_t at_ns;
	bool recorded;
};

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

static struct CUstream_st default_stream;
static __thread struct CUstream_st thread_stream;

struct CUstream_st *fake_stream(CUstream stream, bool per_thread)
{
	if (stream == (CUstream)2 || (stream == NULL && per_thread)) /* 1 and 2 name the two default streams */
		return &thread_stream;
	return stream == NULL || stream == (CUstream)1 ? &default_stream : stream;
}

static void sleep_until(uint64_t at_ns)
{
	for (uint64_t now = fake_now_ns(); now < at_ns; now = fake_now_ns()) {
		const uint64_t left = at_ns - now;
		const struct timespec pause = {
			.tv_sec = (time_t)(left / 1000000000u), .tv_nsec = (long)(left % 1000000000u)};

		nanosleep(&pause, NULL);
	}
}

CUresult cuModuleLoadData(CUmodule *module, const void *image)
{
	(void)image;
	ENTER();
	NEED_CONTEXT(context);
	*module = (CUmodule)calloc(1, 16);
	return *module != NULL ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuModuleUnload(CUmodule hmod)
{
	ENTER();
	free(hmod);
	return CUDA_SUCCESS;
}

static uint64_t time_of(const char *name)
{
	const char *word = strrchr(name, '_');
	char *unit;
	uint64_t value;

	if (word == NULL)
		return 0;
	value = strtoull(word + 1, &unit, 10);
	if (strcmp(unit, "ms") == 0)
		return value * 1000000;
	if (strcmp(unit, "us") == 0)
		return value * 1000;
	return strcmp(unit, "ns") == 0 ? value : 0;
}

CUresult cuModuleGetFunction(CUfunction *hfunc, CUmodule hmod, const char *name)
{
	ENTER();
	if (hmod == NULL || name == NULL || strlen(name) >= sizeof((*hfunc)->name))
		return CUDA_ERROR_NOT_FOUND;
	*hfunc = calloc(1, sizeof(**hfunc));
	if (*hfunc == NULL)
		return CUDA_ERROR_OUT_OF_MEMORY;
	strcpy((*hfunc)->name, name);
	(*hfunc)->ns = time_of(name);
	return CUDA_SUCCESS;
}

CUresult cuStreamCreate(CUstream *phStream, unsigned int Flags)
{
	(void)Flags;
	ENTER();
	*phStream = calloc(1, sizeof(**phStream));
	return *phStream != NULL ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuStreamDestroy_v2(CUstream hStream)
{
	ENTER();
	free(hStream);
	return CUDA_SUCCESS;
}

CUresult cuStreamSynchronize(CUstream hStream)
{
	ENTER();
	sleep_until(fake_stream(hStream, false)->free_at_ns);
	fake_pools_trim();
	return CUDA_SUCCESS;
}

CUresult cuCtxSynchronize(void)
{
	ENTER();
	NEED_CONTEXT(context);
	sleep_until(fake_state()->devices[context->device].busy_until_ns);
	fake_pools_trim();
	return CUDA_SUCCESS;
}

static CUresult run(struct CUstream_st *stream, uint64_t ns)
{
	const uint64_t now = fake_now_ns();

	NEED_CONTEXT(context);
	if (stream->capture != NULL) {
		fake_graph_add_kernel(stream->capture, ns);
		return CUDA_SUCCESS;
	}
	stream->free_at_ns = fake_run(context->device, stream->free_at_ns > now ? stream->free_at_ns : now, ns);
	return CUDA_SUCCESS;
}

static CUresult launch(CUfunction function, CUstream stream, bool per_thread)
{
	if (function == NULL)
		return CUDA_ERROR_INVALID_HANDLE;
	return run(fake_stream(stream, per_thread), function->ns);
}

CUresult cuLaunchKernel(CUfunction f, unsigned int gridDimX, unsigned int gridDimY, unsigned int gridDimZ,
	unsigned int blockDimX, unsigned int blockDimY, unsigned int blockDimZ, unsigned int sharedMemBytes,
	CUstream hStream, void **kernelParams, void **extra)
{
	(void)gridDimX, (void)gridDimY, (void)gridDimZ, (void)blockDimX, (void)blockDimY, (void)blockDimZ;
	(void)sharedMemBytes, (void)kernelParams, (void)extra;
	ENTER();
	return launch(f, hStream, false);
}

CUresult cuLaunchKernel_ptsz(CUfunction f, unsigned int gridDimX, unsigned int gridDimY, unsigned int gridDimZ,
	unsigned int blockDimX, unsigned int blockDimY, unsigned int blockDimZ, unsigned int sharedMemBytes,
	CUstream hStream, void **kernelParams, void **extra)
{
	(void)gridDimX, (void)gridDimY, (void)gridDimZ, (void)blockDimX, (void)blockDimY, (void)blockDimZ;
	(void)sharedMemBytes, (void)kernelParams, (void)extra;
	ENTER();
	return launch(f, hStream, true);
}

CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction f, void **kernelParams, void **extra)
{
	(void)kernelParams, (void)extra;
	ENTER();
	return launch(f, config->hStream, false);
}

CUresult cuLaunchKernelEx_ptsz(const CUlaunchConfig *config, CUfunction f, void **kernelParams, void **extra)
{
	(void)kernelParams, (void)extra;
	ENTER();
	return launch(f, config->hStream, true);
}

CUresult cuLaunchCooperativeKernel(CUfunction f, unsigned int gridDimX, unsigned int gridDimY, unsigned int gridDimZ,
	unsigned int blockDimX, unsigned int blockDimY, unsigned int blockDimZ, unsigned int sharedMemBytes,
	CUstream hStream, void **kernelParams)
{
	(void)gridDimX, (void)gridDimY, (void)gridDimZ, (void)blockDimX, (void)blockDimY, (void)blockDimZ;
	(void)sharedMemBytes, (void)kernelParams;
	ENTER();
	return launch(f, hStream, false);
}

CUresult cuLaunchCooperativeKernel_ptsz(CUfunction f, unsigned int gridDimX, unsigned int gridDimY,
	unsigned int gridDimZ, unsigned int blockDimX, unsigned int blockDimY, unsigned int blockDimZ,
	unsigned int sharedMemBytes, CUstream hStream, void **kernelParams)
{
	(void)gridDimX, (void)gridDimY, (void)gridDimZ, (void)blockDimX, (void)blockDimY, (void)blockDimZ;
	(void)sharedMemBytes, (void)kernelParams;
	ENTER();
	return launch(f, hStream, true);
}

CUresult cuLaunchCooperativeKernelMultiDevice(
	CUDA_LAUNCH_PARAMS *launchParamsList, unsigned int numDevices, unsigned int flags)
{
	(void)flags;
	ENTER();
	return numDevices > 0 ? launch(launchParamsList[0].function, launchParamsList[0].hStream, false)
			      : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuLaunch(CUfunction f)
{
	ENTER();
	return launch(f, NULL, false);
}

CUresult cuLaunchGrid(CUfunction f, int grid_width, int grid_height)
{
	(void)grid_width, (void)grid_height;
	ENTER();
	return launch(f, NULL, false);
}

CUresult cuLaunchGridAsync(CUfunction f, int grid_width, int grid_height, CUstream hStream)
{
	(void)grid_width, (void)grid_height;
	ENTER();
	return launch(f, hStream, false);
}

/* Events. */

CUresult cuEventCreate(CUevent *phEvent, unsigned int Flags)
{
	(void)Flags;
	ENTER();
	*phEvent = calloc(1, sizeof(**phEvent));
	return *phEvent != NULL ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult event_record(CUevent event, struct CUstream_st *stream)
{
	const uint64_t now = fake_now_ns();

	if (stream->capture != NULL)
		return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	event->at_ns = stream->free_at_ns > now ? stream->free_at_ns : now;
	event->recorded = true;
	return CUDA_SUCCESS;
}

CUresult cuEventRecord(CUevent hEvent, CUstream hStream)
{
	ENTER();
	return event_record(hEvent, fake_stream(hStream, false));
}

CUresult cuEventRecord_ptsz(CUevent hEvent, CUstream hStream)
{
	ENTER();
	return event_record(hEvent, fake_stream(hStream, true));
}

CUresult cuEventQuery(CUevent hEvent)
{
	ENTER();
	return hEvent->at_ns <= fake_now_ns() ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult cuEventSynchronize(CUevent hEvent)
{
	ENTER();
	sleep_until(hEvent->at_ns);
	return CUDA_SUCCESS;
}

CUresult cuEventDestroy_v2(CUevent hEvent)
{
	ENTER();
	free(hEvent);
	return CUDA_SUCCESS;
}

CUresult cuEventElapsedTime(float *pMilliseconds, CUevent hStart, CUevent hEnd)
{
	ENTER();
	if (!hStart->recorded || !hEnd->recorded)
		return CUDA_ERROR_INVALID_HANDLE;
	*pMilliseconds = (float)(hEnd->at_ns - hStart->at_ns) / 1e6f;
	return CUDA_SUCCESS;
}

/* Graphs and captures. */

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

CUresult cuGraphCreate(CUgraph *phGraph, unsigned int flags)
{
	(void)flags;
	ENTER();
	*phGraph = calloc(1, sizeof(**phGraph));
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
	return result != CUDA_SUCCESS ? result : run(stream, exec->ns);
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

static CUresult capture_begin(struct CUstream_st *stream, CUgraph graph)
{
	if (stream->capture != NULL)
		return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	stream->capture = graph != NULL ? graph : calloc(1, sizeof(*stream->capture));
	return CUDA_SUCCESS;
}

CUresult cuStreamBeginCapture(CUstream hStream)
{
	ENTER();
	return capture_begin(fake_stream(hStream, false), NULL);
}

CUresult cuStreamBeginCapture_ptsz(CUstream hStream)
{
	ENTER();
	return capture_begin(fake_stream(hStream, true), NULL);
}

CUresult cuStreamBeginCapture_v2(CUstream hStream, CUstreamCaptureMode mode)
{
	(void)mode;
	ENTER();
	return capture_begin(fake_stream(hStream, false), NULL);
}

CUresult cuStreamBeginCapture_v2_ptsz(CUstream hStream, CUstreamCaptureMode mode)
{
	(void)mode;
	ENTER();
	return capture_begin(fake_stream(hStream, true), NULL);
}

CUresult cuStreamBeginCaptureToGraph(CUstream hStream, CUgraph hGraph, const CUgraphNode *dependencies,
	const CUgraphEdgeData *dependencyData, size_t numDependencies, CUstreamCaptureMode mode)
{
	(void)dependencies, (void)dependencyData, (void)numDependencies, (void)mode;
	ENTER();
	return capture_begin(fake_stream(hStream, false), hGraph);
}

CUresult cuStreamBeginCaptureToGraph_ptsz(CUstream hStream, CUgraph hGraph, const CUgraphNode *dependencies,
	const CUgraphEdgeData *dependencyData, size_t numDependencies, CUstreamCaptureMode mode)
{
	(void)dependencies, (void)dependencyData, (void)numDependencies, (void)mode;
	ENTER();
	return capture_begin(fake_stream(hStream, true), hGraph);
}

static CUresult capture_end(struct CUstream_st *stream, CUgraph *graph)
{
	if (stream->capture == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	*graph = stream->capture;
	stream->capture = NULL;
	return CUDA_SUCCESS;
}

CUresult cuStreamEndCapture(CUstream hStream, CUgraph *phGraph)
{
	ENTER();
	return capture_end(fake_stream(hStream, false), phGraph);
}

CUresult cuStreamEndCapture_ptsz(CUstream hStream, CUgraph *phGraph)
{
	ENTER();
	return capture_end(fake_stream(hStream, true), phGraph);
}

static CUresult capturing(struct CUstream_st *stream, CUstreamCaptureStatus *status)
{
	*status = stream->capture != NULL ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
	return CUDA_SUCCESS;
}

CUresult cuStreamIsCapturing(CUstream hStream, CUstreamCaptureStatus *captureStatus)
{
	ENTER();
	return capturing(fake_stream(hStream, false), captureStatus);
}

CUresult cuStreamIsCapturing_ptsz(CUstream hStream, CUstreamCaptureStatus *captureStatus)
{
	ENTER();
	return capturing(fake_stream(hStream, true), captureStatus);
}
