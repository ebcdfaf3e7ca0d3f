/* cudart.h: a CUDA runtime in small, as far as one can be told from outside. It stands in for NVIDIA's, which does not
 * go on without NVIDIA's driver. Written from the public documentation of both interfaces: names and meanings are the
 * runtime's, and an error of the driver is the runtime's error of the same number.
 *
 * What it does as the real one does: it opens libcuda.so.1 when it is first used, looks up cuGetProcAddress by dlsym
 * and every other entry through that, by name, version and kind of default stream; it retains a device's primary
 * context when a thread first needs it, and loads a kernel's module when the kernel is first launched.
 */
#ifndef TEST_CUDART_H
#define TEST_CUDART_H

#include <stddef.h>

#include "cuda_abi.h"

/* In a program that is linked statically nobody outside sees these; in a library they are what it is for. */
#ifdef CUDART_SHARED
#define CUDART __attribute__((visibility("default")))
#else
#define CUDART
#endif

typedef CUresult cudaError_t;
typedef CUstream cudaStream_t;
typedef CUmemoryPool cudaMemPool_t;
typedef CUarray cudaArray_t;
typedef CUgraph cudaGraph_t;
typedef CUgraphExec cudaGraphExec_t;

#define cudaSuccess               CUDA_SUCCESS
#define cudaErrorMemoryAllocation CUDA_ERROR_OUT_OF_MEMORY

/* A kernel, as a program holds it: its address is what it is launched by. */
struct kernel {
	const char *name;
	CUfunction loaded[16]; /* by device */
};

/* What the runtime looked up, for tests. */
struct cudart_entry {
	const char *name;
	int version;
	cuuint64_t flags;
	void **address;
};

/* Which look-up to use: 12 for cuGetProcAddress_v2 (the default), 11 for the first one. Before anything else. */
CUDART void cudartLookUpLike(int major);
CUDART size_t cudartEntries(const struct cudart_entry **first);

CUDART cudaError_t cudaGetDeviceCount(int *count);
CUDART cudaError_t cudaSetDevice(int device);
CUDART cudaError_t cudaDeviceSynchronize(void);
CUDART cudaError_t cudaDeviceReset(void);
CUDART cudaError_t cudaGetLastError(void);
CUDART cudaError_t cudaDeviceTotalGlobalMem(size_t *bytes, int device); /* of cudaGetDeviceProperties */
CUDART cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes);

CUDART cudaError_t cudaMalloc(void **pointer, size_t bytes);
CUDART cudaError_t cudaMallocManaged(void **pointer, size_t bytes);
CUDART cudaError_t cudaMallocPitch(void **pointer, size_t *pitch, size_t width, size_t height);
CUDART cudaError_t cudaMallocArray(cudaArray_t *array, size_t width, size_t height); /* of float */
CUDART cudaError_t cudaFree(void *pointer);
CUDART cudaError_t cudaFreeArray(cudaArray_t array);

/* The functions with a stream exist twice: what a program calls depends on how it was compiled, and says which default
 * stream is meant. */
CUDART cudaError_t cudaMallocAsync(void **pointer, size_t bytes, cudaStream_t stream);
CUDART cudaError_t cudaMallocAsync_ptsz(void **pointer, size_t bytes, cudaStream_t stream);
CUDART cudaError_t cudaMallocFromPoolAsync(void **pointer, size_t bytes, cudaMemPool_t pool, cudaStream_t stream);
CUDART cudaError_t cudaFreeAsync(void *pointer, cudaStream_t stream);
CUDART cudaError_t cudaFreeAsync_ptsz(void *pointer, cudaStream_t stream);
CUDART cudaError_t cudaMemPoolCreate(cudaMemPool_t *pool, int device);
CUDART cudaError_t cudaMemPoolDestroy(cudaMemPool_t pool);
CUDART cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t *pool, int device);
CUDART cudaError_t cudaMemPoolTrimTo(cudaMemPool_t pool, size_t keep_bytes);

CUDART cudaError_t cudaStreamCreate(cudaStream_t *stream);
CUDART cudaError_t cudaStreamSynchronize(cudaStream_t stream);
CUDART cudaError_t cudaLaunchKernel(struct kernel *kernel, unsigned blocks, unsigned threads, cudaStream_t stream);
CUDART cudaError_t cudaLaunchKernel_ptsz(struct kernel *kernel, unsigned blocks, unsigned threads, cudaStream_t stream);
CUDART cudaError_t cudaLaunchKernelExC(struct kernel *kernel, unsigned blocks, unsigned threads, cudaStream_t stream);

CUDART cudaError_t cudaStreamBeginCapture(cudaStream_t stream);
CUDART cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph);
CUDART cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph);
CUDART cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream);
CUDART cudaError_t cudaGraphLaunch_ptsz(cudaGraphExec_t exec, cudaStream_t stream);
CUDART cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec);

#endif
