/* vmm.c: memory without an address (cuMemCreate), mapped into reserved addresses or into sparse arrays.
 *
 * A block's memory lives until its last handle is released and its last mapping is gone. Blocks have numbers of our
 * own: the driver gives a released handle's value to the next allocation while the old one is still mapped.
 *
 *   - handles: handle -> block (scope), how often it was handed out (tag)
 *   - mappings: address -> block (scope), length; block 0 for memory that is not charged
 *   - array_maps: place of an array -> block (bytes), array (scope)
 *   - blocks: block -> bytes, handles (tag), mappings (scope)
 *
 * One short lock orders them; it is not held while the driver works. What a call is about to refer to is counted
 * before the driver is called, so that a block is never given back while another thread is mapping or retaining it.
 *
 * A block that was exported may live on after that: by a descriptor, or by another process that imported it. It stays
 * charged to the process that created it, and ends when a release or an unmapping is seen to free as much on the
 * device.
 */
#define _GNU_SOURCE
#include <string.h>

#include "charge.h"
#include "log.h"
#include "quota.h"
#include "vmm.h"

enum { BLOCK_EXPORTED = 1 }; /* kind of a block */

/* `number` 0 is no block: memory of the host, or imported. Returns the bytes that were given back. */
static uint64_t block_change(struct shim *shim, uint64_t number, int handles, int mappings)
{
	struct table_entry block;

	if (!table_take(&shim->blocks, number, &block))
		return 0;
	block.tag += (uint32_t)handles;
	block.scope += (uint64_t)(int64_t)mappings;
	if (block.tag != 0 || block.scope != 0 || block.kind == BLOCK_EXPORTED) {
		(void)table_put(&shim->blocks, &block); /* into the place it has just left */
		return 0;
	}
	charge_give(shim, block.device, block.bytes);
	return block.bytes;
}

/* What was freed around a call, on the current context's device: looked at only while exported blocks are about. */
struct freed {
	int row;
	size_t free_before;
	uint64_t given;
};

static bool device_free(struct shim *shim, int *row, size_t *free_bytes)
{
	const struct relaxed relaxed = shim_relax();
	uint64_t context;
	size_t total;
	bool told;

	*row = shim_row_of_context(shim, &context);
	told = *row >= 0 && driver.cuMemGetInfo_v2 != NULL &&
	       driver.cuMemGetInfo_v2(free_bytes, &total) == CUDA_SUCCESS;
	shim_restore(relaxed);
	return told;
}

static struct freed freed_begin(struct shim *shim)
{
	struct freed freed = {.row = ROW_NONE};

	if (shim != NULL && atomic_load(&shim->exported) != 0 && !device_free(shim, &freed.row, &freed.free_before))
		freed.row = ROW_NONE;
	return freed;
}

/* An exported block that nothing of this process refers to, on `row` and of at most `bytes`: the largest. */
static bool find_left_over(struct shim *shim, int row, uint64_t bytes, struct table_entry *found)
{
	found->key = 0;
	for (unsigned i = 0; i < TABLE_SHARDS; i++) {
		struct table_shard *shard = &shim->blocks.shards[i];

		spin_take(&shard->lock);
		for (uint32_t at = 0; at < shard->room; at++) {
			const struct table_entry *block = &shard->entries[at];

			if (block->key != 0 && block->kind == BLOCK_EXPORTED && block->tag == 0 && block->scope == 0 &&
				block->device == row && block->bytes <= bytes &&
				(found->key == 0 || block->bytes > found->bytes))
				*found = *block;
		}
		spin_give(&shard->lock);
	}
	return found->key != 0;
}

static void freed_end(struct shim *shim, const struct freed *freed)
{
	struct table_entry block;
	size_t free_now;
	uint64_t more;
	int row;

	if (freed->row == ROW_NONE || !device_free(shim, &row, &free_now) || row != freed->row)
		return;
	more = quota_left(freed->given, quota_left(freed->free_before, free_now));
	spin_take(&shim->vmm_lock);
	while (more > 0 && find_left_over(shim, row, more, &block) && table_take(&shim->blocks, block.key, &block)) {
		more -= block.bytes;
		atomic_fetch_sub(&shim->exported, 1);
		charge_give(shim, block.device, block.bytes);
	}
	spin_give(&shim->vmm_lock);
}

