/* stream.c: contexts and streams: on which device they are, and whether what goes into a stream is captured. */
#include <stddef.h>

#include "shim.h"

static struct context_row *context_place(struct shim *shim, uint64_t context)
{
	return &shim->contexts[(context >> 4 ^ context >> 12) % CONTEXTS];
}

/* The device of a context, which is only told while it is current: one that is not is made so for a moment. */
static bool device_of_context(CUcontext context, bool current, CUdevice *device)
{
	CUcontext popped;
	bool told;

	if (driver.cuCtxGetDevice == NULL)
		return false;
	if (current)
		return driver.cuCtxGetDevice(device) == CUDA_SUCCESS;
	if (driver.cuCtxPushCurrent_v2 == NULL || driver.cuCtxPopCurrent_v2 == NULL ||
		driver.cuCtxPushCurrent_v2(context) != CUDA_SUCCESS)
		return false;
	told = driver.cuCtxGetDevice(device) == CUDA_SUCCESS;
	(void)driver.cuCtxPopCurrent_v2(&popped);
	return told;
}

static int row_of_context(struct shim *shim, CUcontext context, bool current)
{
	const uint64_t key = (uint64_t)(uintptr_t)context;
	struct context_row *place = context_place(shim, key);
	CUdevice device;
	int row;

	if (atomic_load_explicit(&place->context, memory_order_acquire) == key) {
		row = atomic_load_explicit(&place->row, memory_order_acquire);
		if (atomic_load_explicit(&place->context, memory_order_acquire) == key)
			return row;
	}
	if (!device_of_context(context, current, &device))
		return shim->single_row >= 0 ? shim->single_row
					     : ROW_DENIED; /* a context on a device that we cannot name */
	row = shim_row_of_device(shim, device);
	if (row == ROW_NONE && !atomic_load(&shim->mapped))
		return ROW_NONE;
	atomic_store_explicit(&place->context, 0, memory_order_release);
	atomic_store_explicit(&place->row, row, memory_order_release);
	atomic_store_explicit(&place->context, key, memory_order_release);
	return row;
}

static CUcontext current_context(void)
{
	CUcontext current = NULL;

	if (!hooks_load_driver() || driver.cuCtxGetCurrent == NULL || driver.cuCtxGetCurrent(&current) != CUDA_SUCCESS)
		return NULL;
	return current;
}

int shim_row_of_context(struct shim *shim, uint64_t *context)
{
	const CUcontext current = current_context();

	*context = (uint64_t)(uintptr_t)current;
	/* Nothing can be allocated without one: the driver says so. */
	return current == NULL ? ROW_NONE : row_of_context(shim, current, true);
}

int shim_row_of_other_context(struct shim *shim, CUcontext context)
{
	return hooks_load_driver() ? row_of_context(shim, context, false) : ROW_NONE;
}

/* The context that a stream belongs to; the current one for the default streams, and where there is but one device. */
static CUcontext context_of_stream(const struct shim *shim, CUstream stream)
{
	const bool is_default = stream == NULL || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD;
	CUcontext context = NULL;

	if (is_default || shim->device_count == 1 || !hooks_load_driver() || driver.cuStreamGetCtx == NULL ||
		driver.cuStreamGetCtx(stream, &context) != CUDA_SUCCESS || context == NULL)
		return current_context();
	return context;
}

int shim_row_of_stream(struct shim *shim, CUstream stream)
{
	const CUcontext context = context_of_stream(shim, stream);

	return context == NULL ? ROW_NONE : row_of_context(shim, context, context == current_context());
}

bool shim_device_of_stream(struct shim *shim, CUstream stream, CUdevice *device)
{
	const CUcontext context = context_of_stream(shim, stream);

	return context != NULL && device_of_context(context, context == current_context(), device);
}

bool shim_enter_stream(struct shim *shim, CUstream stream)
{
	const CUcontext context = context_of_stream(shim, stream);

	return context != NULL && context != current_context() && driver.cuCtxPushCurrent_v2 != NULL &&
	       driver.cuCtxPopCurrent_v2 != NULL && driver.cuCtxPushCurrent_v2(context) == CUDA_SUCCESS;
}

void shim_leave_stream(bool entered)
{
	CUcontext context;

	if (entered)
		(void)driver.cuCtxPopCurrent_v2(&context);
}

void shim_forget_context(struct shim *shim, CUcontext context)
{
	uint64_t expected = (uint64_t)(uintptr_t)context;

	(void)atomic_compare_exchange_strong(&context_place(shim, expected)->context, &expected, 0);
}

bool shim_is_capturing(const struct shim *shim, CUstream stream, bool per_thread)
{
	CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
	CUresult result = CUDA_ERROR_NOT_FOUND;

	if (atomic_load_explicit(&shim->captures, memory_order_relaxed) == 0)
		return false;
	if (per_thread && driver.cuStreamIsCapturing_ptsz != NULL)
		result = driver.cuStreamIsCapturing_ptsz(stream, &status);
	else if (driver.cuStreamIsCapturing != NULL)
		result = driver.cuStreamIsCapturing(stream, &status);
	return result == CUDA_SUCCESS && status != CU_STREAM_CAPTURE_STATUS_NONE;
}

bool shim_may_ask(const struct shim *shim)
{
	return atomic_load(&shim->captures) == 0 || driver.cuThreadExchangeStreamCaptureMode != NULL;
}

struct relaxed shim_relax(void)
{
	struct relaxed relaxed = {.mode = CU_STREAM_CAPTURE_MODE_RELAXED};

	relaxed.done = driver.cuThreadExchangeStreamCaptureMode != NULL &&
		       driver.cuThreadExchangeStreamCaptureMode(&relaxed.mode) == CUDA_SUCCESS;
	return relaxed;
}

void shim_restore(struct relaxed relaxed)
{
	if (relaxed.done)
		(void)driver.cuThreadExchangeStreamCaptureMode(&relaxed.mode);
}
