/* array.c: arrays and mipmaps, in pieces of 64 KiB. */
#define _GNU_SOURCE

#include "driver.h"
#include "memory.h"

#define ARRAY_PIECE (UINT64_C(64) << 10)

static _Atomic uint64_t next_array = 0x1000;

static uint64_t array_size(const CUDA_ARRAY3D_DESCRIPTOR *desc, unsigned levels)
{
	const uint64_t texel = desc->Format == CU_AD_FORMAT_FLOAT ? 4u : desc->Format == CU_AD_FORMAT_HALF ? 2u : 1u;
	uint64_t bytes = 0, width = desc->Width, height = desc->Height ? desc->Height : 1,
		 depth = desc->Depth ? desc->Depth : 1;

	for (unsigned i = 0; i < levels; i++) {
		bytes += width * height * depth * desc->NumChannels * texel;
		width = width > 1 ? width / 2 : 1;
		height = height > 1 ? height / 2 : 1;
		depth = depth > 1 ? depth / 2 : 1;
	}
	return fake_round_up(bytes, ARRAY_PIECE);
}

static CUresult array_create(void **array, uint64_t bytes)
{
	struct table_entry entry = {.bytes = bytes};

	NEED_CONTEXT(context);
	if (bytes == 0 || array == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	if (!fake_take(context->device, bytes))
		return CUDA_ERROR_OUT_OF_MEMORY;
	entry.key = atomic_fetch_add(&next_array, 16);
	entry.device = (uint16_t)context->device;
	entry.scope = context->id;
	(void)table_put(&fake_arrays, &entry);
	*array = (void *)(uintptr_t)entry.key;
	return CUDA_SUCCESS;
}

CUresult cuArrayCreate_v2(CUarray *pHandle, const CUDA_ARRAY_DESCRIPTOR *desc)
{
	CUDA_ARRAY3D_DESCRIPTOR full;

	ENTER();
	full = (CUDA_ARRAY3D_DESCRIPTOR){
		.Width = desc->Width, .Height = desc->Height, .Format = desc->Format, .NumChannels = desc->NumChannels};
	return array_create((void **)pHandle, array_size(&full, 1));
}

CUresult cuArrayCreate(CUarray *pHandle, const CUDA_ARRAY_DESCRIPTOR_v1 *desc)
{
	CUDA_ARRAY3D_DESCRIPTOR full;

	ENTER();
	full = (CUDA_ARRAY3D_DESCRIPTOR){
		.Width = desc->Width, .Height = desc->Height, .Format = desc->Format, .NumChannels = desc->NumChannels};
	return array_create((void **)pHandle, array_size(&full, 1));
}

CUresult cuArray3DCreate_v2(CUarray *pHandle, const CUDA_ARRAY3D_DESCRIPTOR *desc)
{
	ENTER();
	return array_create((void **)pHandle, array_size(desc, 1));
}

CUresult cuArray3DCreate(CUarray *pHandle, const CUDA_ARRAY3D_DESCRIPTOR_v1 *desc)
{
	CUDA_ARRAY3D_DESCRIPTOR full;

	ENTER();
	full = (CUDA_ARRAY3D_DESCRIPTOR){.Width = desc->Width,
		.Height = desc->Height,
		.Depth = desc->Depth,
		.Format = desc->Format,
		.NumChannels = desc->NumChannels};
	return array_create((void **)pHandle, array_size(&full, 1));
}

CUresult cuMipmappedArrayCreate(CUmipmappedArray *pHandle, const CUDA_ARRAY3D_DESCRIPTOR *desc, unsigned int levels)
{
	ENTER();
	return array_create((void **)pHandle, array_size(desc, levels));
}

static CUresult array_destroy(void *array)
{
	struct table_entry entry;

	if (!table_take(&fake_arrays, (uint64_t)(uintptr_t)array, &entry))
		return CUDA_ERROR_INVALID_HANDLE;
	fake_give(entry.device, entry.bytes);
	return CUDA_SUCCESS;
}

CUresult cuArrayDestroy(CUarray hArray)
{
	ENTER();
	return array_destroy(hArray);
}

CUresult cuMipmappedArrayDestroy(CUmipmappedArray hMipmappedArray)
{
	ENTER();
	return array_destroy(hMipmappedArray);
}

static CUresult array_requirements(CUDA_ARRAY_MEMORY_REQUIREMENTS *requirements, void *array)
{
	struct table_entry entry;

	if (!table_get(&fake_arrays, (uint64_t)(uintptr_t)array, &entry))
		return CUDA_ERROR_INVALID_HANDLE;
	*requirements = (CUDA_ARRAY_MEMORY_REQUIREMENTS){.size = entry.bytes, .alignment = ARRAY_PIECE};
	return CUDA_SUCCESS;
}

CUresult cuArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS *requirements, CUarray array, CUdevice device)
{
	(void)device;
	ENTER();
	return array_requirements(requirements, array);
}

CUresult cuMipmappedArrayGetMemoryRequirements(
	CUDA_ARRAY_MEMORY_REQUIREMENTS *requirements, CUmipmappedArray mipmap, CUdevice device)
{
	(void)device;
	ENTER();
	return array_requirements(requirements, mipmap);
}
