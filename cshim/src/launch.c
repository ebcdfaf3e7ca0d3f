/* launch.c: kernels, and the captures that only record them. */
#include "limiter.h"

/* Two launches of one kernel cost the same if their grids do. Nothing is hashed here: CUDA bounds a grid by 2^31-1,
 * 65535 and 65535 blocks, a block by 1024 threads, and addresses have less than 53 bits, so no two kernels share a
 * price. */
static inline struct work kernel_work(CUfunction function, uint64_t x, uint64_t y, uint64_t z, uint64_t threads)
{
	return (struct work){.key = (uint64_t)(uintptr_t)function ^ threads << 53, .shape = x | y << 31 | z << 47};
}

/* The free way is a jump to the driver's function with the arguments as they came; the other is apart, so that it stays
 * so. */
#define LAUNCH(symbol, parameters, arguments, work, stream, per_thread)                                                \
	static __attribute__((noinline)) CUresult symbol##_limited parameters                                          \
	{                                                                                                              \
		struct launch launch;                                                                                  \
                                                                                                                       \
		limiter_enter(&launch, work, stream, per_thread);                                                      \
		return limiter_leave(&launch, driver.symbol arguments);                                                \
	}                                                                                                              \
                                                                                                                       \
	CUresult symbol parameters                                                                                     \
	{                                                                                                              \
		REAL(symbol);                                                                                          \
		return __builtin_expect(launch_is_free(stream), 1) ? driver.symbol arguments                           \
								   : symbol##_limited arguments;                       \
	}

#define KERNEL_WORK kernel_work(f, gridDimX, gridDimY, gridDimZ, (uint64_t)blockDimX * blockDimY * blockDimZ)
#define KERNEL_PARAMETERS                                                                                              \
	(CUfunction f, unsigned int gridDimX, unsigned int gridDimY, unsigned int gridDimZ, unsigned int blockDimX,    \
		unsigned int blockDimY, unsigned int blockDimZ, unsigned int sharedMemBytes, CUstream hStream,         \
		void **kernelParams, void **extra)
#define KERNEL_ARGUMENTS                                                                                               \
	(f, gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ, sharedMemBytes, hStream, kernelParams, extra)

LAUNCH(cuLaunchKernel, KERNEL_PARAMETERS, KERNEL_ARGUMENTS, KERNEL_WORK, hStream, false)
LAUNCH(cuLaunchKernel_ptsz, KERNEL_PARAMETERS, KERNEL_ARGUMENTS, KERNEL_WORK, hStream, true)

#define COOPERATIVE_PARAMETERS                                                                                         \
	(CUfunction f, unsigned int gridDimX, unsigned int gridDimY, unsigned int gridDimZ, unsigned int blockDimX,    \
		unsigned int blockDimY, unsigned int blockDimZ, unsigned int sharedMemBytes, CUstream hStream,         \
		void **kernelParams)
#define COOPERATIVE_ARGUMENTS                                                                                          \
	(f, gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ, sharedMemBytes, hStream, kernelParams)

LAUNCH(cuLaunchCooperativeKernel, COOPERATIVE_PARAMETERS, COOPERATIVE_ARGUMENTS, KERNEL_WORK, hStream, false)
LAUNCH(cuLaunchCooperativeKernel_ptsz, COOPERATIVE_PARAMETERS, COOPERATIVE_ARGUMENTS, KERNEL_WORK, hStream, true)

static inline struct work config_work(const CUlaunchConfig *config, CUfunction f)
{
	return config == NULL ? (struct work){0}
			      : kernel_work(f, config->gridDimX, config->gridDimY, config->gridDimZ,
					(uint64_t)config->blockDimX * config->blockDimY * config->blockDimZ);
}

#define EX_PARAMETERS (const CUlaunchConfig *config, CUfunction f, void **kernelParams, void **extra)
#define EX_ARGUMENTS  (config, f, kernelParams, extra)

LAUNCH(cuLaunchKernelEx, EX_PARAMETERS, EX_ARGUMENTS, config_work(config, f), config == NULL ? NULL : config->hStream,
	false)
LAUNCH(cuLaunchKernelEx_ptsz, EX_PARAMETERS, EX_ARGUMENTS, config_work(config, f),
	config == NULL ? NULL : config->hStream, true)

static inline struct work list_work(const CUDA_LAUNCH_PARAMS *first, unsigned int count)
{
	return first == NULL || count == 0
		       ? (struct work){0}
		       : kernel_work(first->function, first->gridDimX, first->gridDimY, first->gridDimZ,
				 (uint64_t)first->blockDimX * first->blockDimY * first->blockDimZ);
}

/* One kernel on several devices at once: paid for where the caller is. */
LAUNCH(cuLaunchCooperativeKernelMultiDevice,
	(CUDA_LAUNCH_PARAMS * launchParamsList, unsigned int numDevices, unsigned int flags),
	(launchParamsList, numDevices, flags), list_work(launchParamsList, numDevices),
	launchParamsList == NULL || numDevices == 0 ? NULL : launchParamsList->hStream, false)

