/* lookup.c: functions by name and version, as cuGetProcAddress finds them. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>

#include "driver.h"

#define ANY        CU_GET_PROC_ADDRESS_DEFAULT
#define LEGACY     CU_GET_PROC_ADDRESS_LEGACY_STREAM
#define PER_THREAD CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM

static const struct entry {
	const char *symbol;
	const char *base;
	int version;
	int stream;
	void *address;
} entries[] = {
#define HOOK(symbol, base, version, stream) {#symbol, #base, version, stream, (void *)symbol},
#define CALL(symbol)
#include "hooks.def"
#include "more.def"
#undef HOOK
#undef CALL
};

/* The newest form of `name` that is not newer than `version`, of the kind of stream that `flags` ask for. */
static const struct entry *find(const char *name, int version, cuuint64_t flags, bool *too_old)
{
	const int stream = flags & PER_THREAD ? PER_THREAD : LEGACY;
	const struct entry *best = NULL;

	*too_old = false;
	for (size_t i = 0; i < sizeof(entries) / sizeof(entries[0]); i++) {
		const struct entry *entry = &entries[i];

		if (strcmp(entry->base, name) != 0 || (entry->stream != ANY && entry->stream != stream))
			continue;
		if (entry->version > version)
			*too_old = true;
		else if (best == NULL || entry->version > best->version)
			best = entry;
	}
	return best;
}

/* Some drivers hand out other addresses than they export: with FAKE_OTHER_ADDRESSES this one does, for these. */
static CUresult other_alloc(CUdeviceptr *dptr, size_t bytesize)
{
	return cuMemAlloc_v2(dptr, bytesize);
}

static CUresult other_alloc_async(CUdeviceptr *dptr, size_t bytesize, CUstream stream)
{
	return cuMemAllocAsync(dptr, bytesize, stream);
}

static CUresult other_alloc_async_ptsz(CUdeviceptr *dptr, size_t bytesize, CUstream stream)
{
	return cuMemAllocAsync_ptsz(dptr, bytesize, stream);
}

/* A form of a function that is newer than this project: with FAKE_NEWER_FORMS from version 14.0 on. */
static CUresult newer_alloc(CUdeviceptr *dptr, size_t bytesize)
{
	return cuMemAlloc_v2(dptr, bytesize);
}

static void *handed_out(const struct entry *entry, int version)
{
	if (getenv("FAKE_NEWER_FORMS") != NULL && version >= 14000 && strcmp(entry->symbol, "cuMemAlloc_v2") == 0)
		return (void *)newer_alloc;
	if (getenv("FAKE_OTHER_ADDRESSES") == NULL)
		return entry->address;
	if (strcmp(entry->symbol, "cuMemAlloc_v2") == 0)
		return (void *)other_alloc;
	if (strcmp(entry->symbol, "cuMemAllocAsync") == 0)
		return (void *)other_alloc_async;
	return strcmp(entry->symbol, "cuMemAllocAsync_ptsz") == 0 ? (void *)other_alloc_async_ptsz : entry->address;
}

/* A program that wants every function of a driver before it does anything, as NVIDIA's runtime does, is not served by
 * those above. With FAKE_GPU_COMPLETE the others are there too, and answer that they are not supported. */
static CUresult not_supported(void)
{
	return CUDA_ERROR_NOT_SUPPORTED;
}

static bool is_complete(const char *name)
{
	return getenv("FAKE_GPU_COMPLETE") != NULL && name[0] == 'c' && name[1] == 'u';
}

static struct fake_lookup lookups[FAKE_LOOKUPS];
static _Atomic unsigned lookup_count;

static void note(const char *name, int version, cuuint64_t flags)
{
	const unsigned place = atomic_fetch_add(&lookup_count, 1);

	if (place >= FAKE_LOOKUPS || strlen(name) >= sizeof(lookups[0].name))
		return;
	strcpy(lookups[place].name, name);
	lookups[place].version = version;
	lookups[place].flags = flags;
}

unsigned fakeLookups(const struct fake_lookup **first)
{
	const unsigned count = atomic_load(&lookup_count);

	*first = lookups;
	return count < FAKE_LOOKUPS ? count : FAKE_LOOKUPS;
}

const char *fakeSymbol(const char *name, int version, cuuint64_t flags)
{
	bool too_old;
	const struct entry *entry = find(name, version, flags, &too_old);

	return entry != NULL ? entry->symbol : NULL;
}

CUresult cuGetProcAddress_v2(
	const char *symbol, void **pfn, int cudaVersion, cuuint64_t flags, CUdriverProcAddressQueryResult *symbolStatus)
{
	const struct entry *entry;
	bool too_old;

	if (symbol == NULL || pfn == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	note(symbol, cudaVersion, flags);
	entry = find(symbol, cudaVersion, flags, &too_old);
	if (entry == NULL && !too_old && is_complete(symbol)) {
		*pfn = (void *)not_supported;
		if (symbolStatus != NULL)
			*symbolStatus = CU_GET_PROC_ADDRESS_SUCCESS;
		return CUDA_SUCCESS;
	}
	*pfn = entry != NULL ? handed_out(entry, cudaVersion) : NULL;
	if (symbolStatus != NULL)
		*symbolStatus = entry != NULL ? CU_GET_PROC_ADDRESS_SUCCESS
				: too_old     ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT
					      : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
	return entry != NULL ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

CUresult cuGetProcAddress(const char *symbol, void **pfn, int cudaVersion, cuuint64_t flags)
{
	return cuGetProcAddress_v2(symbol, pfn, cudaVersion, flags, NULL);
}
