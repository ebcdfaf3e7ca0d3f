/* memory.c: memory of every kind. What the card has in use is exact to the byte that each kind takes of it. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "driver.h"
#include "table.h"

enum { PITCH = 512, POOL_COUNT = 128, HANDLES = 4096 };
#define POOL_PIECE  (UINT64_C(2) << 20)
#define ARRAY_PIECE (UINT64_C(64) << 10)

enum { FROM_CARD = 1, FROM_POOL, FROM_GRAPH };

struct CUmemPoolHandle_st {
	bool in_use;
	bool destroyed;
	int device;
	uint64_t reserved, used, threshold;
};

struct block {
	uint64_t bytes;
	int device; /* below 0: memory of the host */
	int refs, maps;
};

static struct table pointers;
static struct table arrays;
static struct table mappings;
static _Atomic uint64_t next_address = UINT64_C(0x700000000000), next_low = 0x10000000, next_array = 0x1000;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct CUmemPoolHandle_st pools[POOL_COUNT];
static CUmemoryPool current_pools[FAKE_DEVICES];
static struct block *handles[HANDLES];
static struct {
	uint64_t reserved;
} graphs[FAKE_DEVICES];

static uint64_t round_up(uint64_t bytes, uint64_t unit)
{
	return (bytes + unit - 1) / unit * unit;
}

CUdeviceptr fake_address(uint64_t bytes, bool low)
{
	return atomic_fetch_add(low ? &next_low : &next_address, round_up(bytes == 0 ? 1 : bytes, PITCH));
}

static CUresult allocate(uint64_t bytes, bool low, uint64_t *address)
{
	struct table_entry entry = {.bytes = bytes, .kind = FROM_CARD};

	NEED_CONTEXT(context);
	if (bytes == 0)
		return CUDA_ERROR_INVALID_VALUE;
	if (!fake_take(context->device, bytes))
		return CUDA_ERROR_OUT_OF_MEMORY;
	entry.key = *address = fake_address(bytes, low);
	entry.device = (uint16_t)context->device;
	entry.scope = context->id;
	(void)table_put(&pointers, &entry);
	return CUDA_SUCCESS;
}

