/* context.c: contexts, whose memory is the driver's own, and the figures that a program asks for. */
#include "charge.h"
#include "limits.h"
#include "pool.h"
#include "quota.h"
#include "vmm.h"

CUresult cuInit(unsigned int flags)
{
	CUresult result;

	REAL(cuInit);
	result = driver.cuInit(flags);
	if (result == CUDA_SUCCESS && !charge_nested) {
		struct shim *shim = shim_get(); /* a limit that cannot be read stops the process here, not at its first
						   allocation */

		if (shim != NULL)
			(void)shim_map_devices(shim);
	}
	return result;
}

/* One charge per device and process, whatever the number of contexts. */
static bool context_begin(struct charge *charge, CUdevice device)
{
	struct shim *shim = charge_nested ? NULL : shim_get();
	const int row = shim != NULL ? shim_row_of_device(shim, device) : ROW_NONE;
	uint64_t bytes = 0;

	if (row == ROW_DENIED) /* it may look at the device; memory there is refused */
		return charge_begin_on(charge, shim, ROW_NONE, 0);
	if (row >= 0 && atomic_load(&shim->context_counts[row]) == 0)
		bytes = shim_device(shim, row)->context_bytes;
	return charge_begin_on(charge, shim, row, bytes);
}

static void context_added(struct charge *charge, CUresult result)
{
	struct shim *shim = charge->shim;
	const uint64_t bytes = charge->bytes;

	charge_correct(charge, result, bytes);
	if (shim == NULL || result != CUDA_SUCCESS)
		return;
	if (atomic_fetch_add(&shim->context_counts[charge->row], 1) == 0) {
		atomic_store(&shim->context_charges[charge->row], bytes);
		atomic_store(&shim_use(shim, charge->row)->context_bytes, bytes);
		atomic_fetch_or(&shim->own->contexts, UINT64_C(1) << charge->row);
	} else {
		charge_give(shim, charge->row, bytes);
	}
}

static void context_removed(struct shim *shim, int row)
{
	uint32_t count = atomic_load(&shim->context_counts[row]);

	while (count > 0 && !atomic_compare_exchange_weak(&shim->context_counts[row], &count, count - 1))
		;
	if (count != 1)
		return;
	charge_give(shim, row, atomic_exchange(&shim->context_charges[row], 0));
	atomic_store(&shim_use(shim, row)->context_bytes, 0);
	atomic_fetch_and(&shim->own->contexts, ~(UINT64_C(1) << row));
}

/* What was allocated in a context goes with it. */
static void drop_allocations(struct shim *shim, uint64_t context)
{
	struct table_entry entry;

	while (context != 0 && (table_take_scope(&shim->pointers, context, &entry) ||
				       table_take_scope(&shim->managed, context, &entry) ||
				       table_take_scope(&shim->arrays, context, &entry))) {
		if (entry.kind == KIND_ARRAY)
			vmm_drop_array(shim, entry.key);
		charge_give(shim, entry.device, entry.bytes);
	}
}

#define CONTEXT_CREATE(symbol, device, ...)                                                                            \
	struct charge charge;                                                                                          \
	CUresult result;                                                                                               \
                                                                                                                       \
	REAL(symbol);                                                                                                  \
	if (!context_begin(&charge, device))                                                                           \
		return CUDA_ERROR_OUT_OF_MEMORY;                                                                       \
	result = driver.symbol(__VA_ARGS__);                                                                           \
	context_added(&charge, result);                                                                                \
	return result

CUresult cuCtxCreate_v4(CUcontext *pctx, CUctxCreateParams *params, unsigned int flags, CUdevice dev)
{
	CONTEXT_CREATE(cuCtxCreate_v4, dev, pctx, params, flags, dev);
}

CUresult cuCtxCreate_v3(CUcontext *pctx, CUexecAffinityParam *params, int numParams, unsigned int flags, CUdevice dev)
{
	CONTEXT_CREATE(cuCtxCreate_v3, dev, pctx, params, numParams, flags, dev);
}

CUresult cuCtxCreate_v2(CUcontext *pctx, unsigned int flags, CUdevice dev)
{
	CONTEXT_CREATE(cuCtxCreate_v2, dev, pctx, flags, dev);
}

CUresult cuCtxCreate(CUcontext *pctx, unsigned int flags, CUdevice dev)
{
	CONTEXT_CREATE(cuCtxCreate, dev, pctx, flags, dev);
}

