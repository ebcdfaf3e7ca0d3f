/* pool.c: memory in the order of a stream, and what the device keeps for graphs. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdlib.h>

#include "driver.h"
#include "memory.h"

enum { POOL_COUNT = 4096 };

struct CUmemPoolHandle_st {
	bool in_use;
	bool destroyed;
	bool imported; /* another process's: it takes nothing here */
	int device;    /* below 0: of the host */
	CUmemLocation location;
	uint64_t reserved, used, threshold;
};

static struct CUmemPoolHandle_st pools[POOL_COUNT];
static CUmemoryPool default_pools[FAKE_DEVICES], current_pools[FAKE_DEVICES], host_pool;

static bool pool_take(const struct CUmemPoolHandle_st *pool, uint64_t bytes)
{
	return pool->device < 0 || pool->imported || fake_take(pool->device, bytes);
}

static void pool_give(const struct CUmemPoolHandle_st *pool, uint64_t bytes)
{
	if (pool->device >= 0 && !pool->imported)
		fake_give(pool->device, bytes);
}
static uint64_t graphs_reserved[FAKE_DEVICES];

void fake_pool_return(uint32_t number, uint64_t bytes)
{
	struct CUmemPoolHandle_st *pool = &pools[number];

	pthread_mutex_lock(&fake_memory_lock);
	pool->used -= bytes;
	if (pool->destroyed) { /* a destroyed pool keeps only what is still in use */
		pool_give(pool, pool->reserved - fake_round_up(pool->used, FAKE_PIECE));
		pool->reserved = fake_round_up(pool->used, FAKE_PIECE);
		pool->in_use = pool->used > 0;
	}
	pthread_mutex_unlock(&fake_memory_lock);
}

static CUmemoryPool pool_new(int device, CUmemLocation location)
{
	CUmemoryPool found = NULL;

	for (int i = 0; i < POOL_COUNT && found == NULL; i++) {
		if (pools[i].in_use)
			continue;
		pools[i] = (struct CUmemPoolHandle_st){.in_use = true, .device = device, .location = location};
		found = &pools[i];
	}
	return found;
}

static CUmemoryPool pool_default(CUdevice ordinal)
{
	const int device = fake_card(ordinal);
	CUmemoryPool pool;

	pthread_mutex_lock(&fake_memory_lock);
	if (default_pools[device] == NULL)
		default_pools[device] =
			pool_new(device, (CUmemLocation){.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = ordinal});
	pool = default_pools[device];
	pthread_mutex_unlock(&fake_memory_lock);
	return pool;
}

static CUmemoryPool pool_current(CUdevice ordinal)
{
	const CUmemoryPool set = current_pools[fake_card(ordinal)];

	return set != NULL ? set : pool_default(ordinal);
}