static void handle_add(struct shim *shim, uint64_t handle, uint64_t block)
{
	struct table_entry entry;

	if (!table_take(&shim->handles, handle, &entry) || entry.scope != block)
		entry = (struct table_entry){.key = handle, .scope = block};
	entry.tag++;
	if (!table_put(&shim->handles, &entry))
		log_line(LOG_ERROR,
			"no memory to remember an allocation handle: it stays charged until this process ends");
}

/* Count one use less of a handle that is about to be released. It is still known, since until the driver has released
 * it another thread may map it. Returns the block, 0 for a handle that is not charged. */
static uint64_t handle_release(struct shim *shim, uint64_t handle)
{
	struct table_entry entry;

	if (!table_take(&shim->handles, handle, &entry))
		return 0;
	entry.tag -= entry.tag > 0;
	(void)table_put(&shim->handles, &entry); /* into the place it has just left */
	return entry.scope;
}

/* The driver has released it. If it was the last use, forget it, unless its value is another block's already. */
static void handle_released(struct shim *shim, uint64_t handle, uint64_t block)
{
	struct table_entry entry;

	if (table_take(&shim->handles, handle, &entry) && (entry.tag > 0 || entry.scope != block))
		(void)table_put(&shim->handles, &entry);
}

CUresult cuMemCreate(
	CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *prop, unsigned long long flags)
{
	struct shim *shim = SHIM_HERE();
	struct charge charge;
	struct table_entry block;
	CUresult result;
	int row;

	REAL(cuMemCreate);
	row = shim != NULL && prop != NULL ? shim_row_of_location(shim, &prop->location) : ROW_NONE;
	if (!charge_begin_on(&charge, shim, row, size))
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = driver.cuMemCreate(handle, size, prop, flags);
	charge_correct(&charge, result, size);
	if (charge.shim == NULL || result != CUDA_SUCCESS || handle == NULL)
		return result;
	spin_take(&shim->vmm_lock);
	block = (struct table_entry){.key = ++shim->last_block, .bytes = size, .tag = 1, .device = (uint16_t)row};
	(void)table_put(&shim->blocks, &block);
	handle_add(shim, *handle, block.key);
	spin_give(&shim->vmm_lock);
	return result;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
	struct shim *shim = SHIM_HERE();
	uint64_t block = 0;
	struct freed freed;
	CUresult result;

	REAL(cuMemRelease);
	freed = freed_begin(shim);
	if (shim != NULL) {
		spin_take(&shim->vmm_lock);
		block = handle_release(shim, handle);
		spin_give(&shim->vmm_lock);
	}
	result = driver.cuMemRelease(handle);
	if (block != 0) {
		spin_take(&shim->vmm_lock);
		if (result == CUDA_SUCCESS) {
			handle_released(shim, handle, block);
			freed.given = block_change(shim, block, -1, 0);
		} else {
			handle_add(shim, handle, block);
		}
		spin_give(&shim->vmm_lock);
	}
	freed_end(shim, &freed);
	return result;
}

CUresult cuMemMap(
	CUdeviceptr ptr, size_t size, size_t offset, CUmemGenericAllocationHandle handle, unsigned long long flags)
{
	struct shim *shim = SHIM_HERE();
	struct table_entry entry;
	uint64_t block = 0;
	CUresult result;

	REAL(cuMemMap);
	if (shim != NULL) {
		spin_take(&shim->vmm_lock);
		if (table_get(&shim->handles, handle, &entry))
			block = entry.scope;
		block_change(shim, block, 0, 1);
		spin_give(&shim->vmm_lock);
	}
	result = driver.cuMemMap(ptr, size, offset, handle, flags);
	if (shim == NULL)
		return result;
	spin_take(&shim->vmm_lock);
	entry = (struct table_entry){.key = ptr, .bytes = size, .scope = block};
	if (result != CUDA_SUCCESS)
		block_change(shim, block, 0, -1);
	else if (!table_put(&shim->mappings, &entry))
		log_line(
			LOG_ERROR, "no memory to remember a mapping: its memory stays charged until this process ends");
	spin_give(&shim->vmm_lock);
	return result;
}

