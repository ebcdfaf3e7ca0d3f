/* driver.c: start, devices, contexts. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>

#include "driver.h"
#include "uuid.h"

enum { VERSION = 13000, DEPTH = 32, INJECTIONS = 16 };

static _Atomic int initialised;
static struct {
	char function[64];
	CUresult result;
	_Atomic int left;
} injections[INJECTIONS];

void fakeFail(const char *function, CUresult result, int count)
{
	for (int i = 0; i < INJECTIONS; i++) {
		if (atomic_load(&injections[i].left) > 0)
			continue;
		strncpy(injections[i].function, function, sizeof(injections[i].function) - 1);
		injections[i].result = result;
		atomic_store(&injections[i].left, count);
		return;
	}
}

uint64_t fakeUsedBytes(int device)
{
	fake_look_at_exports();
	return fake_used(device);
}

uint64_t fakeOwnBytes(int device)
{
	struct fake_state *state = fake_state();
	const int card = fake_card(device);
	uint64_t bytes;

	if (card < 0 || state->devices[card].context_bytes != 0)
		return 0;
	fake_look_at_exports();
	fake_lock(state);
	bytes = fake_self(state)->used_bytes[card];
	fake_unlock(state);
	return bytes;
}

uint64_t fakeBusyNanoseconds(int device)
{
	return atomic_load(&fake_state()->devices[device].busy_ns);
}

CUresult fake_enter(const char *function)
{
	for (int i = 0; i < INJECTIONS; i++)
		if (atomic_load_explicit(&injections[i].left, memory_order_relaxed) > 0 &&
			strcmp(injections[i].function, function) == 0 && atomic_fetch_sub(&injections[i].left, 1) > 0)
			return injections[i].result;
	return atomic_load_explicit(&initialised, memory_order_relaxed) ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
}

CUresult cuInit(unsigned int flags)
{
	int devices[FAKE_DEVICES];

	(void)flags;
	if (fake_visible(true, devices) == 0)
		return CUDA_ERROR_NO_DEVICE;
	atomic_store(&initialised, 1);
	return CUDA_SUCCESS;
}

CUresult cuDriverGetVersion(int *version)
{
	*version = VERSION;
	return CUDA_SUCCESS;
}

int fake_card(CUdevice ordinal)
{
	int devices[FAKE_DEVICES];
	const int count = fake_visible(true, devices);

	return ordinal >= 0 && ordinal < count ? devices[ordinal] : -1;
}

CUresult cuDeviceGetCount(int *count)
{
	int devices[FAKE_DEVICES];

	ENTER();
	*count = fake_visible(true, devices);
	return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
	ENTER();
	if (fake_card(ordinal) < 0)
		return CUDA_ERROR_INVALID_DEVICE;
	*device = ordinal;
	return CUDA_SUCCESS;
}

CUresult cuDeviceGetName(char *name, int len, CUdevice dev)
{
	const int card = fake_card(dev);

	ENTER();
	if (card < 0 || len <= 0)
		return CUDA_ERROR_INVALID_DEVICE;
	strncpy(name, fake_state()->devices[card].name, (size_t)len);
	name[len - 1] = '\0';
	return CUDA_SUCCESS;
}

CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice dev)
{
	const int card = fake_card(dev);
	struct uuid bytes;

	ENTER();
	if (card < 0)
		return CUDA_ERROR_INVALID_DEVICE;
	bytes = uuid_from_text(fake_state()->devices[card].uuid);
	memcpy(uuid->bytes, bytes.bytes, sizeof(uuid->bytes));
	return CUDA_SUCCESS;
}

CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice dev)
{
	return cuDeviceGetUuid_v2(uuid, dev);
}

CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice dev)
{
	const int card = fake_card(dev);

	ENTER();
	if (card < 0)
		return CUDA_ERROR_INVALID_DEVICE;
	*bytes = fake_state()->devices[card].total_bytes;
	return CUDA_SUCCESS;
}

CUresult cuDeviceTotalMem(unsigned int *bytes, CUdevice dev)
{
	size_t full;
	CUresult result = cuDeviceTotalMem_v2(&full, dev);

	if (result == CUDA_SUCCESS)
		*bytes = full > UINT32_MAX ? UINT32_MAX : (unsigned int)full;
	return result;
}

/* Contexts: a stack per thread. */

static __thread struct CUctx_st *stack[DEPTH];
static __thread int depth;
static _Atomic uint64_t last_context;
static struct CUctx_st primaries[FAKE_DEVICES];
static _Atomic int primary_refs[FAKE_DEVICES];

struct CUctx_st *fake_context(void)
{
	return depth > 0 ? stack[depth - 1] : NULL;
}

static CUresult context_open(struct CUctx_st *context, CUdevice ordinal, bool primary)
{
	const int card = fake_card(ordinal);

	if (card < 0)
		return CUDA_ERROR_INVALID_DEVICE;
	if (!fake_take(card, fake_state()->devices[card].context_bytes))
		return CUDA_ERROR_OUT_OF_MEMORY;
	*context = (struct CUctx_st){
		.device = card, .ordinal = ordinal, .id = atomic_fetch_add(&last_context, 1) + 1, .primary = primary};
	return CUDA_SUCCESS;
}

static void context_close(struct CUctx_st *context)
{
	fake_forget_context(context->id);
	for (int i = 0; i < FAKE_LIMITS; i++)
		fake_give(context->device, context->limits[i]);
	fake_give(context->device, fake_state()->devices[context->device].context_bytes);
}

