/* array.c: arrays. The driver lays them out as it likes: room is reserved by an estimate, and the charge corrected to
 * what the driver says, where it says it. */
#include "charge.h"
#include "quota.h"

enum {
	ARRAY_ALIGNMENT = 64 * 1024,
	ARRAY_LAYERED = 0x01 | 0x04,  /* layers and cube faces: depth is not halved from level to level */
	ARRAY_UNBACKED = 0x40 | 0x80, /* sparse and deferred: memory is mapped into them later, and charged as such */
};

/* Bytes of one channel, generous for the formats that pack several values (planar, block-compressed, 10-bit). */
static uint64_t channel_bytes(CUarray_format format)
{
	switch ((int)format) {
	case CU_AD_FORMAT_UNSIGNED_INT8:
	case CU_AD_FORMAT_SIGNED_INT8:
		return 1;
	case CU_AD_FORMAT_UNSIGNED_INT16:
	case CU_AD_FORMAT_SIGNED_INT16:
	case CU_AD_FORMAT_HALF:
		return 2;
	default:
		return 4;
	}
}

static uint64_t at_least_one(uint64_t extent)
{
	return extent == 0 ? 1 : extent;
}

static uint64_t array_estimate(const CUDA_ARRAY3D_DESCRIPTOR *desc, unsigned levels)
{
	uint64_t width = desc->Width, height = at_least_one(desc->Height), depth = at_least_one(desc->Depth), bytes = 0;

	if (desc->Flags & ARRAY_UNBACKED)
		return 0;
	for (unsigned level = 0; level < (levels == 0 ? 1 : levels) && level < 32; level++) {
		uint64_t here = quota_multiply(quota_multiply(width, height), depth);

		here = quota_multiply(here, at_least_one(desc->NumChannels) * channel_bytes(desc->Format));
		bytes = quota_add(bytes, here);
		width = at_least_one(width / 2);
		height = at_least_one(height / 2);
		if (!(desc->Flags & ARRAY_LAYERED))
			depth = at_least_one(depth / 2);
	}
	return quota_round_up(bytes, ARRAY_ALIGNMENT);
}

static CUdevice current_device(void)
{
	CUdevice device = 0;

	return driver.cuCtxGetDevice != NULL && driver.cuCtxGetDevice(&device) == CUDA_SUCCESS ? device : 0;
}

static uint64_t array_bytes(const struct charge *charge, CUresult result, const CUarray *array)
{
	CUDA_ARRAY_MEMORY_REQUIREMENTS requirements;

	if (charge->shim == NULL || charge->bytes == 0 || result != CUDA_SUCCESS ||
		driver.cuArrayGetMemoryRequirements == NULL ||
		driver.cuArrayGetMemoryRequirements(&requirements, *array, current_device()) != CUDA_SUCCESS)
		return charge->bytes;
	return requirements.size;
}

static uint64_t mipmap_bytes(const struct charge *charge, CUresult result, const CUmipmappedArray *mipmap)
{
	CUDA_ARRAY_MEMORY_REQUIREMENTS requirements;

	if (charge->shim == NULL || charge->bytes == 0 || result != CUDA_SUCCESS ||
		driver.cuMipmappedArrayGetMemoryRequirements == NULL ||
		driver.cuMipmappedArrayGetMemoryRequirements(&requirements, *mipmap, current_device()) != CUDA_SUCCESS)
		return charge->bytes;
	return requirements.size;
}

static CUresult settle(struct charge *charge, CUresult result, const CUarray *array)
{
	const uint64_t bytes = array_bytes(charge, result, array);

	return charge_settle(charge, charge->shim != NULL ? &charge->shim->arrays : NULL, result,
		array != NULL ? (uint64_t)(uintptr_t)*array : 0, bytes, KIND_ARRAY);
}

CUresult cuArrayCreate_v2(CUarray *pHandle, const CUDA_ARRAY_DESCRIPTOR *desc)
{
	CUDA_ARRAY3D_DESCRIPTOR full = {0};
	struct charge charge;

	REAL(cuArrayCreate_v2);
	if (desc != NULL)
		full = (CUDA_ARRAY3D_DESCRIPTOR){.Width = desc->Width,
			.Height = desc->Height,
			.Format = desc->Format,
			.NumChannels = desc->NumChannels};
	if (!charge_begin(&charge, array_estimate(&full, 1)))
		return CUDA_ERROR_OUT_OF_MEMORY;
	return settle(&charge, driver.cuArrayCreate_v2(pHandle, desc), pHandle);
}

