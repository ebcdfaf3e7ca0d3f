/* memory.c: memory at an address: cuMemAlloc and its relatives, and every way to free what lies at one. */
#include "charge.h"
#include "graph.h"
#include "log.h"
#include "pool.h"
#include "quota.h"

enum { PITCH_ALIGNMENT = 512 }; /* rows are padded to at most this, on every card so far */

/* The card is full although the share is not: where the grant oversubscribes, go on in memory that can be paged out. */
static CUresult fall_back_to_managed(const struct charge *charge, CUresult result, CUdeviceptr *dptr, size_t bytesize)
{
	if (result != CUDA_ERROR_OUT_OF_MEMORY || charge->shim == NULL || !charge->shim->oversubscribe ||
		driver.cuMemAllocManaged == NULL)
		return result;
	return driver.cuMemAllocManaged(dptr, bytesize, CU_MEM_ATTACH_GLOBAL);
}

static struct table *pointers_of(const struct charge *charge)
{
	return charge->shim != NULL ? &charge->shim->pointers : NULL;
}

CUresult cuMemAlloc_v2(CUdeviceptr *dptr, size_t bytesize)
{
	struct charge charge;
	CUresult result;

	REAL(cuMemAlloc_v2);
	if (!charge_begin(&charge, bytesize))
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = driver.cuMemAlloc_v2(dptr, bytesize);
	result = fall_back_to_managed(&charge, result, dptr, bytesize);
	return charge_settle(&charge, pointers_of(&charge), result, dptr != NULL ? *dptr : 0, bytesize, KIND_DEVICE);
}

CUresult cuMemAlloc(CUdeviceptr_v1 *dptr, unsigned int bytesize)
{
	struct charge charge;
	CUresult result;

	REAL(cuMemAlloc);
	if (!charge_begin(&charge, bytesize))
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = driver.cuMemAlloc(dptr, bytesize);
	return charge_settle(&charge, pointers_of(&charge), result, dptr != NULL ? *dptr : 0, bytesize, KIND_DEVICE);
}

CUresult cuMemAllocManaged(CUdeviceptr *dptr, size_t bytesize, unsigned int flags)
{
	struct charge charge;
	CUresult result;

	REAL(cuMemAllocManaged);
	if (!charge_begin(&charge, bytesize))
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = driver.cuMemAllocManaged(dptr, bytesize, flags);
	return charge_settle(&charge, pointers_of(&charge), result, dptr != NULL ? *dptr : 0, bytesize, KIND_MANAGED);
}

/* Managed memory that is fetched to a device is charged there too, the whole of it and until it is freed: a part may be
 * on either, and comes back without a call. */
static uint64_t managed_key(CUdeviceptr pointer, int row)
{
	return pointer ^ (uint64_t)(row + 1) << 56;
}

static bool fetch_begin(struct shim *shim, CUdeviceptr pointer, const CUmemLocation *location)
{
	struct table_entry entry, there;
	int row;

	if (!table_get(&shim->pointers, pointer, &entry) && !table_find_range(&shim->pointers, pointer, &entry))
		return true;
	row = entry.kind == KIND_MANAGED ? shim_row_of_location(shim, location) : ROW_NONE;
	if (row == ROW_DENIED)
		return false;
	if (row < 0 || row == entry.device || table_get(&shim->managed, managed_key(entry.key, row), &there))
		return true;
	if (!charge_take(shim, row, entry.bytes))
		return false;
	entry.key = managed_key(entry.key, row);
	entry.device = (uint16_t)row;
	if (!table_put(&shim->managed, &entry))
		log_line(LOG_ERROR, "no memory to remember an allocation: it stays charged until this process ends");
	return true;
}

/* With one device there is nowhere else to go. */
static bool fetches_count(const struct shim *shim)
{
	return shim != NULL && shim->single_row < 0;
}

static void managed_freed(struct shim *shim, CUdeviceptr pointer)
{
	struct table_entry entry;

	for (int row = 0; row < (int)shim->grant->device_count; row++)
		if (table_take(&shim->managed, managed_key(pointer, row), &entry))
			charge_give(shim, row, entry.bytes);
}