CUresult cuMemAlloc_v2(CUdeviceptr *dptr, size_t bytesize)
{
	uint64_t address;
	CUresult result;

	ENTER();
	if (dptr == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	result = allocate(bytesize, false, &address);
	if (result == CUDA_SUCCESS)
		*dptr = address;
	return result;
}

CUresult cuMemAlloc(CUdeviceptr_v1 *dptr, unsigned int bytesize)
{
	uint64_t address;
	CUresult result;

	ENTER();
	result = allocate(bytesize, true, &address);
	if (result == CUDA_SUCCESS)
		*dptr = (CUdeviceptr_v1)address;
	return result;
}

CUresult cuMemAllocManaged(CUdeviceptr *dptr, size_t bytesize, unsigned int flags)
{
	uint64_t address;

	(void)flags;
	ENTER();
	NEED_CONTEXT(context);
	(void)context;
	if (allocate(bytesize, false, &address) != CUDA_SUCCESS)
		address = fake_address(bytesize, false); /* the card is full: it lies in the host's memory */
	*dptr = address;
	return CUDA_SUCCESS;
}

CUresult cuMemAllocPitch_v2(
	CUdeviceptr *dptr, size_t *pPitch, size_t WidthInBytes, size_t Height, unsigned int ElementSizeBytes)
{
	uint64_t address;
	CUresult result;

	ENTER();
	if (ElementSizeBytes != 4 && ElementSizeBytes != 8 && ElementSizeBytes != 16)
		return CUDA_ERROR_INVALID_VALUE;
	result = allocate(round_up(WidthInBytes, PITCH) * Height, false, &address);
	if (result != CUDA_SUCCESS)
		return result;
	*pPitch = round_up(WidthInBytes, PITCH);
	*dptr = address;
	return CUDA_SUCCESS;
}

CUresult cuMemAllocPitch(CUdeviceptr_v1 *dptr, unsigned int *pPitch, unsigned int WidthInBytes, unsigned int Height,
	unsigned int ElementSizeBytes)
{
	uint64_t address;
	CUresult result;

	(void)ElementSizeBytes;
	ENTER();
	result = allocate(round_up(WidthInBytes, PITCH) * Height, true, &address);
	if (result != CUDA_SUCCESS)
		return result;
	*pPitch = (unsigned int)round_up(WidthInBytes, PITCH);
	*dptr = (CUdeviceptr_v1)address;
	return CUDA_SUCCESS;
}

static void pool_return(struct CUmemPoolHandle_st *pool, uint64_t bytes)
{
	pthread_mutex_lock(&lock);
	pool->used -= bytes;
	if (pool->destroyed) { /* a destroyed pool keeps only what is still in use */
		fake_give(pool->device, pool->reserved - round_up(pool->used, POOL_PIECE));
		pool->reserved = round_up(pool->used, POOL_PIECE);
		pool->in_use = pool->used > 0;
	}
	pthread_mutex_unlock(&lock);
}

static CUresult release(CUdeviceptr pointer)
{
	struct table_entry entry;

	if (pointer == 0)
		return CUDA_SUCCESS;
	if (!table_take(&pointers, pointer, &entry))
		return CUDA_ERROR_INVALID_VALUE;
	if (entry.kind == FROM_CARD)
		fake_give(entry.device, entry.bytes);
	else if (entry.kind == FROM_POOL)
		pool_return(&pools[entry.tag], entry.bytes);
	return CUDA_SUCCESS;
}

CUresult cuMemFree_v2(CUdeviceptr dptr)
{
	ENTER();
	return release(dptr);
}

CUresult cuMemFree(CUdeviceptr_v1 dptr)
{
	ENTER();
	return release(dptr);
}

CUresult cuMemFreeAsync(CUdeviceptr dptr, CUstream hStream)
{
	(void)hStream;
	ENTER();
	return release(dptr);
}

CUresult cuMemFreeAsync_ptsz(CUdeviceptr dptr, CUstream hStream)
{
	(void)hStream;
	ENTER();
	return release(dptr);
}

void fake_forget_context(uint64_t id)
{
	struct table_entry entry;

	while (table_take_scope(&pointers, id, &entry) || table_take_scope(&arrays, id, &entry))
		fake_give(entry.device, entry.bytes);
}

CUresult cuMemGetInfo_v2(size_t *free, size_t *total)
{
	uint64_t used;

	ENTER();
	NEED_CONTEXT(context);
	used = fake_used(context->device);
	if (total != NULL)
		*total = fake_state()->devices[context->device].total_bytes;
	if (free != NULL)
		*free = fake_state()->devices[context->device].total_bytes - used;
	return CUDA_SUCCESS;
}

CUresult cuMemGetInfo(unsigned int *free, unsigned int *total)
{
	size_t free_bytes, total_bytes;
	CUresult result = cuMemGetInfo_v2(&free_bytes, &total_bytes);

	if (result != CUDA_SUCCESS)
		return result;
	*free = free_bytes > UINT32_MAX ? UINT32_MAX : (unsigned int)free_bytes;
	*total = total_bytes > UINT32_MAX ? UINT32_MAX : (unsigned int)total_bytes;
	return CUDA_SUCCESS;
}

/* Arrays. */

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
	return round_up(bytes, ARRAY_PIECE);
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
	(void)table_put(&arrays, &entry);
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

	if (!table_take(&arrays, (uint64_t)(uintptr_t)array, &entry))
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

	if (!table_get(&arrays, (uint64_t)(uintptr_t)array, &entry))
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

/* Pools. */

static CUmemoryPool pool_new(int device)
{
	CUmemoryPool found = NULL;

	for (int i = 0; i < POOL_COUNT && found == NULL; i++) {
		if (pools[i].in_use)
			continue;
		pools[i] = (struct CUmemPoolHandle_st){.in_use = true, .device = device};
		found = &pools[i];
	}
	return found;
}

static CUmemoryPool pool_current(int device)
{
	CUmemoryPool pool;

	pthread_mutex_lock(&lock);
	if (current_pools[device] == NULL)
		current_pools[device] = pool_new(device);
	pool = current_pools[device];
	pthread_mutex_unlock(&lock);
	return pool;
}

static CUresult pool_allocate(CUdeviceptr *dptr, uint64_t bytes, CUmemoryPool pool, CUstream stream, bool per_thread)
{
	struct CUstream_st *queue = fake_stream(stream, per_thread);
	struct table_entry entry = {.bytes = bytes, .kind = FROM_POOL};
	uint64_t growth = 0;

	if (bytes == 0 || dptr == NULL || pool == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	if (queue->capture != NULL) {
		*dptr = fake_graph_add_alloc(queue->capture, bytes, pool->device);
		entry.key = *dptr;
		entry.kind = FROM_GRAPH;
		(void)table_put(&pointers, &entry);
		return CUDA_SUCCESS;
	}
	pthread_mutex_lock(&lock);
	if (pool->used + bytes > pool->reserved)
		growth = round_up(pool->used + bytes - pool->reserved, POOL_PIECE);
	if (!fake_take(pool->device, growth)) {
		pthread_mutex_unlock(&lock);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	pool->reserved += growth;
	pool->used += bytes;
	pthread_mutex_unlock(&lock);
	entry.key = *dptr = fake_address(bytes, false);
	entry.device = (uint16_t)pool->device;
	entry.tag = (uint32_t)(pool - pools);
	(void)table_put(&pointers, &entry);
	return CUDA_SUCCESS;
}

CUresult cuMemAllocAsync(CUdeviceptr *dptr, size_t bytesize, CUstream hStream)
{
	ENTER();
	NEED_CONTEXT(context);
	return pool_allocate(dptr, bytesize, pool_current(context->device), hStream, false);
}

CUresult cuMemAllocAsync_ptsz(CUdeviceptr *dptr, size_t bytesize, CUstream hStream)
{
	ENTER();
	NEED_CONTEXT(context);
	return pool_allocate(dptr, bytesize, pool_current(context->device), hStream, true);
}

CUresult cuMemAllocFromPoolAsync(CUdeviceptr *dptr, size_t bytesize, CUmemoryPool pool, CUstream hStream)
{
	ENTER();
	return pool_allocate(dptr, bytesize, pool, hStream, false);
}

CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *dptr, size_t bytesize, CUmemoryPool pool, CUstream hStream)
{
	ENTER();
	return pool_allocate(dptr, bytesize, pool, hStream, true);
}

CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *poolProps)
{
	const int card = fake_card(poolProps->location.id);

	ENTER();
	if (card < 0)
		return CUDA_ERROR_INVALID_DEVICE;
	pthread_mutex_lock(&lock);
	*pool = pool_new(card);
	pthread_mutex_unlock(&lock);
	return *pool != NULL ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static void pool_trim(struct CUmemPoolHandle_st *pool, uint64_t keep)
{
	const uint64_t needed = round_up(pool->used, POOL_PIECE);

	keep = keep < needed ? needed : keep;
	if (keep >= pool->reserved)
		return;
	fake_give(pool->device, pool->reserved - keep);
	pool->reserved = keep;
}

void fake_pools_trim(void)
{
	pthread_mutex_lock(&lock);
	for (int i = 0; i < POOL_COUNT; i++)
		if (pools[i].in_use)
			pool_trim(&pools[i], round_up(pools[i].threshold, POOL_PIECE));
	pthread_mutex_unlock(&lock);
}

CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t minBytesToKeep)
{
	ENTER();
	pthread_mutex_lock(&lock);
	pool_trim(pool, minBytesToKeep);
	pthread_mutex_unlock(&lock);
	return CUDA_SUCCESS;
}

CUresult cuMemPoolDestroy(CUmemoryPool pool)
{
	ENTER();
	pthread_mutex_lock(&lock);
	pool->destroyed = true;
	pool_trim(pool, 0);
	pool->in_use = pool->used > 0;
	pthread_mutex_unlock(&lock);
	return CUDA_SUCCESS;
}

CUresult cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute attr, void *value)
{
	ENTER();
	pthread_mutex_lock(&lock);
	*(cuuint64_t *)value = attr == CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT ? pool->reserved
			       : attr == CU_MEMPOOL_ATTR_USED_MEM_CURRENT   ? pool->used
									    : pool->threshold;
	pthread_mutex_unlock(&lock);
	return CUDA_SUCCESS;
}