CUresult cuArrayCreate(CUarray *pHandle, const CUDA_ARRAY_DESCRIPTOR_v1 *desc)
{
	CUDA_ARRAY3D_DESCRIPTOR full = {0};
	struct charge charge;

	REAL(cuArrayCreate);
	if (desc != NULL)
		full = (CUDA_ARRAY3D_DESCRIPTOR){.Width = desc->Width,
			.Height = desc->Height,
			.Format = desc->Format,
			.NumChannels = desc->NumChannels};
	if (!charge_begin(&charge, array_estimate(&full, 1)))
		return CUDA_ERROR_OUT_OF_MEMORY;
	return settle(&charge, driver.cuArrayCreate(pHandle, desc), pHandle);
}

CUresult cuArray3DCreate_v2(CUarray *pHandle, const CUDA_ARRAY3D_DESCRIPTOR *desc)
{
	struct charge charge;

	REAL(cuArray3DCreate_v2);
	if (!charge_begin(&charge, desc != NULL ? array_estimate(desc, 1) : 0))
		return CUDA_ERROR_OUT_OF_MEMORY;
	return settle(&charge, driver.cuArray3DCreate_v2(pHandle, desc), pHandle);
}

CUresult cuArray3DCreate(CUarray *pHandle, const CUDA_ARRAY3D_DESCRIPTOR_v1 *desc)
{
	CUDA_ARRAY3D_DESCRIPTOR full = {0};
	struct charge charge;

	REAL(cuArray3DCreate);
	if (desc != NULL)
		full = (CUDA_ARRAY3D_DESCRIPTOR){.Width = desc->Width,
			.Height = desc->Height,
			.Depth = desc->Depth,

			.Format = desc->Format,
			.NumChannels = desc->NumChannels,
			.Flags = desc->Flags};
	if (!charge_begin(&charge, array_estimate(&full, 1)))
		return CUDA_ERROR_OUT_OF_MEMORY;
	return settle(&charge, driver.cuArray3DCreate(pHandle, desc), pHandle);
}

CUresult cuMipmappedArrayCreate(CUmipmappedArray *pHandle, const CUDA_ARRAY3D_DESCRIPTOR *desc, unsigned int levels)
{
	struct charge charge;
	CUresult result;
	uint64_t bytes;

	REAL(cuMipmappedArrayCreate);
	if (!charge_begin(&charge, desc != NULL ? array_estimate(desc, levels) : 0))
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = driver.cuMipmappedArrayCreate(pHandle, desc, levels);
	bytes = mipmap_bytes(&charge, result, pHandle);
	return charge_settle(&charge, charge.shim != NULL ? &charge.shim->arrays : NULL, result,
		pHandle != NULL ? (uint64_t)(uintptr_t)*pHandle : 0, bytes, KIND_ARRAY);
}

static CUresult destroyed(struct shim *shim, bool known, const struct table_entry *entry, CUresult result)
{
	if (known && result == CUDA_SUCCESS)
		charge_give(shim, entry->device, entry->bytes);
	else if (known)
		(void)table_put(&shim->arrays, entry);
	return result;
}

CUresult cuArrayDestroy(CUarray hArray)
{
	struct shim *shim = charge_nested ? NULL : shim_get();
	struct table_entry entry;
	bool known;

	REAL(cuArrayDestroy);
	known = shim != NULL && table_take(&shim->arrays, (uint64_t)(uintptr_t)hArray, &entry);
	return destroyed(shim, known, &entry, driver.cuArrayDestroy(hArray));
}

CUresult cuMipmappedArrayDestroy(CUmipmappedArray hMipmappedArray)
{
	struct shim *shim = charge_nested ? NULL : shim_get();
	struct table_entry entry;
	bool known;

	REAL(cuMipmappedArrayDestroy);
	known = shim != NULL && table_take(&shim->arrays, (uint64_t)(uintptr_t)hMipmappedArray, &entry);
	return destroyed(shim, known, &entry, driver.cuMipmappedArrayDestroy(hMipmappedArray));
}
