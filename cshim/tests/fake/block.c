/* block.c: memory without an address. The lowest free handle is given out, as soon as it is free. What is exported
 * lives on as long as a descriptor of it is open anywhere: it is the reading end of a pipe, and an end that nobody has
 * open any more is what the writing end feels. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "driver.h"
#include "memory.h"

enum { HANDLES = 4096, EXPORTS = 256 };

struct block {
	uint64_t bytes;
	int device; /* below 0: memory of the host, or another process's */
	int refs, maps, exports;
	int held_fd; /* of an import: another process's memory stays while this is open; 0: none */
};

static struct table mappings;
static struct block *handles[HANDLES];
static struct {
	struct block *block;
	int writing_fd;
	ino_t inode;
	pid_t owner; /* a forked child has this table too, and none of what is in it */
} exports[EXPORTS];

static void block_drop(struct block *block)
{
	if (block->refs > 0 || block->maps > 0 || block->exports > 0)
		return;
	if (block->device >= 0)
		fake_give(block->device, block->bytes);
	if (block->held_fd > 0)
		close(block->held_fd);
	free(block);
}

/* Exports whose last descriptor was closed, which no call tells. */
static void exports_look(void)
{
	for (int i = 0; i < EXPORTS; i++) {
		struct pollfd end = {.fd = exports[i].writing_fd};

		if (exports[i].block == NULL || exports[i].owner != getpid() || poll(&end, 1, 0) <= 0 ||
			!(end.revents & POLLERR))
			continue;
		close(exports[i].writing_fd);
		exports[i].block->exports--;
		block_drop(exports[i].block);
		exports[i].block = NULL;
	}
}

void fake_look_at_exports(void)
{
	pthread_mutex_lock(&fake_memory_lock);
	exports_look();
	pthread_mutex_unlock(&fake_memory_lock);
}

int fake_location_card(const CUmemLocation *location, bool *known)
{
	*known = true;
	switch ((int)location->type) {
	case CU_MEM_LOCATION_TYPE_DEVICE:
		*known = fake_card(location->id) >= 0;
		return fake_card(location->id);
	case CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN: /* cards of one domain */
		*known = location->localized.localityDomainId == 0 && fake_card(location->localized.deviceId) >= 0;
		return fake_card(location->localized.deviceId);
	case CU_MEM_LOCATION_TYPE_HOST:
	case CU_MEM_LOCATION_TYPE_HOST_NUMA:
	case CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT:
		return -1;
	case FAKE_NEWER_LOCATION: /* a kind of a driver that comes later: memory of the first card */
		return 0;
	default:
		*known = false;
		return -1;
	}
}

static uint64_t handle_new(struct block *block)
{
	for (uint64_t i = 1; i < HANDLES; i++) {
		if (handles[i] != NULL)
			continue;
		handles[i] = block;
		return i;
	}
	abort();
}

CUresult cuMemCreate(
	CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *prop, unsigned long long flags)
{
	struct block *block;
	bool known;
	int card;

	(void)flags;
	ENTER();
	NOT_IN_A_CAPTURE();
	if (size == 0 || size % FAKE_PIECE != 0)
		return CUDA_ERROR_INVALID_VALUE;
	card = fake_location_card(&prop->location, &known);
	if (!known)
		return CUDA_ERROR_INVALID_DEVICE;
	if (card >= 0 && !fake_take(card, size))
		return CUDA_ERROR_OUT_OF_MEMORY;
	block = calloc(1, sizeof(*block));
	*block = (struct block){.bytes = size, .device = card, .refs = 1};
	pthread_mutex_lock(&fake_memory_lock);
	*handle = handle_new(block);
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
	exports_look();
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
	ENTER();
	fake_address_free(ptr, size);
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
	exports_look();
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
		if (at == 0)
			at = handle_new(block);
		block->refs++;
		*handle = at;
		result = CUDA_SUCCESS;
	}
	pthread_mutex_unlock(&fake_memory_lock);
	return result;
}

/* Sharing. */