static CUresult context_create(CUcontext *pctx, CUdevice dev)
{
	struct CUctx_st *context;
	CUresult result;

	if (pctx == NULL || depth == DEPTH)
		return CUDA_ERROR_INVALID_VALUE;
	context = calloc(1, sizeof(*context));
	if (context == NULL)
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = context_open(context, dev, false);
	if (result != CUDA_SUCCESS) {
		free(context);
		return result;
	}
	stack[depth++] = context;
	*pctx = context;
	return CUDA_SUCCESS;
}

CUresult cuCtxCreate(CUcontext *pctx, unsigned int flags, CUdevice dev)
{
	(void)flags;
	ENTER();
	return context_create(pctx, dev);
}

CUresult cuCtxCreate_v2(CUcontext *pctx, unsigned int flags, CUdevice dev)
{
	(void)flags;
	ENTER();
	return context_create(pctx, dev);
}

CUresult cuCtxCreate_v3(CUcontext *pctx, CUexecAffinityParam *params, int numParams, unsigned int flags, CUdevice dev)
{
	(void)params;
	(void)numParams;
	(void)flags;
	ENTER();
	return context_create(pctx, dev);
}

CUresult cuCtxCreate_v4(CUcontext *pctx, CUctxCreateParams *params, unsigned int flags, CUdevice dev)
{
	(void)params;
	(void)flags;
	ENTER();
	return context_create(pctx, dev);
}

CUresult cuCtxDestroy_v2(CUcontext ctx)
{
	ENTER();
	if (ctx == NULL || ctx->primary)
		return CUDA_ERROR_INVALID_CONTEXT;
	if (fake_context() == ctx)
		depth--;
	context_close(ctx);
	free(ctx);
	return CUDA_SUCCESS;
}

CUresult cuCtxDestroy(CUcontext ctx)
{
	return cuCtxDestroy_v2(ctx);
}

CUresult cuCtxGetCurrent(CUcontext *pctx)
{
	ENTER();
	*pctx = fake_context();
	return CUDA_SUCCESS;
}

CUresult cuCtxSetCurrent(CUcontext ctx)
{
	ENTER();
	if (depth > 0)
		depth--;
	if (ctx != NULL)
		stack[depth++] = ctx;
	return CUDA_SUCCESS;
}

CUresult cuCtxPushCurrent_v2(CUcontext ctx)
{
	ENTER();
	if (ctx == NULL || depth == DEPTH)
		return CUDA_ERROR_INVALID_VALUE;
	stack[depth++] = ctx;
	return CUDA_SUCCESS;
}

CUresult cuCtxPopCurrent_v2(CUcontext *pctx)
{
	ENTER();
	if (depth == 0)
		return CUDA_ERROR_INVALID_CONTEXT;
	depth--;
	if (pctx != NULL)
		*pctx = stack[depth];
	return CUDA_SUCCESS;
}

/* The heap of a context's kernels is memory of the card; what it is set to below its first size changes nothing. */
CUresult cuCtxSetLimit(CUlimit limit, size_t value)
{
	ENTER();
	NEED_CONTEXT(context);
	if (limit != CU_LIMIT_MALLOC_HEAP_SIZE && limit != CU_LIMIT_PRINTF_FIFO_SIZE)
		return CUDA_SUCCESS;
	if (value > context->limits[limit] && !fake_take(context->device, value - context->limits[limit]))
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (value < context->limits[limit])
		fake_give(context->device, context->limits[limit] - value);
	context->limits[limit] = value;
	return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice(CUdevice *device)
{
	ENTER();
	NEED_CONTEXT(context);
	*device = context->ordinal;
	return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *pctx, CUdevice dev)
{
	CUresult result = CUDA_SUCCESS;

	ENTER();
	if (dev < 0 || dev >= FAKE_DEVICES || pctx == NULL)
		return CUDA_ERROR_INVALID_DEVICE;
	if (atomic_fetch_add(&primary_refs[dev], 1) == 0)
		result = context_open(&primaries[dev], dev, true);
	if (result != CUDA_SUCCESS)
		atomic_fetch_sub(&primary_refs[dev], 1);
	else
		*pctx = &primaries[dev];
	return result;
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice dev)
{
	ENTER();
	if (dev < 0 || dev >= FAKE_DEVICES || atomic_load(&primary_refs[dev]) == 0)
		return CUDA_ERROR_INVALID_CONTEXT;
	if (atomic_fetch_sub(&primary_refs[dev], 1) == 1)
		context_close(&primaries[dev]);
	return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRelease(CUdevice dev)
{
	return cuDevicePrimaryCtxRelease_v2(dev);
}

CUresult cuDevicePrimaryCtxReset_v2(CUdevice dev)
{
	ENTER();
	if (dev < 0 || dev >= FAKE_DEVICES)
		return CUDA_ERROR_INVALID_DEVICE;
	if (atomic_exchange(&primary_refs[dev], 0) > 0)
		context_close(&primaries[dev]);
	return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxReset(CUdevice dev)
{
	return cuDevicePrimaryCtxReset_v2(dev);
}

CUresult cuGreenCtxCreate(CUgreenCtx *phCtx, CUdevResourceDesc desc, CUdevice dev, unsigned int flags)
{
	struct CUctx_st *context;
	CUresult result;

	(void)desc;
	(void)flags;
	ENTER();
	context = calloc(1, sizeof(*context));
	result = context == NULL ? CUDA_ERROR_OUT_OF_MEMORY : context_open(context, dev, false);
	*phCtx = (CUgreenCtx)context;
	return result;
}

CUresult cuGreenCtxDestroy(CUgreenCtx hCtx)
{
	ENTER();
	/* It is a part of the primary context, in which its memory lies and stays. */
	fake_give(((struct CUctx_st *)hCtx)->device,
		fake_state()->devices[((struct CUctx_st *)hCtx)->device].context_bytes);
	free(hCtx);
	return CUDA_SUCCESS;
}
