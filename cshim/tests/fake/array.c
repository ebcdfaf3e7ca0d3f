/* array.c: arrays and mipmaps, in pieces of 64 KiB. What a format takes is written down here once more, apart from the
 * library's table, from the documentation of the formats: bits of a texel for each channel, or of a whole texel. */
#define _GNU_SOURCE
#include <stdlib.h>

#include "driver.h"
#include "memory.h"

#define ARRAY_PIECE (UINT64_C(64) << 10)

static _Atomic uint64_t next_array = 0x1000;

/* Bits of a texel, where a channel does not have bits of its own. */
static unsigned texel_bits(int format)
{
	static const struct {
		short first, last, bits;
	} formats[] = {
		{0x50, 0x50, 32}, /* 10:10:10:2 */
		{0x51, 0x51, 16},
		{0x52, 0x52, 32}, /* packed 4:2:2, 4:4:4 */
		{0x53, 0x53, 12},
		{0x54, 0x54, 24},
		{0x55, 0x55, 16},
		{0x56, 0x56, 32},
		{0x57, 0x57, 24},
		{0x58, 0x58, 48},
		{0x59, 0x59, 12},
		{0x5a, 0x5a, 24},
		{0x5b, 0x5b, 16},
		{0x5c, 0x5c, 32},
		{0x5d, 0x5d, 24},
		{0x5e, 0x5e, 48},
		{0x91, 0x92, 4},
		{0x93, 0x96, 8},
		{0x97, 0x98, 4},
		{0x99, 0x9e, 8}, /* blocks of 4x4 */
		{0x9f, 0x9f, 24},
		{0xa1, 0xa1, 24},
		{0xa2, 0xa2, 16},
		{0xa3, 0xa4, 32},
		{0xa5, 0xa5, 16},
		{0xa6, 0xa7, 32},
		{0xa8, 0xa9, 32},
		{0xb0, 0xb0, 12},
		{0xb1, 0xb1, 64},
		{0xb2, 0xb2, 24},
		{0xb3, 0xb3, 48},
		{0xb4, 0xb4, 24},
		{0xb5, 0xb5, 48},
		{0xc0, 0xc0, 8},
		{0xc1, 0xc1, 16},
		{0xc2, 0xc2, 32},
		{0xc3, 0xc3, 16},
		{0xc4, 0xc4, 32},
		{0xc5, 0xc5, 64},
		{0xc6, 0xc6, 8},
		{0xc7, 0xc7, 16},
		{0xc8, 0xc8, 32},
		{0xc9, 0xc9, 16},
		{0xca, 0xca, 32},
		{0xcb, 0xcb, 64},
	};

	for (size_t i = 0; i < sizeof(formats) / sizeof(formats[0]); i++)
		if (format >= formats[i].first && format <= formats[i].last)
			return (unsigned)formats[i].bits;
	return 0;
}

static uint64_t level_size(int format, unsigned channels, uint64_t width, uint64_t height, uint64_t depth)
{
	const unsigned bits = texel_bits(format);

	if (format >= 0x91 && format <= 0x9e) { /* a block is never a part of one */
		width = fake_round_up(width, 4);
		height = fake_round_up(height, 4);
	}
	if (bits != 0)
		return (width * height * depth * bits + 7) / 8;
	return width * height * depth * channels *
	       (format == CU_AD_FORMAT_FLOAT || (format & 7) == 3 || format == 0x0a ? 4u
		       : format == CU_AD_FORMAT_HALF || format == CU_AD_FORMAT_UNSIGNED_INT16 ||
				       format == CU_AD_FORMAT_SIGNED_INT16
			       ? 2u
			       : 1u);
}