#define PREFETCH(symbol)                                                                                               \
	CUresult symbol(CUdeviceptr devPtr, size_t count, CUdevice dstDevice, CUstream hStream)                        \
	{                                                                                                              \
		struct shim *shim = SHIM_HERE();                                                                       \
		const CUmemLocation location = {                                                                       \
			.type = dstDevice < 0 ? CU_MEM_LOCATION_TYPE_HOST : CU_MEM_LOCATION_TYPE_DEVICE,               \
			.id = dstDevice};                                                                              \
                                                                                                                       \
		REAL(symbol);                                                                                          \
		if (fetches_count(shim) && !fetch_begin(shim, devPtr, &location))                                      \
			return CUDA_ERROR_OUT_OF_MEMORY;                                                               \
		return driver.symbol(devPtr, count, dstDevice, hStream);                                               \
	}

#define PREFETCH_TO(symbol)                                                                                            \
	CUresult symbol(                                                                                               \
		CUdeviceptr devPtr, size_t count, CUmemLocation location, unsigned int flags, CUstream hStream)        \
	{                                                                                                              \
		struct shim *shim = SHIM_HERE();                                                                       \
                                                                                                                       \
		REAL(symbol);                                                                                          \
		if (fetches_count(shim) && !fetch_begin(shim, devPtr, &location))                                      \
			return CUDA_ERROR_OUT_OF_MEMORY;                                                               \
		return driver.symbol(devPtr, count, location, flags, hStream);                                         \
	}

/* Range i goes to the last of the locations whose first index is not beyond i. */
static bool fetch_batch(struct shim *shim, const CUdeviceptr *pointers, size_t count, const CUmemLocation *locations,
	const size_t *firsts, size_t places)
{
	size_t place = 0;

	if (pointers == NULL || locations == NULL || firsts == NULL || places == 0)
		return true; /* the driver refuses it */
	for (size_t i = 0; i < count; i++) {
		while (place + 1 < places && firsts[place + 1] <= i)
			place++;
		if (!fetch_begin(shim, pointers[i], &locations[place]))
			return false;
	}
	return true;
}

#define PREFETCH_BATCH(symbol)                                                                                         \
	CUresult symbol(CUdeviceptr *dptrs, size_t *sizes, size_t count, CUmemLocation *prefetchLocs,                  \
		size_t *prefetchLocIdxs, size_t numPrefetchLocs, unsigned long long flags, CUstream hStream)           \
	{                                                                                                              \
		struct shim *shim = SHIM_HERE();                                                                       \
                                                                                                                       \
		REAL(symbol);                                                                                          \
		if (fetches_count(shim) &&                                                                             \
			!fetch_batch(shim, dptrs, count, prefetchLocs, prefetchLocIdxs, numPrefetchLocs))              \
			return CUDA_ERROR_OUT_OF_MEMORY;                                                               \
		return driver.symbol(                                                                                  \
			dptrs, sizes, count, prefetchLocs, prefetchLocIdxs, numPrefetchLocs, flags, hStream);          \
	}

PREFETCH(cuMemPrefetchAsync)
PREFETCH(cuMemPrefetchAsync_ptsz)
PREFETCH_TO(cuMemPrefetchAsync_v2)
PREFETCH_TO(cuMemPrefetchAsync_v2_ptsz)
PREFETCH_BATCH(cuMemPrefetchBatchAsync)
PREFETCH_BATCH(cuMemPrefetchBatchAsync_ptsz)
PREFETCH_BATCH(cuMemDiscardAndPrefetchBatchAsync)
PREFETCH_BATCH(cuMemDiscardAndPrefetchBatchAsync_ptsz)

CUresult cuMemAllocPitch_v2(
	CUdeviceptr *dptr, size_t *pPitch, size_t WidthInBytes, size_t Height, unsigned int ElementSizeBytes)
{
	const uint64_t ask = quota_multiply(quota_round_up(WidthInBytes, PITCH_ALIGNMENT), Height);
	struct charge charge;
	CUresult result;

	REAL(cuMemAllocPitch_v2);
	if (!charge_begin(&charge, ask))
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = driver.cuMemAllocPitch_v2(dptr, pPitch, WidthInBytes, Height, ElementSizeBytes);
	return charge_settle(&charge, pointers_of(&charge), result, dptr != NULL ? *dptr : 0,
		pPitch != NULL ? quota_multiply(*pPitch, Height) : ask, KIND_DEVICE);
}

