/* pool.c: pools, found when they are first used; and the allocations and frees in the order of a stream. */
#include "charge.h"
#include "log.h"
#include "pool.h"
#include "quota.h"

#define POOL_PIECE (UINT64_C(2) << 20) /* pools grow by whole pieces of this */

enum { SAMPLE_TRIES = 3 };

static uint64_t pool_attribute(struct pool *pool, CUmemPool_attribute attribute)
{
	CUmemoryPool handle = (CUmemoryPool)(uintptr_t)atomic_load(&pool->handle);
	cuuint64_t value = 0;

	if (driver.cuMemPoolGetAttribute == NULL ||
		driver.cuMemPoolGetAttribute(handle, attribute, &value) != CUDA_SUCCESS)
		return 0;
	return value;
}

/* Set the pool's charge to what it holds; `reserved` was taken for it beforehand and is given back. */
static void pool_settle(struct shim *shim, struct pool *pool, uint64_t reserved)
{
	for (int i = 0; i < SAMPLE_TRIES; i++) {
		const uint64_t version = atomic_load(&pool->version);
		const uint64_t held =
			pool->destroyed ? pool->live_bytes : pool_attribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT);
		uint64_t charged;

		spin_take(&pool->lock);
		if (pool->version != version && i + 1 < SAMPLE_TRIES) { /* another thread has a newer sample */
			spin_give(&pool->lock);
			continue;
		}
		charged = pool->charged_bytes;
		pool->charged_bytes = held;
		pool->version++;
		spin_give(&pool->lock);
		charged = quota_add(charged, reserved);
		if (held > charged)
			charge_force(shim, pool->row, held - charged);
		else if (held < charged)
			charge_give(shim, pool->row, charged - held);
		return;
	}
}

void pool_resample(struct shim *shim)
{
	const uint32_t used = atomic_load(&shim->pools_used);

	for (uint32_t i = 0; i < used && i < POOLS; i++)
		if (atomic_load(&shim->pools[i].handle) != 0)
			pool_settle(shim, &shim->pools[i], 0);
}

/* Not while somebody is promised a part of it, who would then make the pool grow again. */
static bool trim_begin(struct pool *pool, int row)
{
	bool begun;

	spin_take(&pool->lock);
	begun = atomic_load(&pool->handle) != 0 && !pool->destroyed && pool->row == row && !pool->trimming &&
		pool->promised_bytes == 0;
	pool->trimming |= begun;
	spin_give(&pool->lock);
	return begun;
}

static void trim_end(struct pool *pool)
{
	spin_take(&pool->lock);
	pool->trimming = false;
	pool->version++;
	spin_give(&pool->lock);
}

void pool_trim(struct shim *shim, int row)
{
	const uint32_t used = atomic_load(&shim->pools_used);

	for (uint32_t i = 0; driver.cuMemPoolTrimTo != NULL && i < used && i < POOLS; i++) {
		struct pool *pool = &shim->pools[i];

		if (!trim_begin(pool, row))
			continue;
		(void)driver.cuMemPoolTrimTo((CUmemoryPool)(uintptr_t)atomic_load(&pool->handle), 0);
		trim_end(pool);
	}
	pool_resample(shim);
}

void pool_freed(struct shim *shim, uint32_t number, uint64_t bytes)
{
	struct pool *pool = &shim->pools[number];
	bool over;

	spin_take(&pool->lock);
	pool->live_bytes -= bytes < pool->live_bytes ? bytes : pool->live_bytes;
	over = pool->destroyed && pool->live_bytes == 0;
	spin_give(&pool->lock);
	pool_settle(shim, pool, 0);
	if (over) {
		pool->destroyed = false;
		atomic_store(&pool->handle, 0);
	}
}

static struct pool *pool_find(struct shim *shim, CUmemoryPool handle)
{
	const uint64_t wanted = (uint64_t)(uintptr_t)handle;
	const uint32_t used = atomic_load(&shim->pools_used);

	for (uint32_t i = 0; i < used && i < POOLS; i++)
		if (atomic_load(&shim->pools[i].handle) == wanted && !shim->pools[i].destroyed)
			return &shim->pools[i];
	return NULL;
}

