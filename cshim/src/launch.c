/* launch.c: kernels, and the captures that only record them. */
#include "limiter.h"

/* Two launches of one kernel cost the same if their grids do. */
static inline uint64_t kernel_key(CUfunction function, uint64_t x, uint64_t y, uint64_t z, uint64_t threads)
{
	return (uint64_t)(uintptr_t)function ^ (x * 0x9e3779b1u + y * 0x85ebca6bu + z * 0xc2b2ae35u) << 16 ^ threads << 1;
}

#define LAUNCH(symbol, key, stream, per_thread, ...)                                                                   \
	struct launch launch;                                                                                          \
                                                                                                                       \
	REAL(symbol);                                                                                                  \
	launch_begin(&launch, key, stream, per_thread);                                                                \
	return launch_end(&launch, driver.symbol(__VA_ARGS__))

#define KERNEL_KEY kernel_key(f, gridDimX, gridDimY, gridDimZ, (uint64_t)blockDimX * blockDimY * blockDimZ)
#define CONFIG_KEY                                                                                                     \
	(config == NULL ? 0                                                                                            \
			: kernel_key(f, config->gridDimX, config->gridDimY, config->gridDimZ,                          \
				  (uint64_t)config->blockDimX * config->blockDimY * config->blockDimZ))
#define CONFIG_STREAM (config == NULL ? NULL : config->hStream)

CUresult cuLaunchKernel(CUfunction f, unsigned int gridDimX, unsigned int gridDimY, unsigned int gridDimZ,
	unsigned int blockDimX, unsigned int blockDimY, unsigned int blockDimZ, unsigned int sharedMemBytes,
	CUstream hStream, void **kernelParams, void **extra)
{
	LAUNCH(cuLaunchKernel, KERNEL_KEY, hStream, false, f, gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ,
		sharedMemBytes, hStream, kernelParams, extra);
}

CUresult cuLaunchKernel_ptsz(CUfunction f, unsigned int gridDimX, unsigned int gridDimY, unsigned int gridDimZ,
	unsigned int blockDimX, unsigned int blockDimY, unsigned int blockDimZ, unsigned int sharedMemBytes,
	CUstream hStream, void **kernelParams, void **extra)
{
	LAUNCH(cuLaunchKernel_ptsz, KERNEL_KEY, hStream, true, f, gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY,
		blockDimZ, sharedMemBytes, hStream, kernelParams, extra);
}

CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction f, void **kernelParams, void **extra)
{
	LAUNCH(cuLaunchKernelEx, CONFIG_KEY, CONFIG_STREAM, false, config, f, kernelParams, extra);
}

CUresult cuLaunchKernelEx_ptsz(const CUlaunchConfig *config, CUfunction f, void **kernelParams, void **extra)
{
	LAUNCH(cuLaunchKernelEx_ptsz, CONFIG_KEY, CONFIG_STREAM, true, config, f, kernelParams, extra);
}

CUresult cuLaunchCooperativeKernel(CUfunction f, unsigned int gridDimX, unsigned int gridDimY, unsigned int gridDimZ,
	unsigned int blockDimX, unsigned int blockDimY, unsigned int blockDimZ, unsigned int sharedMemBytes,
	CUstream hStream, void **kernelParams)
{
	LAUNCH(cuLaunchCooperativeKernel, KERNEL_KEY, hStream, false, f, gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY,
		blockDimZ, sharedMemBytes, hStream, kernelParams);
}

CUresult cuLaunchCooperativeKernel_ptsz(CUfunction f, unsigned int gridDimX, unsigned int gridDimY,
	unsigned int gridDimZ, unsigned int blockDimX, unsigned int blockDimY, unsigned int blockDimZ,
	unsigned int sharedMemBytes, CUstream hStream, void **kernelParams)
{
	LAUNCH(cuLaunchCooperativeKernel_ptsz, KERNEL_KEY, hStream, true, f, gridDimX, gridDimY, gridDimZ, blockDimX,
		blockDimY, blockDimZ, sharedMemBytes, hStream, kernelParams);
}

/* One kernel on several devices at once: paid for where the caller is. */
CUresult cuLaunchCooperativeKernelMultiDevice(
	CUDA_LAUNCH_PARAMS *launchParamsList, unsigned int numDevices, unsigned int flags)
{
	const CUDA_LAUNCH_PARAMS *first = numDevices > 0 ? launchParamsList : NULL;

	LAUNCH(cuLaunchCooperativeKernelMultiDevice,
		first == NULL ? 0
			      : kernel_key(first->function, first->gridDimX, first->gridDimY, first->gridDimZ,
					(uint64_t)first->blockDimX * first->blockDimY * first->blockDimZ),
		first == NULL ? NULL : first->hStream, false, launchParamsList, numDevices, flags);
}

CUresult cuLaunch(CUfunction f)
{
	LAUNCH(cuLaunch, kernel_key(f, 1, 1, 1, 0), NULL, false, f);
}

CUresult cuLaunchGrid(CUfunction f, int grid_width, int grid_height)
{
	LAUNCH(cuLaunchGrid, kernel_key(f, (unsigned)grid_width, (unsigned)grid_height, 1, 0), NULL, false, f, grid_width,
		grid_height);
}

CUresult cuLaunchGridAsync(CUfunction f, int grid_width, int grid_height, CUstream hStream)
{
	LAUNCH(cuLaunchGridAsync, kernel_key(f, (unsigned)grid_width, (unsigned)grid_height, 1, 0), hStream, false, f,
		grid_width, grid_height, hStream);
}

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

/* A capture that was invalidated is ended too, and says so with an error: only "there was none" leaves the count alone. */
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