CUresult cuGreenCtxCreate(CUgreenCtx *phCtx, CUdevResourceDesc desc, CUdevice dev, unsigned int flags)
{
	struct shim *shim = SHIM_HERE();
	struct table_entry entry = {.kind = KIND_UNCHARGED};
	struct charge charge;
	CUresult result;

	REAL(cuGreenCtxCreate);
	if (!context_begin(&charge, dev))
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = driver.cuGreenCtxCreate(phCtx, desc, dev, flags);
	context_added(&charge, result);
	if (charge.shim == NULL || result != CUDA_SUCCESS || phCtx == NULL)
		return result;
	entry.key = (uint64_t)(uintptr_t)*phCtx;
	entry.device = (uint16_t)charge.row;
	(void)table_put(&shim->externals, &entry);
	return result;
}

CUresult cuGreenCtxDestroy(CUgreenCtx hCtx)
{
	struct shim *shim = SHIM_HERE();
	struct table_entry entry;

	REAL(cuGreenCtxDestroy);
	if (shim != NULL && table_take(&shim->externals, (uint64_t)(uintptr_t)hCtx, &entry))
		context_removed(shim, entry.device);
	return driver.cuGreenCtxDestroy(hCtx);
}

static CUresult destroy_context(CUcontext ctx, CUresult (*destroy)(CUcontext))
{
	struct shim *shim = charge_nested ? NULL : shim_get();
	const int row = shim != NULL && ctx != NULL ? shim_row_of_other_context(shim, ctx) : ROW_NONE;
	CUresult result;

	if (row < 0)
		return destroy(ctx);
	shim_forget_context(shim, ctx);
	result = destroy(ctx);
	if (result != CUDA_SUCCESS)
		return result;
	drop_allocations(shim, (uint64_t)(uintptr_t)ctx);
	context_removed(shim, row);
	return result;
}

CUresult cuCtxDestroy_v2(CUcontext ctx)
{
	REAL(cuCtxDestroy_v2);
	return destroy_context(ctx, driver.cuCtxDestroy_v2);
}

CUresult cuCtxDestroy(CUcontext ctx)
{
	REAL(cuCtxDestroy);
	return destroy_context(ctx, driver.cuCtxDestroy);
}

/* The heap and the output buffer of a context's kernels, which are memory of the device. */
CUresult cuCtxSetLimit(CUlimit limit, size_t value)
{
	struct shim *shim = SHIM_HERE();
	struct table_entry known = {0};
	struct charge charge;
	uint64_t key;
	CUresult result;

	REAL(cuCtxSetLimit);
	if (shim == NULL || (limit != CU_LIMIT_MALLOC_HEAP_SIZE && limit != CU_LIMIT_PRINTF_FIFO_SIZE))
		return driver.cuCtxSetLimit(limit, value);
	(void)shim_row_of_context(shim, &key);
	key ^= (uint64_t)limit << 56;
	(void)table_get(&shim->arrays, key, &known);
	if (!charge_begin(&charge, quota_left(known.bytes, value)))
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = driver.cuCtxSetLimit(limit, value);
	charge_correct(&charge, result, charge.bytes);
	if (charge.shim == NULL || result != CUDA_SUCCESS)
		return result;
	if (value < known.bytes)
		charge_give(shim, charge.row, known.bytes - value);
	known = (struct table_entry){.key = key,
		.bytes = value,
		.scope = charge.context,
		.device = (uint16_t)charge.row,
		.kind = KIND_LIMIT};
	(void)table_put(&shim->arrays, &known);
	return result;
}

static uint64_t device_key(CUdevice device)
{
	return (uint64_t)(uint32_t)device + 1;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *pctx, CUdevice dev)
{
	struct table_entry primary = {.key = device_key(dev)};
	struct charge charge;
	CUresult result;

	REAL(cuDevicePrimaryCtxRetain);
	if (!context_begin(&charge, dev))
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = driver.cuDevicePrimaryCtxRetain(pctx, dev);
	if (charge.shim != NULL && result == CUDA_SUCCESS && pctx != NULL) {
		struct shim *shim = charge.shim;

		spin_take(&shim->context_lock);
		if (table_take(&shim->primaries, primary.key, &primary)) {
			charge_correct(&charge, result, 0); /* retained before: nothing new was made */
		} else {
			context_added(&charge, result);
			primary.device = (uint16_t)charge.row;
		}
		primary.scope = (uint64_t)(uintptr_t)*pctx;
		primary.tag++;
		(void)table_put(&shim->primaries, &primary);
		spin_give(&shim->context_lock);
	} else {
		charge_correct(&charge, result, 0);
	}
	return result;
}

/* `all`: a reset, which ends the context whoever still retains it. */
static void primary_released(struct shim *shim, CUdevice device, bool all)
{
	struct table_entry primary;
	bool last = false;

	spin_take(&shim->context_lock);
	if (table_take(&shim->primaries, device_key(device), &primary)) {
		last = all || --primary.tag == 0;
		if (!last)
			(void)table_put(&shim->primaries, &primary);
	}
	spin_give(&shim->context_lock);
	if (!last)
		return;
	shim_forget_context(shim, (CUcontext)(uintptr_t)primary.scope);
	drop_allocations(shim, primary.scope);
	context_removed(shim, primary.device);
	pool_resample(shim);
}