/* The mapping that holds `address`: most often it begins there. */
static bool mapping_at(struct shim *shim, uint64_t address, struct table_entry *entry)
{
	return table_get(&shim->mappings, address, entry) || table_find_range(&shim->mappings, address, entry);
}

CUresult cuMemUnmap(CUdeviceptr ptr, size_t size)
{
	struct shim *shim = SHIM_HERE();
	struct table_entry entry;
	CUdeviceptr at = ptr;
	struct freed freed;
	CUresult result;

	REAL(cuMemUnmap);
	freed = freed_begin(shim);
	result = driver.cuMemUnmap(ptr, size); /* the addresses stay reserved: nobody else is given them meanwhile */
	if (result != CUDA_SUCCESS || shim == NULL)
		return result;
	spin_take(&shim->vmm_lock);
	while (at - ptr < size && mapping_at(shim, at, &entry)) {
		(void)table_take(&shim->mappings, entry.key, &entry);
		freed.given += block_change(shim, entry.scope, 0, -1);
		at = entry.key + entry.bytes;
	}
	spin_give(&shim->vmm_lock);
	freed_end(shim, &freed);
	return result;
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *addr)
{
	struct shim *shim = SHIM_HERE();
	struct table_entry entry;
	uint64_t block = 0;
	CUresult result;

	REAL(cuMemRetainAllocationHandle);
	if (shim != NULL) {
		spin_take(&shim->vmm_lock);
		if (mapping_at(shim, (uint64_t)(uintptr_t)addr, &entry))
			block = entry.scope;
		block_change(shim, block, 1, 0);
		spin_give(&shim->vmm_lock);
	}
	result = driver.cuMemRetainAllocationHandle(handle, addr);
	if (block == 0)
		return result;
	spin_take(&shim->vmm_lock);
	if (result == CUDA_SUCCESS && handle != NULL)
		handle_add(shim, *handle, block);
	else
		block_change(shim, block, -1, 0);
	spin_give(&shim->vmm_lock);
	return result;
}

/* From now on the memory may outlive what this process has of it. */
CUresult cuMemExportToShareableHandle(void *shareableHandle, CUmemGenericAllocationHandle handle,
	CUmemAllocationHandleType handleType, unsigned long long flags)
{
	struct shim *shim = SHIM_HERE();
	struct table_entry entry, block;

	REAL(cuMemExportToShareableHandle);
	if (shim != NULL) {
		spin_take(&shim->vmm_lock);
		if (table_get(&shim->handles, handle, &entry) && table_take(&shim->blocks, entry.scope, &block)) {
			atomic_fetch_add(&shim->exported, block.kind != BLOCK_EXPORTED);
			block.kind = BLOCK_EXPORTED;
			(void)table_put(&shim->blocks, &block);
		}
		spin_give(&shim->vmm_lock);
	}
	return driver.cuMemExportToShareableHandle(shareableHandle, handle, handleType, flags);
}

/* Charged where it was created. Its value may have been another handle's before: that one is forgotten. */
CUresult cuMemImportFromShareableHandle(
	CUmemGenericAllocationHandle *handle, void *osHandle, CUmemAllocationHandleType shHandleType)
{
	struct shim *shim = SHIM_HERE();
	CUresult result;

	REAL(cuMemImportFromShareableHandle);
	result = driver.cuMemImportFromShareableHandle(handle, osHandle, shHandleType);
	if (shim != NULL && result == CUDA_SUCCESS && handle != NULL) {
		struct table_entry entry;

		spin_take(&shim->vmm_lock);
		if (table_get(&shim->handles, *handle, &entry) && entry.tag == 0)
			(void)table_take(&shim->handles, *handle, &entry);
		spin_give(&shim->vmm_lock);
	}
	return result;
}

