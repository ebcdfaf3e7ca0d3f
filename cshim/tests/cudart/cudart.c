/* cudart.c: the small runtime; cudart.h says what it is. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>

#include "cudart.h"

enum { DEVICES = 16 };

static struct {
#define ENTRY(field, name, version)  __typeof__(field) *field;
#define STREAM(field, name, version) __typeof__(field) *field, *field##_ptsz;
#include "entries.def"
#undef ENTRY
#undef STREAM
} entry;

static const struct cudart_entry entries[] = {
#define ENTRY(field, name, version) {#name, version, CU_GET_PROC_ADDRESS_DEFAULT, (void **)&entry.field},
#define STREAM(field, name, version)                                                                                   \
	{#name, version, CU_GET_PROC_ADDRESS_LEGACY_STREAM, (void **)&entry.field},                                    \
		{#name, version, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, (void **)&entry.field##_ptsz},
#include "entries.def"
#undef ENTRY
#undef STREAM
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int look_up_like = 12;
static CUresult started = CUDA_ERROR_NOT_INITIALIZED;
static CUcontext primaries[DEVICES];
static __thread int device;          /* this thread's, 0 until it chooses */
static __thread CUresult last_error; /* what cudaGetLastError tells once */

void cudartLookUpLike(int major)
{
	look_up_like = major;
}

/* The first look-up is dlsym's, and finds the one for all others. */
static CUresult look_up(void)
{
	void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
	__typeof__(cuGetProcAddress_v2) *find = NULL;
	__typeof__(cuGetProcAddress) *find_first = NULL;

	if (library == NULL)
		return CUDA_ERROR_NO_DEVICE;
	if (look_up_like == 12)
		find = (__typeof__(find))dlsym(library, "cuGetProcAddress_v2");
	else
		find_first = (__typeof__(find_first))dlsym(library, "cuGetProcAddress");
	for (size_t i = 0; i < sizeof(entries) / sizeof(entries[0]); i++) {
		const struct cudart_entry *at = &entries[i];
		CUdriverProcAddressQueryResult status = CU_GET_PROC_ADDRESS_SUCCESS;
		CUresult result = CUDA_ERROR_NOT_FOUND;

		if (find != NULL)
			result = find(at->name, at->address, at->version, at->flags, &status);
		else if (find_first != NULL)
			result = find_first(at->name, at->address, at->version, at->flags);
		if (result != CUDA_SUCCESS || status != CU_GET_PROC_ADDRESS_SUCCESS)
			return CUDA_ERROR_NOT_FOUND; /* a driver that is older than the runtime */
	}
	return CUDA_SUCCESS;
}

static CUresult start(void)
{
	CUresult result;

	pthread_mutex_lock(&lock);
	if (started != CUDA_SUCCESS) {
		started = look_up();
		if (started == CUDA_SUCCESS)
			started = entry.cuInit(0);
	}
	result = started;
	pthread_mutex_unlock(&lock);
	return result;
}

static cudaError_t tell(CUresult result)
{
	if (result != CUDA_SUCCESS)
		last_error = result;
	return result;
}

/* Have the device's primary context, and have it current in this thread. */
static CUresult enter(void)
{
	CUresult result = start();
	CUcontext current = NULL;

	if (result != CUDA_SUCCESS)
		return result;
	pthread_mutex_lock(&lock);
	if (primaries[device] == NULL)
		result = entry.cuDevicePrimaryCtxRetain(&primaries[device], device);
	pthread_mutex_unlock(&lock);
	if (result == CUDA_SUCCESS)
		result = entry.cuCtxGetCurrent(&current);
	if (result == CUDA_SUCCESS && current != primaries[device])
		result = entry.cuCtxSetCurrent(primaries[device]);
	return result;
}

/* One call of the driver, in this thread's context. */
#define CALL(call)                                                                                                     \
	do {                                                                                                           \
		CUresult result_ = enter();                                                                            \
		return tell(result_ == CUDA_SUCCESS ? entry.call : result_);                                           \
	} while (0)

size_t cudartEntries(const struct cudart_entry **first)
{
	*first = entries;
	return start() == CUDA_SUCCESS ? sizeof(entries) / sizeof(entries[0]) : 0;
}

cudaError_t cudaGetDeviceCount(int *count)
{
	const CUresult result = start();

	return tell(result == CUDA_SUCCESS ? entry.cuDeviceGetCount(count) : result);
}

cudaError_t cudaSetDevice(int number)
{
	int count = 0;
	const cudaError_t result = cudaGetDeviceCount(&count);

	if (result != CUDA_SUCCESS || number < 0 || number >= count || number >= DEVICES)
		return tell(result != CUDA_SUCCESS ? result : CUDA_ERROR_INVALID_DEVICE);
	device = number;
	return CUDA_SUCCESS;
}

cudaError_t cudaDeviceSynchronize(void)
{
	CALL(cuCtxSynchronize());
}

cudaError_t cudaDeviceReset(void)
{
	CUresult result = start();

	pthread_mutex_lock(&lock);
	if (result == CUDA_SUCCESS && primaries[device] != NULL)
		result = entry.cuDevicePrimaryCtxReset_v2(device);
	primaries[device] = NULL;
	pthread_mutex_unlock(&lock);
	return tell(result);
}

cudaError_t cudaGetLastError(void)
{
	const cudaError_t error = last_error;

	last_error = CUDA_SUCCESS;
	return error;
}

cudaError_t cudaDeviceTotalGlobalMem(size_t *bytes, int number)
{
	const CUresult result = start();

	return tell(result == CUDA_SUCCESS ? entry.cuDeviceTotalMem_v2(bytes, number) : result);
}

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes)
{
	CALL(cuMemGetInfo_v2(free_bytes, total_bytes));
}