static void pools_raise(struct shim *shim, uint32_t count)
{
	uint32_t used = atomic_load(&shim->pools_used);

	while (used < count && !atomic_compare_exchange_weak(&shim->pools_used, &used, count))
		;
}

static struct pool *pool_add(struct shim *shim, CUmemoryPool handle, int row)
{
	for (uint32_t i = 0; i < POOLS; i++) {
		struct pool *pool = &shim->pools[i];
		bool free;

		spin_take(&pool->lock);
		free = atomic_load(&pool->handle) == 0;
		if (free) {
			pool->row = row; /* before its handle lets anybody look at it */
			atomic_store(&pool->handle, (uint64_t)(uintptr_t)handle);
		}
		spin_give(&pool->lock);
		if (free) {
			pools_raise(shim, i + 1);
			return pool;
		}
	}
	return NULL;
}

/* The pool that cuMemAllocAsync takes from now: that of the stream's device, whichever is current. */
static CUmemoryPool current_pool(CUstream stream)
{
	struct shim *shim = charge_nested ? NULL : shim_get();
	CUmemoryPool pool = NULL;
	CUdevice device;

	if (shim == NULL || driver.cuDeviceGetMemPool == NULL || !shim_device_of_stream(shim, stream, &device) ||
		driver.cuDeviceGetMemPool(&pool, device) != CUDA_SUCCESS)
		return NULL;
	return pool;
}

struct pool_charge {
	struct charge charge;
	struct pool
		*pool; /* NULL: one that we do not follow, since there are so many; the allocation is charged alone */
	uint64_t promised_bytes;
};

/* Whether the pool has `bytes` free, which are then this allocation's: it need not grow. */
static bool pool_promises(struct pool *pool, uint64_t bytes)
{
	for (int i = 0; i < SAMPLE_TRIES; i++) {
		const uint64_t version = atomic_load(&pool->version);
		const uint64_t held = pool_attribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT);
		const uint64_t used = pool_attribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT);
		bool current, promised;

		spin_take(&pool->lock);
		current = pool->version == version; /* else others have allocated since it was looked at */
		promised =
			current && !pool->trimming && quota_admits(quota_add(used, pool->promised_bytes), bytes, held);
		pool->promised_bytes += promised ? bytes : 0;
		spin_give(&pool->lock);
		if (current)
			return promised;
	}
	return false;
}

/* The allocation is over, one way or the other. */
static void pool_promise_ends(struct pool_charge *taking)
{
	struct pool *pool = taking->pool;

	spin_take(&pool->lock);
	pool->promised_bytes -= taking->promised_bytes;
	pool->version++; /* what others saw of the pool before is no longer so */
	spin_give(&pool->lock);
}

static bool pool_begin(
	struct pool_charge *taking, CUmemoryPool handle, CUstream stream, bool per_thread, uint64_t bytes)
{
	struct shim *shim = charge_nested ? NULL : shim_get();
	uint64_t ask = quota_round_up(bytes, POOL_PIECE);
	int row = ROW_NONE;

	*taking = (struct pool_charge){0};
	if (shim != NULL && shim_is_capturing(shim, stream, per_thread))
		shim = NULL; /* it becomes a node, which is charged with its graph */
	if (shim != NULL) {
		taking->pool = handle != NULL ? pool_find(shim, handle) : NULL;
		row = taking->pool != NULL ? taking->pool->row : shim_row_of_stream(shim, stream);
		if (taking->pool == NULL && handle != NULL && row >= 0)
			taking->pool = pool_add(shim, handle, row);
	}
	if (taking->pool != NULL && pool_promises(taking->pool, bytes)) {
		taking->promised_bytes = bytes;
		ask = 0;
	}
	if (charge_begin_on(&taking->charge, shim, row, ask))
		return true;
	if (taking->pool != NULL)
		pool_promise_ends(taking);
	return false;
}