/* A place of an array, by all that names it: one that is mapped again in other pieces stays charged until the array
 * ends. */
static uint64_t place_of(const CUarrayMapInfo *info)
{
	CUarrayMapInfo named = {0};
	const unsigned char *bytes = (const unsigned char *)&named;
	uint64_t hash = 14695981039346656037u;

	named.resourceType = info->resourceType;
	named.resource = info->resource;
	named.subresourceType = info->subresourceType;
	if (info->subresourceType == CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_MIPTAIL) {
		named.subresource.miptail.layer = info->subresource.miptail.layer;
		named.subresource.miptail.offset = info->subresource.miptail.offset;
		named.subresource.miptail.size = info->subresource.miptail.size;
	} else {
		memcpy(&named.subresource.sparseLevel, &info->subresource.sparseLevel,
			sizeof(named.subresource.sparseLevel));
	}
	for (size_t i = 0; i < sizeof(named); i++)
		hash = (hash ^ bytes[i]) * 1099511628211u;
	return hash | 1;
}

/* Before the driver maps them: what is mapped is counted. */
static void arrays_count(struct shim *shim, const CUarrayMapInfo *list, unsigned int count, int change)
{
	struct table_entry handle;

	spin_take(&shim->vmm_lock);
	for (unsigned i = 0; i < count; i++)
		if (list[i].memOperationType == CU_MEM_OPERATION_TYPE_MAP &&
			table_get(&shim->handles, list[i].memHandle.memHandle, &handle))
			(void)block_change(shim, handle.scope, 0, change);
	spin_give(&shim->vmm_lock);
}

/* And after it: what was there before is not mapped any more. */
static void arrays_settle(struct shim *shim, const CUarrayMapInfo *list, unsigned int count)
{
	spin_take(&shim->vmm_lock);
	for (unsigned i = 0; i < count; i++) {
		struct table_entry handle = {0}, before;
		struct table_entry entry = {
			.key = place_of(&list[i]), .scope = (uint64_t)(uintptr_t)list[i].resource.array};

		if (table_take(&shim->array_maps, entry.key, &before))
			(void)block_change(shim, before.bytes, 0, -1);
		if (list[i].memOperationType != CU_MEM_OPERATION_TYPE_MAP)
			continue;
		(void)table_get(&shim->handles, list[i].memHandle.memHandle, &handle);
		entry.bytes = handle.scope;
		if (entry.bytes != 0 && !table_put(&shim->array_maps, &entry))
			log_line(LOG_ERROR,
				"no memory to remember a mapping: its memory stays charged until this process ends");
	}
	spin_give(&shim->vmm_lock);
}

void vmm_drop_array(struct shim *shim, uint64_t array)
{
	struct table_entry entry;

	spin_take(&shim->vmm_lock);
	while (table_take_scope(&shim->array_maps, array, &entry))
		(void)block_change(shim, entry.bytes, 0, -1);
	spin_give(&shim->vmm_lock);
}

#define MAP_ARRAYS(symbol)                                                                                             \
	CUresult symbol(CUarrayMapInfo *mapInfoList, unsigned int count, CUstream hStream)                             \
	{                                                                                                              \
		struct shim *shim = SHIM_HERE();                                                                       \
		CUresult result;                                                                                       \
                                                                                                                       \
		REAL(symbol);                                                                                          \
		if (shim == NULL || mapInfoList == NULL)                                                               \
			return driver.symbol(mapInfoList, count, hStream);                                             \
		arrays_count(shim, mapInfoList, count, 1);                                                             \
		result = driver.symbol(mapInfoList, count, hStream);                                                   \
		if (result == CUDA_SUCCESS)                                                                            \
			arrays_settle(shim, mapInfoList, count);                                                       \
		else                                                                                                   \
			arrays_count(shim, mapInfoList, count, -1);                                                    \
		return result;                                                                                         \
	}

MAP_ARRAYS(cuMemMapArrayAsync)
MAP_ARRAYS(cuMemMapArrayAsync_ptsz)
