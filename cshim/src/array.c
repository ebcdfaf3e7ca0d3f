/* array.c: arrays. The driver lays them out as it likes and tells of none but deferred ones what they take, so they are
 * charged by their format and extent, in pieces of 64 KiB. Sparse and deferred ones take nothing until memory is mapped
 * into them, which is charged as such (vmm.c). */
#include "charge.h"
#include "quota.h"
#include "vmm.h"

enum {
	ARRAY_ALIGNMENT = 64 * 1024,
	ARRAY_LAYERED = 0x01 | 0x04, /* layers and cube faces: depth is not halved from level to level */
	ARRAY_UNBACKED = CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING,
	BLOCK = 4, /* texels on a side of a compressed block */
};

/* What a format takes: bits for each channel of a texel, or for a whole texel. */
struct format {
	short first, last;
	unsigned short bits;
	bool per_channel;
	bool compressed;
};

/* One that is not in here is newer than this library, and charged as the largest. */
static const struct format formats[] = {
	{0x01, 0x01, 8, true, false},  /* integers of 8 bits, */
	{0x02, 0x02, 16, true, false}, /* 16 */
	{0x03, 0x03, 32, true, false}, /* and 32 */
	{0x08, 0x08, 8, true, false},
	{0x09, 0x09, 16, true, false},
	{0x0a, 0x0a, 32, true, false},
	{0x10, 0x10, 16, true, false}, /* half, float */
	{0x20, 0x20, 32, true, false},
	{0x50, 0x50, 32, false, false}, /* 10:10:10:2 */
	{0x51, 0x51, 16, false, false}, /* packed 4:2:2 and 4:4:4 */
	{0x52, 0x52, 32, false, false},
	{0x53, 0x53, 12, false, false}, /* planes of 8 and 16 bits: 4:2:0, */
	{0x54, 0x54, 24, false, false},
	{0x55, 0x55, 16, false, false}, /* 4:2:2 */
	{0x56, 0x56, 32, false, false},
	{0x57, 0x57, 24, false, false}, /* and 4:4:4 */
	{0x58, 0x58, 48, false, false},
	{0x59, 0x59, 12, false, false},
	{0x5a, 0x5a, 24, false, false},
	{0x5b, 0x5b, 16, false, false},
	{0x5c, 0x5c, 32, false, false},
	{0x5d, 0x5d, 24, false, false},
	{0x5e, 0x5e, 48, false, false},
	{0x91, 0x92, 4, false, true},   /* BC1 */
	{0x93, 0x96, 8, false, true},   /* BC2, BC3 */
	{0x97, 0x98, 4, false, true},   /* BC4 */
	{0x99, 0x9e, 8, false, true},   /* BC5, BC6H, BC7 */
	{0x9f, 0x9f, 24, false, false}, /* P010, P016, NV16, P210, P216 */
	{0xa1, 0xa1, 24, false, false},
	{0xa2, 0xa2, 16, false, false},
	{0xa3, 0xa4, 32, false, false},
	{0xa5, 0xa5, 16, false, false}, /* YUY2, Y210, Y216, AYUV, Y410 */
	{0xa6, 0xa7, 32, false, false},
	{0xa8, 0xa9, 32, false, false},
	{0xb0, 0xb0, 12, false, false}, /* NV12, Y416, and 4:4:4 in planes */
	{0xb1, 0xb1, 64, false, false},
	{0xb2, 0xb2, 24, false, false},
	{0xb3, 0xb3, 48, false, false},
	{0xb4, 0xb4, 24, false, false},
	{0xb5, 0xb5, 48, false, false},
	{0xc0, 0xc0, 8, false, false}, /* normalised: the channels are in the name */
	{0xc1, 0xc1, 16, false, false},
	{0xc2, 0xc2, 32, false, false},
	{0xc3, 0xc3, 16, false, false},
	{0xc4, 0xc4, 32, false, false},
	{0xc5, 0xc5, 64, false, false},
	{0xc6, 0xc6, 8, false, false},
	{0xc7, 0xc7, 16, false, false},
	{0xc8, 0xc8, 32, false, false},
	{0xc9, 0xc9, 16, false, false},
	{0xca, 0xca, 32, false, false},
	{0xcb, 0xcb, 64, false, false},
};

