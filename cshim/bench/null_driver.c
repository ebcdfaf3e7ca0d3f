/* null_driver.c: a driver that costs next to nothing, so that what is measured is the library in front of it. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#pragma GCC visibility push(default)
#include "cuda_abi.h"

double nullEventNanoseconds(void);
#pragma GCC visibility pop

static _Atomic uint64_t next_address = 0x700000000000;
static int context;

CUresult cuInit(unsigned int flags)
{
	(void)flags;
	return CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int *count)
{
	*count = 1;
	return CUDA_SUCCESS;
}

CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice dev)
{
	static const unsigned char bytes[16] = {[6] = 0x40, [8] = 0x80};

	(void)dev;
	memcpy(uuid->bytes, bytes, sizeof(bytes));
	return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext *pctx)
{
	*pctx = (CUcontext)(uintptr_t)&context;
	return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice(CUdevice *device)
{
	*device = 0;
	return CUDA_SUCCESS;
}

CUresult cuMemAlloc_v2(CUdeviceptr *dptr, size_t bytesize)
{
	(void)bytesize;
	*dptr = next_address += 512;
	return CUDA_SUCCESS;
}

CUresult cuMemFree_v2(CUdeviceptr dptr)
{
	(void)dptr;
	return CUDA_SUCCESS;
}

CUresult cuMemGetInfo_v2(size_t *free, size_t *total)
{
	*free = *total = (size_t)80 << 30;
	return CUDA_SUCCESS;
}

CUresult cuLaunchKernel(CUfunction f, unsigned int gridDimX, unsigned int gridDimY, unsigned int gridDimZ,
	unsigned int blockDimX, unsigned int blockDimY, unsigned int blockDimZ, unsigned int sharedMemBytes,
	CUstream hStream, void **kernelParams, void **extra)
{
	(void)f, (void)gridDimX, (void)gridDimY, (void)gridDimZ, (void)blockDimX, (void)blockDimY, (void)blockDimZ;
	(void)sharedMemBytes, (void)hStream, (void)kernelParams, (void)extra;
	return CUDA_SUCCESS;
}

/* Events cost about what NULL_EVENT_NS says; what they cost in all is told apart. A call of them turns a loop so often
 * as was found at the start to take that long, since a clock would cost as much as what it measures. */
static uint64_t event_turns;
static double event_ns, event_total_ns;
static float kernel_ms; /* what each kernel is said to have taken: NULL_KERNEL_NS */

double nullEventNanoseconds(void)
{
	return event_total_ns;
}

static double thread_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
	return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

static void turn(uint64_t turns)
{
	for (volatile uint64_t i = 0; i < turns; i++)
		;
}

__attribute__((constructor)) static void calibrate(void)
{
	const char *text = getenv("NULL_EVENT_NS");
	const double wanted = text != NULL ? strtod(text, NULL) : 0;
	const char *kernel = getenv("NULL_KERNEL_NS");
	double started;

	kernel_ms = kernel != NULL ? strtof(kernel, NULL) / 1e6f : 0;
	if (wanted == 0)
		return;
	turn(1000000);
	started = thread_ns();
	turn(10000000);
	event_turns = (uint64_t)(wanted / ((thread_ns() - started) / 10000000));
	started = thread_ns();
	for (int i = 0; i < 10000; i++)
		turn(event_turns);
	event_ns = (thread_ns() - started) / 10000;
}

static void spend(void)
{
	if (event_turns == 0)
		return;
	turn(event_turns);
	event_total_ns += event_ns;
}

CUresult cuEventCreate(CUevent *phEvent, unsigned int Flags)
{
	(void)Flags;
	spend();
	*phEvent = (CUevent)(uintptr_t)&context;
	return CUDA_SUCCESS;
}

CUresult cuEventRecord(CUevent hEvent, CUstream hStream)
{
	(void)hEvent, (void)hStream;
	spend();
	return CUDA_SUCCESS;
}

CUresult cuEventQuery(CUevent hEvent)
{
	(void)hEvent;
	spend();
	return CUDA_SUCCESS;
}

CUresult cuEventElapsedTime(float *pMilliseconds, CUevent hStart, CUevent hEnd)
{
	(void)hStart, (void)hEnd;
	*pMilliseconds = kernel_ms;
	return CUDA_SUCCESS;
}

