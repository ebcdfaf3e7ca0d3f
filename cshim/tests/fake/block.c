/* block.c: memory without an address. The lowest free handle is given out, as soon as it is free. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdlib.h>

#include "driver.h"
#include "memory.h"

enum { HANDLES = 4096 };

struct block {
	uint64_t bytes;
	int device; /* below 0: memory of the host */
	int refs, maps;
};

static struct table mappings;
static struct block *handles[HANDLES];

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
	if (size % FAKE_PIECE != 0)
		return CUDA_ERROR_INVALID_VALUE;
	if (prop->location.type == CU_MEM_LOCATION_TYPE_DEVICE && card < 0)
		return CUDA_ERROR_INVALID_DEVICE;
	if (card >= 0 && !fake_take(card, size))
		return CUDA_ERROR_OUT_OF_MEMORY;
	block = calloc(1, sizeof(*block));
	*block = (struct block){.bytes = size, .device = card, .refs = 1};
	pthread_mutex_lock(&fake_memory_lock);
	for (uint64_t i = 1; i < HANDLES; i++) {
		if (handles[i] != NULL)
			continue;
		handles[i] = block;
		*handle = i;
		break;
	}
	pthread_mutex_unlock(&fake_memory_lock);
	return CUDA_SUCCESS;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
	struct block *block;

	ENTER();
	if (handle == 0 || handle >= HANDLES)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&fake_memory_lock);
	block = handles[handle];
	if (block != NULL && --block->refs == 0)
		handles[handle] = NULL;
	if (block != NULL)
		block_drop(block);
	pthread_mutex_unlock(&fake_memory_lock);
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
	pthread_mutex_lock(&fake_memory_lock);
	if (handle < HANDLES && handles[handle] != NULL) {
		entry.scope = (uint64_t)(uintptr_t)handles[handle];
		handles[handle]->maps++;
		(void)table_put(&mappings, &entry);
	}
	pthread_mutex_unlock(&fake_memory_lock);
	return entry.scope != 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemUnmap(CUdeviceptr ptr, size_t size)
{
	CUdeviceptr at = ptr;
	struct table_entry entry;

	ENTER();
	pthread_mutex_lock(&fake_memory_lock);
	while (at - ptr < size && table_take(&mappings, at, &entry)) {
		struct block *block = (struct block *)(uintptr_t)entry.scope;

		block->maps--;
		block_drop(block);
		at += entry.bytes;
	}
	pthread_mutex_unlock(&fake_memory_lock);
	return at - ptr >= size ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *addr)
{
	struct table_entry entry;
	CUresult result = CUDA_ERROR_INVALID_VALUE;

	ENTER();
	pthread_mutex_lock(&fake_memory_lock);
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
	pthread_mutex_unlock(&fake_memory_lock);
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