static CUresult pool_end(struct pool_charge *taking, CUresult result, const CUdeviceptr *dptr, uint64_t bytes)
{
	struct charge *charge = &taking->charge;
	struct pool *pool = taking->pool;
	struct shim *shim = charge->shim;
	struct table_entry entry = {.bytes = bytes, .device = (uint16_t)charge->row, .kind = KIND_POOL};

	if (shim == NULL)
		return result;
	if (pool == NULL)
		return charge_settle(
			charge, &shim->pointers, result, dptr != NULL ? *dptr : 0, charge->bytes, KIND_DEVICE);
	charge_nested--;
	if (result == CUDA_SUCCESS && dptr != NULL) {
		entry.key = *dptr;
		entry.tag = (uint32_t)(pool - shim->pools);
		spin_take(&pool->lock);
		pool->live_bytes += bytes;
		spin_give(&pool->lock);
		if (!table_put(&shim->pointers, &entry))
			log_line(LOG_ERROR, "no memory to remember an allocation of a pool");
	}
	pool_promise_ends(taking);
	pool_settle(shim, pool, charge->bytes);
	return result;
}

#define ALLOC_ASYNC(symbol, per_thread)                                                                                \
	CUresult symbol(CUdeviceptr *dptr, size_t bytesize, CUstream hStream)                                          \
	{                                                                                                              \
		struct pool_charge taking;                                                                             \
                                                                                                                       \
		REAL(symbol);                                                                                          \
		if (!pool_begin(&taking, current_pool(hStream), hStream, per_thread, bytesize))                        \
			return CUDA_ERROR_OUT_OF_MEMORY;                                                               \
		return pool_end(&taking, driver.symbol(dptr, bytesize, hStream), dptr, bytesize);                      \
	}

#define ALLOC_FROM_POOL(symbol, per_thread)                                                                            \
	CUresult symbol(CUdeviceptr *dptr, size_t bytesize, CUmemoryPool pool, CUstream hStream)                       \
	{                                                                                                              \
		struct pool_charge taking;                                                                             \
                                                                                                                       \
		REAL(symbol);                                                                                          \
		if (!pool_begin(&taking, pool, hStream, per_thread, bytesize))                                         \
			return CUDA_ERROR_OUT_OF_MEMORY;                                                               \
		return pool_end(&taking, driver.symbol(dptr, bytesize, pool, hStream), dptr, bytesize);                \
	}

ALLOC_ASYNC(cuMemAllocAsync, false)
ALLOC_ASYNC(cuMemAllocAsync_ptsz, true)
ALLOC_FROM_POOL(cuMemAllocFromPoolAsync, false)
ALLOC_FROM_POOL(cuMemAllocFromPoolAsync_ptsz, true)

CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *poolProps)
{
	struct shim *shim = charge_nested ? NULL : shim_get();
	CUresult result;
	int row;

	REAL(cuMemPoolCreate);
	result = driver.cuMemPoolCreate(pool, poolProps);
	if (result != CUDA_SUCCESS || shim == NULL || pool == NULL || poolProps == NULL ||
		poolProps->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
		return result;
	row = shim_row_of_device(shim, poolProps->location.id);
	if (row >= 0)
		(void)pool_add(shim, *pool, row);
	return result;
}

CUresult cuMemPoolDestroy(CUmemoryPool handle)
{
	struct shim *shim = charge_nested ? NULL : shim_get();
	struct pool *pool = shim != NULL ? pool_find(shim, handle) : NULL;
	CUresult result;

	REAL(cuMemPoolDestroy);
	if (pool != NULL) /* before the driver may give its handle to another */
		pool->destroyed = true;
	result = driver.cuMemPoolDestroy(handle);
	if (pool == NULL)
		return result;
	if (result != CUDA_SUCCESS) {
		pool->destroyed = false;
		return result;
	}
	pool_freed(shim, (uint32_t)(pool - shim->pools), 0);
	return result;
}

CUresult cuMemPoolTrimTo(CUmemoryPool handle, size_t minBytesToKeep)
{
	struct shim *shim = charge_nested ? NULL : shim_get();
	struct pool *pool = shim != NULL ? pool_find(shim, handle) : NULL;
	CUresult result;

	REAL(cuMemPoolTrimTo);
	result = driver.cuMemPoolTrimTo(handle, minBytesToKeep);
	if (pool != NULL)
		pool_settle(shim, pool, 0);
	return result;
}