CUresult cuEventDestroy_v2(CUevent hEvent)
{
	(void)hEvent;
	spend();
	return CUDA_SUCCESS;
}

/* Pools, graphs, blocks and arrays: one of each. */

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode)
{
	static __thread CUstreamCaptureMode current;
	const CUstreamCaptureMode before = current;

	current = *mode;
	*mode = before;
	return CUDA_SUCCESS;
}

CUresult cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice dev)
{
	(void)dev;
	*pool = (CUmemoryPool)(uintptr_t)&context;
	return CUDA_SUCCESS;
}

CUresult cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute attr, void *value)
{
	(void)pool;
	if (attr == CU_MEMPOOL_ATTR_LOCATION_TYPE || attr == CU_MEMPOOL_ATTR_LOCATION_ID)
		*(int *)value = attr == CU_MEMPOOL_ATTR_LOCATION_TYPE ? CU_MEM_LOCATION_TYPE_DEVICE : 0;
	else
		*(cuuint64_t *)value = attr == CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT ? 64 << 20 : 0;
	return CUDA_SUCCESS;
}

CUresult cuMemAllocAsync(CUdeviceptr *dptr, size_t bytesize, CUstream hStream)
{
	(void)hStream;
	return cuMemAlloc_v2(dptr, bytesize);
}

CUresult cuMemFreeAsync(CUdeviceptr dptr, CUstream hStream)
{
	(void)dptr, (void)hStream;
	return CUDA_SUCCESS;
}

CUresult cuGraphGetNodes(CUgraph hGraph, CUgraphNode *nodes, size_t *numNodes)
{
	(void)hGraph;
	if (nodes != NULL)
		nodes[0] = (CUgraphNode)(uintptr_t)&context;
	*numNodes = 1;
	return CUDA_SUCCESS;
}

CUresult cuGraphNodeGetType(CUgraphNode hNode, CUgraphNodeType *type)
{
	(void)hNode;
	*type = CU_GRAPH_NODE_TYPE_MEM_ALLOC;
	return CUDA_SUCCESS;
}

CUresult cuGraphMemAllocNodeGetParams(CUgraphNode hNode, CUDA_MEM_ALLOC_NODE_PARAMS *params_out)
{
	(void)hNode;
	*params_out = (CUDA_MEM_ALLOC_NODE_PARAMS){
		.bytesize = 32 << 20, .poolProps.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
	return CUDA_SUCCESS;
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec *phGraphExec, CUgraph hGraph, unsigned long long flags)
{
	(void)hGraph, (void)flags;
	*phGraphExec = (CUgraphExec)(uintptr_t)&context;
	return CUDA_SUCCESS;
}

CUresult cuGraphLaunch(CUgraphExec hGraphExec, CUstream hStream)
{
	(void)hGraphExec, (void)hStream;
	return CUDA_SUCCESS;
}

CUresult cuDeviceGetGraphMemAttribute(CUdevice device, CUgraphMem_attribute attr, void *value)
{
	(void)device, (void)attr;
	*(cuuint64_t *)value = 32 << 20;
	return CUDA_SUCCESS;
}

CUresult cuMemCreate(
	CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *prop, unsigned long long flags)
{
	(void)size, (void)prop, (void)flags;
	*handle = 1;
	return CUDA_SUCCESS;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
	(void)handle;
	return CUDA_SUCCESS;
}

CUresult cuMemMap(
	CUdeviceptr ptr, size_t size, size_t offset, CUmemGenericAllocationHandle handle, unsigned long long flags)
{
	(void)ptr, (void)size, (void)offset, (void)handle, (void)flags;
	return CUDA_SUCCESS;
}

CUresult cuMemUnmap(CUdeviceptr ptr, size_t size)
{
	(void)ptr, (void)size;
	return CUDA_SUCCESS;
}

CUresult cuArrayCreate_v2(CUarray *pHandle, const CUDA_ARRAY_DESCRIPTOR *desc)
{
	(void)desc;
	*pHandle = (CUarray)(uintptr_t)&context;
	return CUDA_SUCCESS;
}

CUresult cuArrayDestroy(CUarray hArray)
{
	(void)hArray;
	return CUDA_SUCCESS;
}