LAUNCH(cuLaunch, (CUfunction f), (f), kernel_work(f, 1, 1, 1, 0), NULL, false)
LAUNCH(cuLaunchGrid, (CUfunction f, int grid_width, int grid_height), (f, grid_width, grid_height),
	kernel_work(f, (unsigned)grid_width, (unsigned)grid_height, 1, 0), NULL, false)
LAUNCH(cuLaunchGridAsync, (CUfunction f, int grid_width, int grid_height, CUstream hStream),
	(f, grid_width, grid_height, hStream), kernel_work(f, (unsigned)grid_width, (unsigned)grid_height, 1, 0),
	hStream, false)

static void captures_add(CUresult result, int change)
{
	struct shim *shim = result == CUDA_SUCCESS ? shim_get() : NULL;

	if (shim != NULL)
		atomic_fetch_add(&shim->captures, change);
}

/* Counted before it begins and after it ends: nothing is measured in between. */
#define BEGIN_CAPTURE(symbol, ...)                                                                                     \
	CUresult result;                                                                                               \
                                                                                                                       \
	REAL(symbol);                                                                                                  \
	captures_add(CUDA_SUCCESS, 1);                                                                                 \
	result = driver.symbol(__VA_ARGS__);                                                                           \
	if (result != CUDA_SUCCESS)                                                                                    \
		captures_add(CUDA_SUCCESS, -1);                                                                        \
	return result

CUresult cuStreamBeginCapture(CUstream hStream)
{
	BEGIN_CAPTURE(cuStreamBeginCapture, hStream);
}

CUresult cuStreamBeginCapture_ptsz(CUstream hStream)
{
	BEGIN_CAPTURE(cuStreamBeginCapture_ptsz, hStream);
}

CUresult cuStreamBeginCapture_v2(CUstream hStream, CUstreamCaptureMode mode)
{
	BEGIN_CAPTURE(cuStreamBeginCapture_v2, hStream, mode);
}

CUresult cuStreamBeginCapture_v2_ptsz(CUstream hStream, CUstreamCaptureMode mode)
{
	BEGIN_CAPTURE(cuStreamBeginCapture_v2_ptsz, hStream, mode);
}

CUresult cuStreamBeginCaptureToGraph(CUstream hStream, CUgraph hGraph, const CUgraphNode *dependencies,
	const CUgraphEdgeData *dependencyData, size_t numDependencies, CUstreamCaptureMode mode)
{
	BEGIN_CAPTURE(
		cuStreamBeginCaptureToGraph, hStream, hGraph, dependencies, dependencyData, numDependencies, mode);
}

CUresult cuStreamBeginCaptureToGraph_ptsz(CUstream hStream, CUgraph hGraph, const CUgraphNode *dependencies,
	const CUgraphEdgeData *dependencyData, size_t numDependencies, CUstreamCaptureMode mode)
{
	BEGIN_CAPTURE(
		cuStreamBeginCaptureToGraph_ptsz, hStream, hGraph, dependencies, dependencyData, numDependencies, mode);
}

CUresult cuStreamBeginRecaptureToGraph(CUstream hStream, CUstreamCaptureMode mode, CUgraph hGraph,
	CUgraphRecaptureCallback callbackFunc, void *userData)
{
	BEGIN_CAPTURE(cuStreamBeginRecaptureToGraph, hStream, mode, hGraph, callbackFunc, userData);
}

CUresult cuStreamBeginRecaptureToGraph_ptsz(CUstream hStream, CUstreamCaptureMode mode, CUgraph hGraph,
	CUgraphRecaptureCallback callbackFunc, void *userData)
{
	BEGIN_CAPTURE(cuStreamBeginRecaptureToGraph_ptsz, hStream, mode, hGraph, callbackFunc, userData);
}

/* A capture that was invalidated is ended too, and says so with an error: only "there was none" leaves the count alone.
 */
static CUresult capture_ended(CUresult result)
{
	struct shim *shim = shim_get();
	int captures = shim != NULL ? atomic_load(&shim->captures) : 0;

	if (shim == NULL || result == CUDA_ERROR_INVALID_VALUE || result == CUDA_ERROR_INVALID_HANDLE ||
		result == CUDA_ERROR_INVALID_CONTEXT)
		return result;
	while (captures > 0 && !atomic_compare_exchange_weak(&shim->captures, &captures, captures - 1))
		;
	return result;
}

CUresult cuStreamEndCapture(CUstream hStream, CUgraph *phGraph)
{
	REAL(cuStreamEndCapture);
	return capture_ended(driver.cuStreamEndCapture(hStream, phGraph));
}

CUresult cuStreamEndCapture_ptsz(CUstream hStream, CUgraph *phGraph)
{
	REAL(cuStreamEndCapture_ptsz);
	return capture_ended(driver.cuStreamEndCapture_ptsz(hStream, phGraph));
}