static struct format format_of(CUarray_format format)
{
	for (size_t i = 0; i < sizeof(formats) / sizeof(formats[0]); i++)
		if ((int)format >= formats[i].first && (int)format <= formats[i].last)
			return formats[i];
	return (struct format){.bits = 32, .per_channel = true};
}

static uint64_t at_least_one(uint64_t extent)
{
	return extent == 0 ? 1 : extent;
}

static uint64_t array_estimate(const CUDA_ARRAY3D_DESCRIPTOR *desc, unsigned levels)
{
	uint64_t width = desc->Width, height = at_least_one(desc->Height), depth = at_least_one(desc->Depth), bytes = 0;
	const struct format format = format_of(desc->Format);
	const uint64_t bits = format.per_channel ? at_least_one(desc->NumChannels) * format.bits : format.bits;

	if (desc->Flags & ARRAY_UNBACKED)
		return 0;
	for (unsigned level = 0; level < (levels == 0 ? 1 : levels) && level < 32; level++) {
		uint64_t here = format.compressed
					? quota_multiply(quota_round_up(width, BLOCK), quota_round_up(height, BLOCK))
					: quota_multiply(width, height);

		here = quota_multiply(quota_multiply(here, depth), bits);
		here = here == UINT64_MAX ? here : (here + 7) / 8;
		bytes = quota_add(bytes, here);
		width = at_least_one(width / 2);
		height = at_least_one(height / 2);
		if (!(desc->Flags & ARRAY_LAYERED))
			depth = at_least_one(depth / 2);
	}
	return quota_round_up(bytes, ARRAY_ALIGNMENT);
}

static CUresult settle(struct charge *charge, CUresult result, const CUarray *array)
{
	return charge_settle(charge, charge->shim != NULL ? &charge->shim->arrays : NULL, result,
		array != NULL ? (uint64_t)(uintptr_t)*array : 0, charge->bytes, KIND_ARRAY);
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

	REAL(cuMipmappedArrayCreate);
	if (!charge_begin(&charge, desc != NULL ? array_estimate(desc, levels) : 0))
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = driver.cuMipmappedArrayCreate(pHandle, desc, levels);
	return charge_settle(&charge, charge.shim != NULL ? &charge.shim->arrays : NULL, result,
		pHandle != NULL ? (uint64_t)(uintptr_t)*pHandle : 0, charge.bytes, KIND_ARRAY);
}

static CUresult destroyed(struct shim *shim, bool known, const struct table_entry *entry, CUresult result)
{
	if (known && result == CUDA_SUCCESS) {
		vmm_drop_array(shim, entry->key);
		charge_give(shim, entry->device, entry->bytes);
	} else if (known)
		(void)table_put(&shim->arrays, entry);
	return result;
}

CUresult cuArrayDestroy(CUarray hArray)
{
	struct shim *shim = SHIM_HERE();
	struct table_entry entry;
	bool known;

	REAL(cuArrayDestroy);
	known = shim != NULL && table_take(&shim->arrays, (uint64_t)(uintptr_t)hArray, &entry);
	return destroyed(shim, known, &entry, driver.cuArrayDestroy(hArray));
}

CUresult cuMipmappedArrayDestroy(CUmipmappedArray hMipmappedArray)
{
	struct shim *shim = SHIM_HERE();
	struct table_entry entry;
	bool known;

	REAL(cuMipmappedArrayDestroy);
	known = shim != NULL && table_take(&shim->arrays, (uint64_t)(uintptr_t)hMipmappedArray, &entry);
	return destroyed(shim, known, &entry, driver.cuMipmappedArrayDestroy(hMipmappedArray));
}
