/* memory.c: memory at an address. What the card has in use is exact to the byte that each kind takes of it. */
#define _GNU_SOURCE

#include "driver.h"
#include "memory.h"

enum { PITCH = 512 };

struct table fake_pointers;
struct table fake_arrays;
pthread_mutex_t fake_memory_lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic uint64_t next_address = UINT64_C(0x700000000000), next_low = 0x10000000;

enum { GIVEN_BACK = 64 };

static pthread_mutex_t address_lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
	uint64_t address, bytes;
} given_back[GIVEN_BACK];

CUdeviceptr fake_address(uint64_t bytes, bool low)
{
	uint64_t address = 0;

	bytes = fake_round_up(bytes == 0 ? 1 : bytes, PITCH);
	pthread_mutex_lock(&address_lock);
	for (int i = 0; i < GIVEN_BACK && address == 0; i++) {
		if (given_back[i].bytes != bytes || (given_back[i].address <= UINT32_MAX) != low)
			continue;
		address = given_back[i].address;
		given_back[i].bytes = 0;
	}
	pthread_mutex_unlock(&address_lock);
	return address != 0 ? address : atomic_fetch_add(low ? &next_low : &next_address, bytes);
}

void fake_address_free(CUdeviceptr address, uint64_t bytes)
{
	static int next;

	pthread_mutex_lock(&address_lock);
	given_back[next].address = address;
	given_back[next].bytes = fake_round_up(bytes == 0 ? 1 : bytes, PITCH);
	next = (next + 1) % GIVEN_BACK;
	pthread_mutex_unlock(&address_lock);
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
	(void)table_put(&fake_pointers, &entry);
	return CUDA_SUCCESS;
}

CUresult cuMemAlloc_v2(CUdeviceptr *dptr, size_t bytesize)
{
	uint64_t address;
	CUresult result;

	ENTER();
	NOT_IN_A_CAPTURE();
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
	NOT_IN_A_CAPTURE();
	NEED_CONTEXT(context);
	(void)context;
	if (bytesize == 0)
		return CUDA_ERROR_INVALID_VALUE;
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
	result = allocate(fake_round_up(WidthInBytes, PITCH) * Height, false, &address);
	if (result != CUDA_SUCCESS)
		return result;
	*pPitch = fake_round_up(WidthInBytes, PITCH);
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
	result = allocate(fake_round_up(WidthInBytes, PITCH) * Height, true, &address);
	if (result != CUDA_SUCCESS)
		return result;
	*pPitch = (unsigned int)fake_round_up(WidthInBytes, PITCH);
	*dptr = (CUdeviceptr_v1)address;
	return CUDA_SUCCESS;
}

static CUresult release(CUdeviceptr pointer)
{
	struct table_entry entry;

	if (pointer == 0)
		return CUDA_SUCCESS;
	if (!table_take(&fake_pointers, pointer, &entry))
		return fake_graph_free(pointer) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
	if (entry.kind == FROM_GRAPH)
		(void)fake_graph_free(pointer);
	if (entry.kind == FROM_CARD)
		fake_give(entry.device, entry.bytes);
	else if (entry.kind == FROM_POOL)
		fake_pool_return(entry.tag, entry.bytes);
	fake_address_free(pointer, entry.bytes);
	return CUDA_SUCCESS;
}

CUresult cuMemFree_v2(CUdeviceptr dptr)
{
	ENTER();
	NOT_IN_A_CAPTURE();
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

	fake_forget_arrays(id);
	while (table_take_scope(&fake_pointers, id, &entry)) {
		fake_give(entry.device, entry.bytes);
		fake_address_free(entry.key, entry.bytes);
	}
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

/* Managed memory moves to where it is fetched, the whole allocation here; the real one moves pages. */
static CUresult prefetch(CUdeviceptr pointer, const CUmemLocation *location)
{
	struct table_entry entry;
	bool known;
	const int card = fake_location_card(location, &known);

	if (!known || !table_take(&fake_pointers, pointer, &entry))
		return CUDA_ERROR_INVALID_VALUE;
	if (card >= 0 && card != entry.device && fake_take(card, entry.bytes)) {
		fake_give(entry.device, entry.bytes);
		entry.device = (uint16_t)card;
	}
	(void)table_put(&fake_pointers, &entry);
	return CUDA_SUCCESS;
}

#define PREFETCH(symbol)                                                                                               \
	CUresult symbol(CUdeviceptr devPtr, size_t count, CUdevice dstDevice, CUstream hStream)                        \
	{                                                                                                              \
		const CUmemLocation location = {                                                                       \
			.type = dstDevice < 0 ? CU_MEM_LOCATION_TYPE_HOST : CU_MEM_LOCATION_TYPE_DEVICE,               \
			.id = dstDevice};                                                                              \
                                                                                                                       \
		(void)count, (void)hStream;                                                                            \
		ENTER();                                                                                               \
		return prefetch(devPtr, &location);                                                                    \
	}

#define PREFETCH_TO(symbol)                                                                                            \
	CUresult symbol(                                                                                               \
		CUdeviceptr devPtr, size_t count, CUmemLocation location, unsigned int flags, CUstream hStream)        \
	{                                                                                                              \
		(void)count, (void)flags, (void)hStream;                                                               \
		ENTER();                                                                                               \
		return prefetch(devPtr, &location);                                                                    \
	}

/* Allocation i goes to the last of the locations whose first index is not beyond i. */
#define PREFETCH_BATCH(symbol)                                                                                         \
	CUresult symbol(CUdeviceptr *dptrs, size_t *sizes, size_t count, CUmemLocation *prefetchLocs,                  \
		size_t *prefetchLocIdxs, size_t numPrefetchLocs, unsigned long long flags, CUstream hStream)           \
	{                                                                                                              \
		size_t place = 0;                                                                                      \
		CUresult result = CUDA_SUCCESS;                                                                        \
                                                                                                                       \
		(void)sizes, (void)flags, (void)hStream;                                                               \
		ENTER();                                                                                               \
		for (size_t i = 0; i < count && result == CUDA_SUCCESS; i++) {                                         \
			while (place + 1 < numPrefetchLocs && prefetchLocIdxs[place + 1] <= i)                         \
				place++;                                                                               \
			result = prefetch(dptrs[i], &prefetchLocs[place]);                                             \
		}                                                                                                      \
		return result;                                                                                         \
	}

PREFETCH(cuMemPrefetchAsync)
PREFETCH(cuMemPrefetchAsync_ptsz)
PREFETCH_TO(cuMemPrefetchAsync_v2)
PREFETCH_TO(cuMemPrefetchAsync_v2_ptsz)
PREFETCH_BATCH(cuMemPrefetchBatchAsync)
PREFETCH_BATCH(cuMemPrefetchBatchAsync_ptsz)
PREFETCH_BATCH(cuMemDiscardAndPrefetchBatchAsync)
PREFETCH_BATCH(cuMemDiscardAndPrefetchBatchAsync_ptsz)