CUresult cuMemAllocPitch(CUdeviceptr_v1 *dptr, unsigned int *pPitch, unsigned int WidthInBytes, unsigned int Height,
	unsigned int ElementSizeBytes)
{
	const uint64_t ask = quota_multiply(quota_round_up(WidthInBytes, PITCH_ALIGNMENT), Height);
	struct charge charge;
	CUresult result;

	REAL(cuMemAllocPitch);
	if (!charge_begin(&charge, ask))
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = driver.cuMemAllocPitch(dptr, pPitch, WidthInBytes, Height, ElementSizeBytes);
	return charge_settle(&charge, pointers_of(&charge), result, dptr != NULL ? *dptr : 0,
		pPitch != NULL ? quota_multiply(*pPitch, Height) : ask, KIND_DEVICE);
}

/* The entry is taken out before the driver frees: afterwards another thread may already be given the same address. */
static bool forget(struct shim *shim, CUdeviceptr pointer, struct table_entry *entry)
{
	return shim != NULL && table_take(&shim->pointers, pointer, entry);
}

static CUresult settle_free(
	struct shim *shim, CUdeviceptr pointer, bool known, const struct table_entry *entry, CUresult result)
{
	if (!known) {
		if (shim != NULL && result == CUDA_SUCCESS)
			graph_freed(shim, pointer);
		return result;
	}
	if (result != CUDA_SUCCESS)
		(void)table_put(&shim->pointers, entry); /* still there */
	else if (entry->kind == KIND_POOL)
		pool_freed(shim, entry->tag, entry->bytes);
	else
		charge_give(shim, entry->device, entry->bytes);
	if (result == CUDA_SUCCESS && entry->kind == KIND_MANAGED)
		managed_freed(shim, entry->key);
	return result;
}

CUresult cuMemFree_v2(CUdeviceptr dptr)
{
	struct shim *shim = SHIM_HERE();
	struct table_entry entry;
	bool known;

	REAL(cuMemFree_v2);
	known = forget(shim, dptr, &entry);
	return settle_free(shim, dptr, known, &entry, driver.cuMemFree_v2(dptr));
}

CUresult cuMemFree(CUdeviceptr_v1 dptr)
{
	struct shim *shim = SHIM_HERE();
	struct table_entry entry;
	bool known;

	REAL(cuMemFree);
	known = forget(shim, dptr, &entry);
	return settle_free(shim, dptr, known, &entry, driver.cuMemFree(dptr));
}

CUresult cuMemFreeAsync(CUdeviceptr dptr, CUstream hStream)
{
	struct shim *shim = SHIM_HERE();
	struct table_entry entry;
	bool known;

	REAL(cuMemFreeAsync);
	known = forget(shim, dptr, &entry);
	return settle_free(shim, dptr, known, &entry, driver.cuMemFreeAsync(dptr, hStream));
}

CUresult cuMemFreeAsync_ptsz(CUdeviceptr dptr, CUstream hStream)
{
	struct shim *shim = SHIM_HERE();
	struct table_entry entry;
	bool known;

	REAL(cuMemFreeAsync_ptsz);
	known = forget(shim, dptr, &entry);
	return settle_free(shim, dptr, known, &entry, driver.cuMemFreeAsync_ptsz(dptr, hStream));
}

/* Memory of another interface (Vulkan, a DMA buffer): who allocated it may be charged already. It is shown, not
 * charged. */
CUresult cuImportExternalMemory(CUexternalMemory *extMem, const CUDA_EXTERNAL_MEMORY_HANDLE_DESC *desc)
{
	struct shim *shim = SHIM_HERE();
	struct table_entry entry = {.kind = KIND_UNCHARGED};
	CUresult result;
	int row;

	REAL(cuImportExternalMemory);
	result = driver.cuImportExternalMemory(extMem, desc);
	if (result != CUDA_SUCCESS || shim == NULL || extMem == NULL || desc == NULL)
		return result;
	row = shim_row_of_context(shim, &entry.scope);
	if (row < 0)
		return result;
	entry.key = (uint64_t)(uintptr_t)*extMem;
	entry.bytes = desc->size;
	entry.device = (uint16_t)row;
	if (table_put(&shim->externals, &entry))
		atomic_fetch_add(&shim->own->external_bytes[row], entry.bytes);
	return result;
}

CUresult cuDestroyExternalMemory(CUexternalMemory extMem)
{
	struct shim *shim = SHIM_HERE();
	struct table_entry entry;

	REAL(cuDestroyExternalMemory);
	if (shim != NULL && table_take(&shim->externals, (uint64_t)(uintptr_t)extMem, &entry))
		atomic_fetch_sub(&shim->own->external_bytes[entry.device], entry.bytes);
	return driver.cuDestroyExternalMemory(extMem);
}