CUresult cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attr, void *value)
{
	ENTER();
	if (attr != CU_MEMPOOL_ATTR_RELEASE_THRESHOLD)
		return CUDA_ERROR_INVALID_VALUE;
	pool->threshold = *(cuuint64_t *)value;
	return CUDA_SUCCESS;
}

CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *pool, CUdevice dev)
{
	ENTER();
	*pool = pool_current(fake_card(dev));
	return CUDA_SUCCESS;
}

CUresult cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice dev)
{
	ENTER();
	*pool = pool_current(fake_card(dev));
	return CUDA_SUCCESS;
}

CUresult cuDeviceSetMemPool(CUdevice dev, CUmemoryPool pool)
{
	ENTER();
	current_pools[fake_card(dev)] = pool;
	return CUDA_SUCCESS;
}

/* Memory without an address. The lowest free handle is given out, as soon as it is free. */

static void block_drop(struct block *block)
{
	if (block->refs > 0 || block->maps > 0)
		return;
	if (block->device >= 0)
		fake_give(block->device, block->bytes);
	free(block);
}

CUresult cuMemCreate(
	CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *prop, unsigned long long flags)
{
	const int card = prop->location.type == CU_MEM_LOCATION_TYPE_DEVICE ? fake_card(prop->location.id) : -1;
	struct block *block;

	(void)flags;
	ENTER();
	if (size % POOL_PIECE != 0)
		return CUDA_ERROR_INVALID_VALUE;
	if (prop->location.type == CU_MEM_LOCATION_TYPE_DEVICE && card < 0)
		return CUDA_ERROR_INVALID_DEVICE;
	if (card >= 0 && !fake_take(card, size))
		return CUDA_ERROR_OUT_OF_MEMORY;
	block = calloc(1, sizeof(*block));
	*block = (struct block){.bytes = size, .device = card, .refs = 1};
	pthread_mutex_lock(&lock);
	for (uint64_t i = 1; i < HANDLES; i++) {
		if (handles[i] != NULL)
			continue;
		handles[i] = block;
		*handle = i;
		break;
	}
	pthread_mutex_unlock(&lock);
	return CUDA_SUCCESS;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
	struct block *block;

	ENTER();
	if (handle == 0 || handle >= HANDLES)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&lock);
	block = handles[handle];
	if (block != NULL && --block->refs == 0)
		handles[handle] = NULL;
	if (block != NULL)
		block_drop(block);
	pthread_mutex_unlock(&lock);
	return block != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemAddressReserve(
	CUdeviceptr *ptr, size_t size, size_t alignment, CUdeviceptr addr, unsigned long long flags)
{
	(void)alignment;
	(void)addr;
	(void)flags;
	ENTER();
	*ptr = fake_address(size, false);
	return CUDA_SUCCESS;
}