static CUresult pool_allocate(CUdeviceptr *dptr, uint64_t bytes, CUmemoryPool pool, CUstream stream, bool per_thread)
{
	struct CUstream_st *queue = fake_stream(stream, per_thread);
	struct table_entry entry = {.bytes = bytes, .kind = FROM_POOL};
	uint64_t growth = 0;

	if (bytes == 0 || dptr == NULL || pool == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	if (queue->capture != NULL) {
		*dptr = fake_graph_add_alloc(queue->capture, bytes, &pool->location);
		entry.key = *dptr;
		entry.kind = FROM_GRAPH;
		(void)table_put(&fake_pointers, &entry);
		return CUDA_SUCCESS;
	}
	pthread_mutex_lock(&fake_memory_lock);
	if (pool->used + bytes > pool->reserved)
		growth = fake_round_up(pool->used + bytes - pool->reserved, FAKE_PIECE);
	if (!pool_take(pool, growth)) {
		pthread_mutex_unlock(&fake_memory_lock);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	pool->reserved += growth;
	pool->used += bytes;
	pthread_mutex_unlock(&fake_memory_lock);
	entry.key = *dptr = fake_address(bytes, false);
	entry.device = (uint16_t)(pool->device < 0 ? 0 : pool->device);
	entry.tag = (uint32_t)(pool - pools);
	(void)table_put(&fake_pointers, &entry);
	return CUDA_SUCCESS;
}

CUresult cuMemAllocAsync(CUdeviceptr *dptr, size_t bytesize, CUstream hStream)
{
	const struct CUctx_st *context = fake_stream_context(fake_stream(hStream, false));

	ENTER();
	if (context == NULL)
		return CUDA_ERROR_INVALID_CONTEXT;
	return pool_allocate(dptr, bytesize, pool_current(context->ordinal), hStream, false);
}

CUresult cuMemAllocAsync_ptsz(CUdeviceptr *dptr, size_t bytesize, CUstream hStream)
{
	const struct CUctx_st *context = fake_stream_context(fake_stream(hStream, true));

	ENTER();
	if (context == NULL)
		return CUDA_ERROR_INVALID_CONTEXT;
	return pool_allocate(dptr, bytesize, pool_current(context->ordinal), hStream, true);
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
	bool known;
	int card;

	ENTER();
	NOT_IN_A_CAPTURE();
	card = fake_location_card(&poolProps->location, &known);
	if (!known)
		return CUDA_ERROR_INVALID_DEVICE;
	pthread_mutex_lock(&fake_memory_lock);
	*pool = pool_new(card, poolProps->location);
	pthread_mutex_unlock(&fake_memory_lock);
	return *pool != NULL ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static void pool_trim(struct CUmemPoolHandle_st *pool, uint64_t keep)
{
	const uint64_t needed = fake_round_up(pool->used, FAKE_PIECE);

	keep = keep < needed ? needed : keep;
	if (keep >= pool->reserved)
		return;
	pool_give(pool, pool->reserved - keep);
	pool->reserved = keep;
}

void fake_pools_trim(void)
{
	pthread_mutex_lock(&fake_memory_lock);
	for (int i = 0; i < POOL_COUNT; i++)
		if (pools[i].in_use)
			pool_trim(&pools[i], fake_round_up(pools[i].threshold, FAKE_PIECE));
	pthread_mutex_unlock(&fake_memory_lock);
}

CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t minBytesToKeep)
{
	ENTER();
	NOT_IN_A_CAPTURE();
	pthread_mutex_lock(&fake_memory_lock);
	pool_trim(pool, minBytesToKeep);
	pthread_mutex_unlock(&fake_memory_lock);
	return CUDA_SUCCESS;
}

CUresult cuMemPoolDestroy(CUmemoryPool pool)
{
	ENTER();
	NOT_IN_A_CAPTURE();
	pthread_mutex_lock(&fake_memory_lock);
	pool->destroyed = true;
	pool_trim(pool, 0);
	pool->in_use = pool->used > 0;
	pthread_mutex_unlock(&fake_memory_lock);
	return CUDA_SUCCESS;
}

/* FAKE_OLD_POOLS: a driver before 13.0, which does not tell where a pool lies. */
static bool pool_tells(CUmemPool_attribute attr)
{
	return (attr != CU_MEMPOOL_ATTR_LOCATION_ID && attr != CU_MEMPOOL_ATTR_LOCATION_TYPE) ||
	       getenv("FAKE_OLD_POOLS") == NULL;
}

CUresult cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute attr, void *value)
{
	CUresult result = CUDA_SUCCESS;

	ENTER();
	NOT_IN_A_CAPTURE();
	if (!pool_tells(attr))
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&fake_memory_lock);
	switch ((int)attr) {
	case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
		*(cuuint64_t *)value = pool->reserved;
		break;
	case CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
		*(cuuint64_t *)value = pool->used;
		break;
	case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
		*(cuuint64_t *)value = pool->threshold;
		break;
	case CU_MEMPOOL_ATTR_LOCATION_ID:
		*(int *)value = pool->imported ? -1 : pool->location.id;
		break;
	case CU_MEMPOOL_ATTR_LOCATION_TYPE: /* a domain that is the whole card is told as the card */
		*(int *)value = pool->imported ? CU_MEM_LOCATION_TYPE_INVISIBLE
				: pool->location.type == CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN
					? CU_MEM_LOCATION_TYPE_DEVICE
					: (int)pool->location.type;
		break;
	default:
		result = CUDA_ERROR_INVALID_VALUE;
	}
	pthread_mutex_unlock(&fake_memory_lock);
	return result;
}

CUresult cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attr, void *value)
{
	ENTER();
	NOT_IN_A_CAPTURE();
	if (attr != CU_MEMPOOL_ATTR_RELEASE_THRESHOLD)
		return CUDA_ERROR_INVALID_VALUE;
	pool->threshold = *(cuuint64_t *)value;
	return CUDA_SUCCESS;
}

CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *pool, CUdevice dev)
{
	ENTER();
	if (fake_card(dev) < 0)
		return CUDA_ERROR_INVALID_DEVICE;
	*pool = pool_default(dev);
	return CUDA_SUCCESS;
}

