/* memory.c: memory at an address: cuMemAlloc and its relatives, and every way to free what lies at one. */
#include "charge.h"
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
	return charge_settle(&charge, pointers_of(&charge), result, dptr != NULL ? *dptr : 0, bytesize, KIND_DEVICE);
}

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

static CUresult settle_free(struct shim *shim, bool known, const struct table_entry *entry, CUresult result)
{
	if (!known)
		return result;
	if (result != CUDA_SUCCESS)
		(void)table_put(&shim->pointers, entry); /* still there */
	else if (entry->kind == KIND_POOL)
		pool_freed(shim, entry->tag, entry->bytes);
	else
		charge_give(shim, entry->device, entry->bytes);
	return result;
}

CUresult cuMemFree_v2(CUdeviceptr dptr)
{
	struct shim *shim = charge_nested ? NULL : shim_get();
	struct table_entry entry;
	bool known;

	REAL(cuMemFree_v2);
	known = forget(shim, dptr, &entry);
	return settle_free(shim, known, &entry, driver.cuMemFree_v2(dptr));
}

CUresult cuMemFree(CUdeviceptr_v1 dptr)
{
	struct shim *shim = charge_nested ? NULL : shim_get();
	struct table_entry entry;
	bool known;

	REAL(cuMemFree);
	known = forget(shim, dptr, &entry);
	return settle_free(shim, known, &entry, driver.cuMemFree(dptr));
}

CUresult cuMemFreeAsync(CUdeviceptr dptr, CUstream hStream)
{
	struct shim *shim = charge_nested ? NULL : shim_get();
	struct table_entry entry;
	bool known;

	REAL(cuMemFreeAsync);
	known = forget(shim, dptr, &entry);
	return settle_free(shim, known, &entry, driver.cuMemFreeAsync(dptr, hStream));
}

CUresult cuMemFreeAsync_ptsz(CUdeviceptr dptr, CUstream hStream)
{
	struct shim *shim = charge_nested ? NULL : shim_get();
	struct table_entry entry;
	bool known;

	REAL(cuMemFreeAsync_ptsz);
	known = forget(shim, dptr, &entry);
	return settle_free(shim, known, &entry, driver.cuMemFreeAsync_ptsz(dptr, hStream));
}

/* Memory of another interface (Vulkan, a DMA buffer): who allocated it may be charged already. It is shown, not
 * charged. */
CUresult cuImportExternalMemory(CUexternalMemory *extMem, const CUDA_EXTERNAL_MEMORY_HANDLE_DESC *desc)
{
	struct shim *shim = charge_nested ? NULL : shim_get();
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
	struct shim *shim = charge_nested ? NULL : shim_get();
	struct table_entry entry;

	REAL(cuDestroyExternalMemory);
	if (shim != NULL && table_take(&shim->externals, (uint64_t)(uintptr_t)extMem, &entry))
		atomic_fetch_sub(&shim->own->external_bytes[entry.device], entry.bytes);
	return driver.cuDestroyExternalMemory(extMem);
}