CUresult cuMemAddressFree(CUdeviceptr ptr, size_t size)
{
	(void)ptr;
	(void)size;
	ENTER();
	return CUDA_SUCCESS;
}

CUresult cuMemMap(
	CUdeviceptr ptr, size_t size, size_t offset, CUmemGenericAllocationHandle handle, unsigned long long flags)
{
	struct table_entry entry = {.key = ptr, .bytes = size};

	(void)offset;
	(void)flags;
	ENTER();
	pthread_mutex_lock(&lock);
	if (handle < HANDLES && handles[handle] != NULL) {
		entry.scope = (uint64_t)(uintptr_t)handles[handle];
		handles[handle]->maps++;
		(void)table_put(&mappings, &entry);
	}
	pthread_mutex_unlock(&lock);
	return entry.scope != 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemUnmap(CUdeviceptr ptr, size_t size)
{
	CUdeviceptr at = ptr;
	struct table_entry entry;

	ENTER();
	pthread_mutex_lock(&lock);
	while (at - ptr < size && table_take(&mappings, at, &entry)) {
		struct block *block = (struct block *)(uintptr_t)entry.scope;

		block->maps--;
		block_drop(block);
		at += entry.bytes;
	}
	pthread_mutex_unlock(&lock);
	return at - ptr >= size ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *addr)
{
	struct table_entry entry;
	CUresult result = CUDA_ERROR_INVALID_VALUE;

	ENTER();
	pthread_mutex_lock(&lock);
	if (table_find_range(&mappings, (uint64_t)(uintptr_t)addr, &entry)) {
		struct block *block = (struct block *)(uintptr_t)entry.scope;
		uint64_t at = 0;

		for (uint64_t i = 1; i < HANDLES && at == 0; i++)
			at = handles[i] == block ? i : 0;
		for (uint64_t i = 1; i < HANDLES && at == 0; i++)
			at = handles[i] == NULL ? i : 0;
		handles[at] = block;
		block->refs++;
		*handle = at;
		result = CUDA_SUCCESS;
	}
	pthread_mutex_unlock(&lock);
	return result;
}

CUresult cuImportExternalMemory(CUexternalMemory *extMem, const CUDA_EXTERNAL_MEMORY_HANDLE_DESC *desc)
{
	(void)desc;
	ENTER();
	*extMem = (CUexternalMemory)(uintptr_t)fake_address(1, false);
	return CUDA_SUCCESS;
}

CUresult cuDestroyExternalMemory(CUexternalMemory extMem)
{
	(void)extMem;
	ENTER();
	return CUDA_SUCCESS;
}

/* What graphs keep. */

CUresult fake_graph_memory(int device, uint64_t bytes)
{
	CUresult result = CUDA_SUCCESS;

	bytes = round_up(bytes, POOL_PIECE);
	pthread_mutex_lock(&lock);
	if (bytes > graphs[device].reserved) {
		if (fake_take(device, bytes - graphs[device].reserved))
			graphs[device].reserved = bytes;
		else
			result = CUDA_ERROR_OUT_OF_MEMORY;
	}
	pthread_mutex_unlock(&lock);
	return result;
}

CUresult cuDeviceGetGraphMemAttribute(CUdevice device, CUgraphMem_attribute attr, void *value)
{
	ENTER();
	*(cuuint64_t *)value = attr == CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT ? graphs[fake_card(device)].reserved : 0;
	return CUDA_SUCCESS;
}

CUresult cuDeviceGraphMemTrim(CUdevice device)
{
	const int card = fake_card(device);

	ENTER();
	pthread_mutex_lock(&lock);
	fake_give(card, graphs[card].reserved);
	graphs[card].reserved = 0;
	pthread_mutex_unlock(&lock);
	return CUDA_SUCCESS;
}