static CUresult export_add(struct block *block, int *reading_fd)
{
	struct stat status;
	int ends[2];

	for (int i = 0; i < EXPORTS; i++) {
		if (exports[i].block != NULL)
			continue;
		if (pipe2(ends, O_CLOEXEC) != 0 || fstat(ends[0], &status) != 0)
			return CUDA_ERROR_OUT_OF_MEMORY;
		block->exports++;
		exports[i].block = block;
		exports[i].writing_fd = ends[1];
		exports[i].inode = status.st_ino;
		exports[i].owner = getpid();
		*reading_fd = ends[0];
		return CUDA_SUCCESS;
	}
	return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuMemExportToShareableHandle(void *shareableHandle, CUmemGenericAllocationHandle handle,
	CUmemAllocationHandleType handleType, unsigned long long flags)
{
	CUresult result = CUDA_ERROR_INVALID_VALUE;

	(void)flags;
	ENTER();
	if (handleType != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
		return CUDA_ERROR_NOT_SUPPORTED;
	pthread_mutex_lock(&fake_memory_lock);
	exports_look();
	if (handle < HANDLES && handles[handle] != NULL)
		result = export_add(handles[handle], shareableHandle);
	pthread_mutex_unlock(&fake_memory_lock);
	return result;
}

CUresult cuMemImportFromShareableHandle(
	CUmemGenericAllocationHandle *handle, void *osHandle, CUmemAllocationHandleType shHandleType)
{
	const int fd = (int)(intptr_t)osHandle;
	struct block *block = NULL;
	struct stat status;

	ENTER();
	if (shHandleType != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || fstat(fd, &status) != 0)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&fake_memory_lock);
	for (int i = 0; i < EXPORTS && block == NULL; i++)
		if (exports[i].block != NULL && exports[i].owner == getpid() && exports[i].inode == status.st_ino)
			block = exports[i].block;
	if (block == NULL) {
		block = calloc(1, sizeof(*block));
		*block = (struct block){.device = -1, .held_fd = fcntl(fd, F_DUPFD_CLOEXEC, 3)};
	}
	block->refs++;
	*handle = handle_new(block);
	pthread_mutex_unlock(&fake_memory_lock);
	return CUDA_SUCCESS;
}

/* Memory mapped into an array: a place of it has one mapping. `key` of an entry is the place, `scope` the block,
 * `bytes` the array. */
static struct table array_places;

static uint64_t place_of(const CUarrayMapInfo *info)
{
	return (uint64_t)(uintptr_t)info->resource.array * 0x9e3779b97f4a7c15u ^
	       (uint64_t)info->subresource.sparseLevel.level << 40 ^
	       (uint64_t)info->subresource.sparseLevel.layer << 20 ^ info->subresource.sparseLevel.offsetX ^
	       (uint64_t)info->subresource.sparseLevel.offsetY << 10 ^ 1;
}

static void place_clear(uint64_t place)
{
	struct table_entry entry;
	struct block *block;

	if (!table_take(&array_places, place, &entry))
		return;
	block = (struct block *)(uintptr_t)entry.scope;
	block->maps--;
	block_drop(block);
}

void fake_unmap_array(uint64_t array)
{
	struct table_entry entry;
	uint64_t key = 0;

	pthread_mutex_lock(&fake_memory_lock);
	do { /* few: looked at one by one */
		key = 0;
		for (unsigned i = 0; i < TABLE_SHARDS && key == 0; i++)
			for (uint32_t at = 0; at < array_places.shards[i].room && key == 0; at++) {
				entry = array_places.shards[i].entries[at];
				key = entry.key != 0 && entry.bytes == array ? entry.key : 0;
			}
		if (key != 0)
			place_clear(key);
	} while (key != 0);
	pthread_mutex_unlock(&fake_memory_lock);
}

static CUresult map_arrays(const CUarrayMapInfo *list, unsigned count)
{
	CUresult result = CUDA_SUCCESS;

	pthread_mutex_lock(&fake_memory_lock);
	for (unsigned i = 0; i < count && result == CUDA_SUCCESS; i++) {
		const uint64_t handle = list[i].memHandle.memHandle;
		struct table_entry entry = {
			.key = place_of(&list[i]), .bytes = (uint64_t)(uintptr_t)list[i].resource.array};

		if (list[i].memOperationType == CU_MEM_OPERATION_TYPE_UNMAP) {
			place_clear(entry.key);
		} else if (handle >= HANDLES || handles[handle] == NULL) {
			result = CUDA_ERROR_INVALID_VALUE;
		} else {
			handles[handle]->maps++;
			place_clear(entry.key);
			entry.scope = (uint64_t)(uintptr_t)handles[handle];
			(void)table_put(&array_places, &entry);
		}
	}
	pthread_mutex_unlock(&fake_memory_lock);
	return result;
}

CUresult cuMemMapArrayAsync(CUarrayMapInfo *mapInfoList, unsigned int count, CUstream hStream)
{
	(void)hStream;
	ENTER();
	return map_arrays(mapInfoList, count);
}

CUresult cuMemMapArrayAsync_ptsz(CUarrayMapInfo *mapInfoList, unsigned int count, CUstream hStream)
{
	(void)hStream;
	ENTER();
	return map_arrays(mapInfoList, count);
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
