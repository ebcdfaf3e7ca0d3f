/* pool.c: pools, found when they are first used; and the allocations and frees in the order of a stream. */
#define _GNU_SOURCE
#include <sys/mman.h>

#include "charge.h"
#include "log.h"
#include "pool.h"
#include "quota.h"

#define POOL_PIECE (UINT64_C(2) << 20) /* pools grow by whole pieces of this */

enum { SAMPLE_TRIES = 3 };

/* The calls that ask and trim are such as spoil a capture. */
static bool pool_ask(const struct shim *shim, CUmemoryPool handle, CUmemPool_attribute attribute, void *value)
{
	struct relaxed relaxed;
	bool told;

	if (driver.cuMemPoolGetAttribute == NULL || !shim_may_ask(shim))
		return false;
	relaxed = shim_relax();
	told = driver.cuMemPoolGetAttribute(handle, attribute, value) == CUDA_SUCCESS;
	shim_restore(relaxed);
	return told;
}

static bool pool_attribute(
	const struct shim *shim, const struct pool *pool, CUmemPool_attribute attribute, cuuint64_t *value)
{
	const uint64_t handle = atomic_load(&pool->handle); /* 0: another thread has just forgotten it */

	return handle != 0 && pool_ask(shim, (CUmemoryPool)(uintptr_t)handle, attribute, value);
}

/* What the pool holds. Where the driver does not tell it is at least what it is charged and what was just reserved. */
static uint64_t pool_holds(struct shim *shim, struct pool *pool, uint64_t reserved)
{
	uint64_t live, charged;
	cuuint64_t held;

	spin_take(&pool->lock);
	live = pool->live_bytes;
	charged = pool->charged_bytes;
	spin_give(&pool->lock);
	if (pool->destroyed)
		return live;
	return pool_attribute(shim, pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &held) ? held
										       : quota_add(charged, reserved);
}