static uint64_t array_size(const CUDA_ARRAY3D_DESCRIPTOR *desc, unsigned levels)
{
	uint64_t bytes = 0, width = desc->Width, height = desc->Height ? desc->Height : 1,
		 depth = desc->Depth ? desc->Depth : 1;

	for (unsigned i = 0; i < levels; i++) {
		bytes += level_size((int)desc->Format, desc->NumChannels, width, height, depth);
		width = width > 1 ? width / 2 : 1;
		height = height > 1 ? height / 2 : 1;
		if (!(desc->Flags & 0x05)) /* layers and faces stay as many */
			depth = depth > 1 ? depth / 2 : 1;
	}
	return fake_round_up(bytes, ARRAY_PIECE);
}

static CUresult array_create(void **array, uint64_t bytes, unsigned flags)
{
	struct table_entry entry = {.bytes = bytes, .tag = flags};

	NEED_CONTEXT(context);
	if (bytes == 0 || array == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	if (!(flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING)) && !fake_take(context->device, bytes))
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
	NOT_IN_A_CAPTURE();
	full = (CUDA_ARRAY3D_DESCRIPTOR){
		.Width = desc->Width, .Height = desc->Height, .Format = desc->Format, .NumChannels = desc->NumChannels};
	return array_create((void **)pHandle, array_size(&full, 1), 0);
}

CUresult cuArrayCreate(CUarray *pHandle, const CUDA_ARRAY_DESCRIPTOR_v1 *desc)
{
	CUDA_ARRAY3D_DESCRIPTOR full;

	ENTER();
	full = (CUDA_ARRAY3D_DESCRIPTOR){
		.Width = desc->Width, .Height = desc->Height, .Format = desc->Format, .NumChannels = desc->NumChannels};
	return array_create((void **)pHandle, array_size(&full, 1), 0);
}

CUresult cuArray3DCreate_v2(CUarray *pHandle, const CUDA_ARRAY3D_DESCRIPTOR *desc)
{
	ENTER();
	NOT_IN_A_CAPTURE();
	return array_create((void **)pHandle, array_size(desc, 1), desc->Flags);
}

CUresult cuArray3DCreate(CUarray *pHandle, const CUDA_ARRAY3D_DESCRIPTOR_v1 *desc)
{
	CUDA_ARRAY3D_DESCRIPTOR full;

	ENTER();
	full = (CUDA_ARRAY3D_DESCRIPTOR){.Width = desc->Width,
		.Height = desc->Height,
		.Depth = desc->Depth,
		.Format = desc->Format,
		.NumChannels = desc->NumChannels,
		.Flags = desc->Flags};
	return array_create((void **)pHandle, array_size(&full, 1), desc->Flags);
}

CUresult cuMipmappedArrayCreate(CUmipmappedArray *pHandle, const CUDA_ARRAY3D_DESCRIPTOR *desc, unsigned int levels)
{
	ENTER();
	NOT_IN_A_CAPTURE();
	return array_create((void **)pHandle, array_size(desc, levels), desc->Flags);
}

static bool is_backed(const struct table_entry *entry)
{
	return !(entry->tag & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING));
}

void fake_forget_arrays(uint64_t context)
{
	struct table_entry entry;

	while (table_take_scope(&fake_arrays, context, &entry)) {
		fake_unmap_array(entry.key);
		if (is_backed(&entry))
			fake_give(entry.device, entry.bytes);
	}
}

static CUresult array_destroy(void *array)
{
	struct table_entry entry;

	if (!table_take(&fake_arrays, (uint64_t)(uintptr_t)array, &entry))
		return CUDA_ERROR_INVALID_HANDLE;
	fake_unmap_array(entry.key);
	if (is_backed(&entry))
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

/* Only of those whose memory is mapped later: of others the real one does not tell. */
static CUresult array_requirements(CUDA_ARRAY_MEMORY_REQUIREMENTS *requirements, void *array)
{
	struct table_entry entry;

	if (!table_get(&fake_arrays, (uint64_t)(uintptr_t)array, &entry))
		return CUDA_ERROR_INVALID_HANDLE;
	if (!(entry.tag & CUDA_ARRAY3D_DEFERRED_MAPPING))
		return CUDA_ERROR_INVALID_VALUE;
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