static CUresult end_primary(CUdevice device, CUresult (*end)(CUdevice), bool all)
{
	struct shim *shim = charge_nested ? NULL : shim_get();
	CUresult result = end(device);

	if (result == CUDA_SUCCESS && shim != NULL)
		primary_released(shim, device, all);
	return result;
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice dev)
{
	REAL(cuDevicePrimaryCtxRelease_v2);
	return end_primary(dev, driver.cuDevicePrimaryCtxRelease_v2, false);
}

CUresult cuDevicePrimaryCtxRelease(CUdevice dev)
{
	REAL(cuDevicePrimaryCtxRelease);
	return end_primary(dev, driver.cuDevicePrimaryCtxRelease, false);
}

CUresult cuDevicePrimaryCtxReset_v2(CUdevice dev)
{
	REAL(cuDevicePrimaryCtxReset_v2);
	return end_primary(dev, driver.cuDevicePrimaryCtxReset_v2, true);
}

CUresult cuDevicePrimaryCtxReset(CUdevice dev)
{
	REAL(cuDevicePrimaryCtxReset);
	return end_primary(dev, driver.cuDevicePrimaryCtxReset, true);
}

/* The share's view of a card's figures; both are changed in place. */
static void show_share(struct shim *shim, int row, uint64_t *free_bytes, uint64_t *total_bytes)
{
	const uint64_t limit = shim_memory_limit(shim, row);
	uint64_t left;

	if (limit == UINT64_MAX)
		return;
	pool_resample(shim);
	if (limit < *total_bytes)
		*total_bytes = limit;
	left = quota_left(charge_shown(shim, row), *total_bytes);
	if (!(shim->grant->flags & GRANT_FREE_IS_PHYSICAL) || left < *free_bytes)
		*free_bytes = left;
}

CUresult cuMemGetInfo_v2(size_t *free, size_t *total)
{
	struct shim *shim = SHIM_HERE();
	size_t free_bytes = 0, total_bytes = 0;
	uint64_t context;
	CUresult result;
	int row;

	REAL(cuMemGetInfo_v2);
	if (shim == NULL)
		return driver.cuMemGetInfo_v2(free, total);
	result = driver.cuMemGetInfo_v2(&free_bytes, &total_bytes);
	if (result != CUDA_SUCCESS)
		return result;
	row = shim_row_of_context(shim, &context);
	if (row >= 0) {
		uint64_t share_free = free_bytes, share_total = total_bytes;

		show_share(shim, row, &share_free, &share_total);
		free_bytes = share_free;
		total_bytes = share_total;
	} else if (row == ROW_DENIED) {
		free_bytes = 0;
	}
	if (free != NULL)
		*free = free_bytes;
	if (total != NULL)
		*total = total_bytes;
	return result;
}

static unsigned int in_32_bits(size_t bytes)
{
	return bytes > UINT32_MAX ? UINT32_MAX : (unsigned int)bytes;
}

CUresult cuMemGetInfo(unsigned int *free, unsigned int *total)
{
	size_t free_bytes = 0, total_bytes = 0;
	CUresult result;

	REAL(cuMemGetInfo);
	if (driver.cuMemGetInfo_v2 == NULL)
		return driver.cuMemGetInfo(free, total);
	result = cuMemGetInfo_v2(&free_bytes, &total_bytes);
	if (result == CUDA_SUCCESS && free != NULL)
		*free = in_32_bits(free_bytes);
	if (result == CUDA_SUCCESS && total != NULL)
		*total = in_32_bits(total_bytes);
	return result;
}

CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice dev)
{
	struct shim *shim = SHIM_HERE();
	CUresult result;
	int row;

	REAL(cuDeviceTotalMem_v2);
	result = driver.cuDeviceTotalMem_v2(bytes, dev);
	if (result != CUDA_SUCCESS || shim == NULL || bytes == NULL)
		return result;
	row = shim_row_of_device(shim, dev);
	if (row >= 0 && shim_memory_limit(shim, row) < *bytes)
		*bytes = shim_memory_limit(shim, row);
	return result;
}

CUresult cuDeviceTotalMem(unsigned int *bytes, CUdevice dev)
{
	size_t full = 0;
	CUresult result;

	REAL(cuDeviceTotalMem);
	if (driver.cuDeviceTotalMem_v2 == NULL)
		return driver.cuDeviceTotalMem(bytes, dev);
	result = cuDeviceTotalMem_v2(&full, dev);
	if (result == CUDA_SUCCESS && bytes != NULL)
		*bytes = in_32_bits(full);
	return result;
}
