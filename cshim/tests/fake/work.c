/* work.c: streams, events and kernels. A kernel's name says how long it runs: "spin_100us", "sort_2ms",
 * "x_500ns"; a name without a time runs for none. A card runs one kernel at a time, in the order of their launches.
 */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "driver.h"

struct CUevent_st {
	const struct CUctx_st *context;
	uint64_t at_ns;
	bool recorded;
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

void fakeRunFor(CUfunction function, uint64_t ns)
{
	function->ns = ns;
}

struct CUctx_st *fake_stream_context(const struct CUstream_st *stream)
{
	return stream->context != NULL ? stream->context : fake_context();
}

CUresult cuStreamCreate(CUstream *phStream, unsigned int Flags)
{
	(void)Flags;
	ENTER();
	NEED_CONTEXT(context);
	*phStream = calloc(1, sizeof(**phStream));
	if (*phStream == NULL)
		return CUDA_ERROR_OUT_OF_MEMORY;
	(*phStream)->context = context;
	return CUDA_SUCCESS;
}

CUresult cuStreamGetCtx(CUstream hStream, CUcontext *pctx)
{
	ENTER();
	*pctx = fake_stream_context(fake_stream(hStream, false));
	return *pctx != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
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

CUresult fake_launch(struct CUstream_st *stream, uint64_t ns)
{
	const struct CUctx_st *context = fake_stream_context(stream);
	const uint64_t now = fake_now_ns();

	if (context == NULL)
		return CUDA_ERROR_INVALID_CONTEXT;
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
	return fake_launch(fake_stream(stream, per_thread), function->ns);
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
	NEED_CONTEXT(context);
	*phEvent = calloc(1, sizeof(**phEvent));
	if (*phEvent == NULL)
		return CUDA_ERROR_OUT_OF_MEMORY;
	(*phEvent)->context = context;
	return CUDA_SUCCESS;
}

static CUresult event_record(CUevent event, struct CUstream_st *stream)
{
	const uint64_t now = fake_now_ns();

	if (event->context != fake_stream_context(stream))
		return CUDA_ERROR_INVALID_HANDLE;
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
	NOT_IN_A_CAPTURE();
	return hEvent->at_ns <= fake_now_ns() ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult cuEventSynchronize(CUevent hEvent)
{
	ENTER();
	NOT_IN_A_CAPTURE();
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
