/* pool.c: memory in the order of a stream, and what the device keeps for graphs. */
#define _GNU_SOURCE
#include <pthread.h>

#include "driver.h"
#include "memory.h"

enum { POOL_COUNT = 128 };

struct CUmemPoolHandle_st {
	bool in_use;
	bool destroyed;
	int device;
	uint64_t reserved, used, threshold;
};

static struct CUmemPoolHandle_st pools[POOL_COUNT];
static CUmemoryPool current_pools[FAKE_DEVICES];
static uint64_t graphs_reserved[FAKE_DEVICES];

void fake_pool_return(uint32_t number, uint64_t bytes)
{
	struct CUmemPoolHandle_st *pool = &pools[number];

	pthread_mutex_lock(&fake_memory_lock);
	pool->used -= bytes;
	if (pool->destroyed) { /* a destroyed pool keeps only what is still in use */
		fake_give(pool->device, pool->reserved - fake_round_up(pool->used, FAKE_PIECE));
		pool->reserved = fake_round_up(pool->used, FAKE_PIECE);
		pool->in_use = pool->used > 0;
	}
	pthread_mutex_unlock(&fake_memory_lock);
}

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

	pthread_mutex_lock(&fake_memory_lock);
	if (current_pools[device] == NULL)
		current_pools[device] = pool_new(device);
	pool = current_pools[device];
	pthread_mutex_unlock(&fake_memory_lock);
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
		*dptr = fake_graph_add_alloc(queue->capture, bytes, fake_stream_context(queue)->ordinal);
		entry.key = *dptr;
		entry.kind = FROM_GRAPH;
		(void)table_put(&fake_pointers, &entry);
		return CUDA_SUCCESS;
	}
	pthread_mutex_lock(&fake_memory_lock);
	if (pool->used + bytes > pool->reserved)
		growth = fake_round_up(pool->used + bytes - pool->reserved, FAKE_PIECE);
	if (!fake_take(pool->device, growth)) {
		pthread_mutex_unlock(&fake_memory_lock);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	pool->reserved += growth;
	pool->used += bytes;
	pthread_mutex_unlock(&fake_memory_lock);
	entry.key = *dptr = fake_address(bytes, false);
	entry.device = (uint16_t)pool->device;
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
	return pool_allocate(dptr, bytesize, pool_current(context->device), hStream, false);
}

CUresult cuMemAllocAsync_ptsz(CUdeviceptr *dptr, size_t bytesize, CUstream hStream)
{
	const struct CUctx_st *context = fake_stream_context(fake_stream(hStream, true));

	ENTER();
	if (context == NULL)
		return CUDA_ERROR_INVALID_CONTEXT;
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
	pthread_mutex_lock(&fake_memory_lock);
	*pool = pool_new(card);
	pthread_mutex_unlock(&fake_memory_lock);
	return *pool != NULL ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static void pool_trim(struct CUmemPoolHandle_st *pool, uint64_t keep)
{
	const uint64_t needed = fake_round_up(pool->used, FAKE_PIECE);

	keep = keep < needed ? needed : keep;
	if (keep >= pool->reserved)
		return;
	fake_give(pool->device, pool->reserved - keep);
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
	pthread_mutex_lock(&fake_memory_lock);
	pool_trim(pool, minBytesToKeep);
	pthread_mutex_unlock(&fake_memory_lock);
	return CUDA_SUCCESS;
}

CUresult cuMemPoolDestroy(CUmemoryPool pool)
{
	ENTER();
	pthread_mutex_lock(&fake_memory_lock);
	pool->destroyed = true;
	pool_trim(pool, 0);
	pool->in_use = pool->used > 0;
	pthread_mutex_unlock(&fake_memory_lock);
	return CUDA_SUCCESS;
}

CUresult cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute attr, void *value)
{
	ENTER();
	pthread_mutex_lock(&fake_memory_lock);
	*(cuuint64_t *)value = attr == CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT ? pool->reserved
			       : attr == CU_MEMPOOL_ATTR_USED_MEM_CURRENT   ? pool->used
									    : pool->threshold;
	pthread_mutex_unlock(&fake_memory_lock);
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

/* What graphs keep. */

CUresult fake_graph_memory(int device, uint64_t bytes)
{
	CUresult result = CUDA_SUCCESS;

	bytes = fake_round_up(bytes, FAKE_PIECE);
	pthread_mutex_lock(&fake_memory_lock);
	if (bytes > graphs_reserved[device]) {
		if (fake_take(device, bytes - graphs_reserved[device]))
			graphs_reserved[device] = bytes;
		else
			result = CUDA_ERROR_OUT_OF_MEMORY;
	}
	pthread_mutex_unlock(&fake_memory_lock);
	return result;
}

CUresult cuDeviceGetGraphMemAttribute(CUdevice device, CUgraphMem_attribute attr, void *value)
{
	ENTER();
	*(cuuint64_t *)value = attr == CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT ? graphs_reserved[fake_card(device)] : 0;
	return CUDA_SUCCESS;
}

CUresult cuDeviceGraphMemTrim(CUdevice device)
{
	const int card = fake_card(device);

	ENTER();
	pthread_mutex_lock(&fake_memory_lock);
	fake_give(card, graphs_reserved[card]);
	graphs_reserved[card] = 0;
	pthread_mutex_unlock(&fake_memory_lock);
	return CUDA_SUCCESS;
}