/* Set the pool's charge to what it holds; `reserved` was taken for it beforehand and is given back. */
static void pool_settle(struct shim *shim, struct pool *pool, uint64_t reserved)
{
	for (int i = 0; pool->row >= 0 && i < SAMPLE_TRIES; i++) {
		const uint64_t version = atomic_load(&pool->version);
		const uint64_t held = pool_holds(shim, pool, reserved);
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

/* The pool in a place, NULL where its piece was never needed. */
static struct pool *pool_at(struct shim *shim, uint32_t number)
{
	struct pool *chunk = atomic_load_explicit(&shim->pool_chunks[number / POOL_CHUNK], memory_order_acquire);

	return chunk != NULL ? &chunk[number % POOL_CHUNK] : NULL;
}

/* The next place from `number` on that holds a pool of `row` (of any, where that is ROW_NONE); NULL after the last. */
static struct pool *pool_next(struct shim *shim, uint32_t number, int row)
{
	const uint32_t used = atomic_load(&shim->pools_used);

	for (; number < used; number++) {
		struct pool *pool = pool_at(shim, number);

		if (pool != NULL && atomic_load(&pool->handle) != 0 && pool->row >= 0 &&
			(row == ROW_NONE || pool->row == row))
			return pool;
	}
	return NULL;
}

void pool_resample(struct shim *shim)
{
	for (struct pool *pool = pool_next(shim, 0, ROW_NONE); pool != NULL;
		pool = pool_next(shim, pool->number + 1, ROW_NONE))
		pool_settle(shim, pool, 0);
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
	struct pool *pool = driver.cuMemPoolTrimTo != NULL && shim_may_ask(shim) ? pool_next(shim, 0, row) : NULL;

	for (; pool != NULL; pool = pool_next(shim, pool->number + 1, row)) {
		struct relaxed relaxed;

		if (!trim_begin(pool, row))
			continue;
		relaxed = shim_relax();
		(void)driver.cuMemPoolTrimTo((CUmemoryPool)(uintptr_t)atomic_load(&pool->handle), 0);
		shim_restore(relaxed);
		trim_end(pool);
	}
	pool_resample(shim);
}

static void pool_forget(struct shim *shim, struct pool *pool)
{
	struct table_entry entry;

	/* Its handle may be another pool's by now. */
	if (table_get(&shim->pool_numbers, atomic_load(&pool->handle), &entry) && entry.tag == pool->number)
		(void)table_take(&shim->pool_numbers, atomic_load(&pool->handle), &entry);
	pool->destroyed = false;
	atomic_store(&pool->handle, 0);
}

void pool_freed(struct shim *shim, uint32_t number, uint64_t bytes)
{
	struct pool *pool = pool_at(shim, number);
	bool over;

	spin_take(&pool->lock);
	pool->live_bytes -= bytes < pool->live_bytes ? bytes : pool->live_bytes;
	over = pool->destroyed && pool->live_bytes == 0;
	spin_give(&pool->lock);
	pool_settle(shim, pool, 0);
	if (over)
		pool_forget(shim, pool);
}

static struct pool *pool_find(struct shim *shim, CUmemoryPool handle)
{
	struct table_entry entry;
	struct pool *pool;

	if (!table_get(&shim->pool_numbers, (uint64_t)(uintptr_t)handle, &entry))
		return NULL;
	pool = pool_at(shim, entry.tag);
	return pool->destroyed ? NULL : pool;
}

static void pools_raise(struct shim *shim, uint32_t count)
{
	uint32_t used = atomic_load(&shim->pools_used);

	while (used < count && !atomic_compare_exchange_weak(&shim->pools_used, &used, count))
		;
}

static struct pool *pool_place(struct shim *shim, uint32_t number)
{
	struct pool *_Atomic *chunk = &shim->pool_chunks[number / POOL_CHUNK];
	struct pool *none = NULL, *made;

	if (atomic_load(chunk) == NULL) {
		made = mmap(
			NULL, POOL_CHUNK * sizeof(*made), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (made == MAP_FAILED)
			return NULL;
		for (uint32_t i = 0; i < POOL_CHUNK; i++)
			made[i].number = number - number % POOL_CHUNK + i;
		if (!atomic_compare_exchange_strong(chunk, &none, made))
			munmap(made, POOL_CHUNK * sizeof(*made));
	}
	return pool_at(shim, number);
}

/* NULL where there is no memory for it, or 65,536 pools are in use. */
static struct pool *pool_add(struct shim *shim, CUmemoryPool handle, int row)
{
	struct table_entry entry = {.key = (uint64_t)(uintptr_t)handle};

	for (; entry.tag < POOL_CHUNK * POOL_CHUNKS; entry.tag++) {
		struct pool *pool = pool_place(shim, entry.tag);
		bool free;

		if (pool == NULL)
			return NULL;
		if (atomic_load_explicit(&pool->handle, memory_order_relaxed) != 0)
			continue;
		spin_take(&pool->lock);
		free = atomic_load(&pool->handle) == 0;
		if (free) {
			pool->row = row; /* before its handle lets anybody look at it */
			atomic_store(&pool->handle, entry.key);
		}
		spin_give(&pool->lock);
		if (!free)
			continue;
		pools_raise(shim, entry.tag + 1);
		if (table_put(&shim->pool_numbers, &entry))
			return pool;
		atomic_store(&pool->handle, 0);
		return NULL;
	}
	return NULL;
}

/* Of which device a pool is, on a driver that does not say it (before 13.0): a device's own, or set for it. Others were
 * seen when they were made. */
static bool device_of_old_pool(struct shim *shim, CUmemoryPool handle, CUdevice *device)
{
	CUmemoryPool own;

	for (*device = 0; *device < shim->device_count; ++*device)
		if ((driver.cuDeviceGetDefaultMemPool != NULL &&
			    driver.cuDeviceGetDefaultMemPool(&own, *device) == CUDA_SUCCESS && own == handle) ||
			(driver.cuDeviceGetMemPool != NULL &&
				driver.cuDeviceGetMemPool(&own, *device) == CUDA_SUCCESS && own == handle))
			return true;
	return false;
}

/* Where a pool's memory lies: not necessarily on the device of the stream. `otherwise` is the row for a pool that has
 * no place of its own, or of which nothing can be learned. */
static int row_of_pool(struct shim *shim, CUmemoryPool handle, int otherwise)
{
	int type = CU_MEM_LOCATION_TYPE_INVALID;
	CUmemLocation location = {0};
	CUdevice device;

	if (pool_ask(shim, handle, CU_MEMPOOL_ATTR_LOCATION_TYPE, &type) &&
		pool_ask(shim, handle, CU_MEMPOOL_ATTR_LOCATION_ID, &location.id)) {
		location.type = (CUmemLocationType)type;
		return type == CU_MEM_LOCATION_TYPE_INVALID ? otherwise : shim_row_of_location(shim, &location);
	}
	return device_of_old_pool(shim, handle, &device) ? shim_row_of_device(shim, device) : otherwise;
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
	struct pool *pool; /* NULL: one that we do not follow; the allocation is charged alone */
	uint64_t promised_bytes;
};

/* Whether the pool has `bytes` free, which are then this allocation's: it need not grow. */
static bool pool_promises(struct shim *shim, struct pool *pool, uint64_t bytes)
{
	for (int i = 0; i < SAMPLE_TRIES; i++) {
		const uint64_t version = atomic_load(&pool->version);
		cuuint64_t held, used;
		bool current, promised;

		if (!pool_attribute(shim, pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &held) ||
			!pool_attribute(shim, pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used))
			return false;

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
		if (taking->pool == NULL && handle != NULL) {
			row = row_of_pool(shim, handle, row);
			if (row != ROW_DENIED)
				taking->pool = pool_add(shim, handle, row);
		}
	}
	if (taking->pool != NULL && row >= 0 && pool_promises(shim, taking->pool, bytes)) {
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
	charge_nested = 0;
	if (result == CUDA_SUCCESS && dptr != NULL) {
		entry.key = *dptr;
		entry.tag = pool->number;
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
	struct shim *shim = SHIM_HERE();
	CUresult result;
	int row;

	REAL(cuMemPoolCreate);
	result = driver.cuMemPoolCreate(pool, poolProps);
	if (result != CUDA_SUCCESS || shim == NULL || pool == NULL || poolProps == NULL)
		return result;
	row = shim_row_of_location(shim, &poolProps->location);
	if (row == ROW_DENIED || poolProps->location.type == CU_MEM_LOCATION_TYPE_INVALID)
		return result; /* what is allocated from it is refused, or goes to the device of the stream */
	if (pool_add(shim, *pool, row) != NULL)
		return result;
	(void)driver.cuMemPoolDestroy(*pool); /* one that cannot be followed must not keep memory */
	return CUDA_ERROR_OUT_OF_MEMORY;
}

/* Another process's pool: what comes from it is charged there. */
CUresult cuMemPoolImportFromShareableHandle(
	CUmemoryPool *pool_out, void *handle, CUmemAllocationHandleType handleType, unsigned long long flags)
{
	struct shim *shim = SHIM_HERE();
	CUresult result;

	REAL(cuMemPoolImportFromShareableHandle);
	result = driver.cuMemPoolImportFromShareableHandle(pool_out, handle, handleType, flags);
	if (result == CUDA_SUCCESS && shim != NULL && pool_out != NULL)
		(void)pool_add(shim, *pool_out, ROW_NONE);
	return result;
}

CUresult cuMemPoolDestroy(CUmemoryPool handle)
{
	struct shim *shim = SHIM_HERE();
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
	pool_freed(shim, pool->number, 0);
	return result;
}

CUresult cuMemPoolTrimTo(CUmemoryPool handle, size_t minBytesToKeep)
{
	struct shim *shim = SHIM_HERE();
	struct pool *pool = shim != NULL ? pool_find(shim, handle) : NULL;
	CUresult result;

	REAL(cuMemPoolTrimTo);
	result = driver.cuMemPoolTrimTo(handle, minBytesToKeep);
	if (pool != NULL)
		pool_settle(shim, pool, 0);
	return result;
}