CUresult cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice dev)
{
	ENTER();
	if (fake_card(dev) < 0)
		return CUDA_ERROR_INVALID_DEVICE;
	*pool = pool_current(dev);
	return CUDA_SUCCESS;
}

CUresult cuDeviceSetMemPool(CUdevice dev, CUmemoryPool pool)
{
	ENTER();
	current_pools[fake_card(dev)] = pool;
	return CUDA_SUCCESS;
}

CUresult cuMemGetDefaultMemPool(CUmemoryPool *pool_out, CUmemLocation *location, CUmemAllocationType type)
{
	(void)type;
	ENTER();
	if (location->type == CU_MEM_LOCATION_TYPE_DEVICE)
		return cuDeviceGetDefaultMemPool(pool_out, location->id);
	pthread_mutex_lock(&fake_memory_lock);
	if (host_pool == NULL)
		host_pool = pool_new(-1, (CUmemLocation){.type = CU_MEM_LOCATION_TYPE_HOST});
	*pool_out = host_pool;
	pthread_mutex_unlock(&fake_memory_lock);
	return CUDA_SUCCESS;
}

/* A handle is a process's pool: an import of it allocates from there, which is charged there. */
CUresult cuMemPoolExportToShareableHandle(
	void *handle_out, CUmemoryPool pool, CUmemAllocationHandleType handleType, unsigned long long flags)
{
	(void)pool, (void)handleType, (void)flags;
	ENTER();
	*(int *)handle_out = 1;
	return CUDA_SUCCESS;
}

CUresult cuMemPoolImportFromShareableHandle(
	CUmemoryPool *pool_out, void *handle, CUmemAllocationHandleType handleType, unsigned long long flags)
{
	(void)handle, (void)handleType, (void)flags;
	ENTER();
	pthread_mutex_lock(&fake_memory_lock);
	*pool_out = pool_new(0, (CUmemLocation){.type = CU_MEM_LOCATION_TYPE_INVISIBLE});
	(*pool_out)->imported = true;
	pthread_mutex_unlock(&fake_memory_lock);
	return CUDA_SUCCESS;
}

/* What graphs keep. */

static uint64_t graphs_used[FAKE_DEVICES];
static unsigned trims;

unsigned fake_graph_trims(void)
{
	return trims;
}

/* Memory for a graph, beside what other graphs have in use; `use` it or only have it ready. What is ready serves any
 * graph. */
CUresult fake_graph_memory(int device, uint64_t bytes, bool use)
{
	CUresult result = CUDA_SUCCESS;
	uint64_t wanted;

	bytes = fake_round_up(bytes, FAKE_PIECE);
	pthread_mutex_lock(&fake_memory_lock);
	wanted = graphs_used[device] + bytes;
	if (wanted > graphs_reserved[device]) {
		if (fake_take(device, wanted - graphs_reserved[device]))
			graphs_reserved[device] = wanted;
		else
			result = CUDA_ERROR_OUT_OF_MEMORY;
	}
	if (result == CUDA_SUCCESS && use)
		graphs_used[device] += bytes;
	pthread_mutex_unlock(&fake_memory_lock);
	return result;
}

void fake_graph_unused(int device, uint64_t bytes)
{
	pthread_mutex_lock(&fake_memory_lock);
	graphs_used[device] -= fake_round_up(bytes, FAKE_PIECE);
	pthread_mutex_unlock(&fake_memory_lock);
}

CUresult cuDeviceGetGraphMemAttribute(CUdevice device, CUgraphMem_attribute attr, void *value)
{
	ENTER();
	NOT_IN_A_CAPTURE();
	*(cuuint64_t *)value = attr == CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT ? graphs_reserved[fake_card(device)]
			       : attr == CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT   ? graphs_used[fake_card(device)]
									      : 0;
	return CUDA_SUCCESS;
}

CUresult cuDeviceGraphMemTrim(CUdevice device)
{
	const int card = fake_card(device);

	ENTER();
	NOT_IN_A_CAPTURE();
	pthread_mutex_lock(&fake_memory_lock);
	fake_give(card, graphs_reserved[card]);
	graphs_reserved[card] = graphs_used[card] = 0; /* the real one keeps what is in use */
	trims++;
	pthread_mutex_unlock(&fake_memory_lock);
	return CUDA_SUCCESS;
}