cudaError_t cudaMalloc(void **pointer, size_t bytes)
{
	CALL(cuMemAlloc_v2((CUdeviceptr *)pointer, bytes));
}

cudaError_t cudaMallocManaged(void **pointer, size_t bytes)
{
	CALL(cuMemAllocManaged((CUdeviceptr *)pointer, bytes, CU_MEM_ATTACH_GLOBAL));
}

cudaError_t cudaMallocPitch(void **pointer, size_t *pitch, size_t width, size_t height)
{
	CALL(cuMemAllocPitch_v2((CUdeviceptr *)pointer, pitch, width, height, 4));
}

cudaError_t cudaMallocArray(cudaArray_t *array, size_t width, size_t height)
{
	const CUDA_ARRAY_DESCRIPTOR wanted = {
		.Width = width, .Height = height, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 1};

	CALL(cuArrayCreate_v2(array, &wanted));
}

cudaError_t cudaFree(void *pointer)
{
	CALL(cuMemFree_v2((CUdeviceptr)(uintptr_t)pointer));
}

cudaError_t cudaFreeArray(cudaArray_t array)
{
	CALL(cuArrayDestroy(array));
}

cudaError_t cudaMallocAsync(void **pointer, size_t bytes, cudaStream_t stream)
{
	CALL(cuMemAllocAsync((CUdeviceptr *)pointer, bytes, stream));
}

cudaError_t cudaMallocAsync_ptsz(void **pointer, size_t bytes, cudaStream_t stream)
{
	CALL(cuMemAllocAsync_ptsz((CUdeviceptr *)pointer, bytes, stream));
}

cudaError_t cudaMallocFromPoolAsync(void **pointer, size_t bytes, cudaMemPool_t pool, cudaStream_t stream)
{
	CALL(cuMemAllocFromPoolAsync((CUdeviceptr *)pointer, bytes, pool, stream));
}

cudaError_t cudaFreeAsync(void *pointer, cudaStream_t stream)
{
	CALL(cuMemFreeAsync((CUdeviceptr)(uintptr_t)pointer, stream));
}

cudaError_t cudaFreeAsync_ptsz(void *pointer, cudaStream_t stream)
{
	CALL(cuMemFreeAsync_ptsz((CUdeviceptr)(uintptr_t)pointer, stream));
}

cudaError_t cudaMemPoolCreate(cudaMemPool_t *pool, int number)
{
	const CUmemPoolProps wanted = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
		.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = number}};

	CALL(cuMemPoolCreate(pool, &wanted));
}

cudaError_t cudaMemPoolDestroy(cudaMemPool_t pool)
{
	CALL(cuMemPoolDestroy(pool));
}

cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t *pool, int number)
{
	CALL(cuDeviceGetDefaultMemPool(pool, number));
}

cudaError_t cudaMemPoolTrimTo(cudaMemPool_t pool, size_t keep_bytes)
{
	CALL(cuMemPoolTrimTo(pool, keep_bytes));
}

cudaError_t cudaStreamCreate(cudaStream_t *stream)
{
	CALL(cuStreamCreate(stream, 0));
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
	CALL(cuStreamSynchronize(stream));
}

/* A kernel's module comes to a device when the kernel is first launched there. */
static CUresult load(struct kernel *kernel, CUfunction *function)
{
	CUresult result = enter();
	CUmodule module;

	pthread_mutex_lock(&lock);
	if (result == CUDA_SUCCESS && kernel->loaded[device] == NULL) {
		result = entry.cuModuleLoadData(&module, kernel->name);
		if (result == CUDA_SUCCESS)
			result = entry.cuModuleGetFunction(&kernel->loaded[device], module, kernel->name);
	}
	*function = kernel->loaded[device];
	pthread_mutex_unlock(&lock);
	return result;
}

cudaError_t cudaLaunchKernel(struct kernel *kernel, unsigned blocks, unsigned threads, cudaStream_t stream)
{
	CUfunction function;
	CUresult result = load(kernel, &function);

	if (result == CUDA_SUCCESS)
		result = entry.cuLaunchKernel(function, blocks, 1, 1, threads, 1, 1, 0, stream, NULL, NULL);
	return tell(result);
}

cudaError_t cudaLaunchKernel_ptsz(struct kernel *kernel, unsigned blocks, unsigned threads, cudaStream_t stream)
{
	CUfunction function;
	CUresult result = load(kernel, &function);

	if (result == CUDA_SUCCESS)
		result = entry.cuLaunchKernel_ptsz(function, blocks, 1, 1, threads, 1, 1, 0, stream, NULL, NULL);
	return tell(result);
}

cudaError_t cudaLaunchKernelExC(struct kernel *kernel, unsigned blocks, unsigned threads, cudaStream_t stream)
{
	const CUlaunchConfig config = {.gridDimX = blocks,
		.gridDimY = 1,
		.gridDimZ = 1,
		.blockDimX = threads,
		.blockDimY = 1,
		.blockDimZ = 1,
		.hStream = stream};
	CUfunction function;
	CUresult result = load(kernel, &function);

	if (result == CUDA_SUCCESS)
		result = entry.cuLaunchKernelEx(&config, function, NULL, NULL);
	return tell(result);
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream)
{
	CALL(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph)
{
	CALL(cuStreamEndCapture(stream, graph));
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph)
{
	CALL(cuGraphInstantiateWithFlags(exec, graph, 0));
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream)
{
	CALL(cuGraphLaunch(exec, stream));
}

cudaError_t cudaGraphLaunch_ptsz(cudaGraphExec_t exec, cudaStream_t stream)
{
	CALL(cuGraphLaunch_ptsz(exec, stream));
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec)
{
	CALL(cuGraphExecDestroy(exec));
}
