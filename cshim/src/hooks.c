/* hooks.c: the manifests as tables, the driver's own functions, and which of ours stands for which of the driver's.
 *
 * Ours stands in only where the address that the real look-up found is the one the driver gives for exactly that ABI,
 * by its export table or by cuGetProcAddress. A function whose ABI a newer driver has changed has another address, and
 * passes.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>

#include "hooks.h"
#include "shim.h"

#define ANY        CU_GET_PROC_ADDRESS_DEFAULT
#define LEGACY     CU_GET_PROC_ADDRESS_LEGACY_STREAM
#define PER_THREAD CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM

struct row {
	const char *symbol;
	const char *base; /* NULL: not looked up through cuGetProcAddress */
	int version;
	int stream;
	void *ours; /* NULL: called, not hooked */
	void **real;
};

struct driver driver;
struct nvml nvml;
_Atomic unsigned long hooks_passed;
_Atomic unsigned long hooks_unknown;
_Atomic int hooks_driver_found;

static const struct row driver_rows[] = {
#define HOOK(symbol, base, version, stream) {#symbol, #base, version, stream, (void *)symbol, (void **)&driver.symbol},
#define CALL(symbol)                        {#symbol, NULL, 0, ANY, NULL, (void **)&driver.symbol},
#include "hooks.def"
#undef HOOK
#undef CALL
};

static const struct row nvml_rows[] = {
#define HOOK(symbol) {#symbol, NULL, 0, ANY, (void *)symbol, (void **)&nvml.symbol},
#define CALL(symbol) {#symbol, NULL, 0, ANY, NULL, (void **)&nvml.symbol},
#include "nvml_hooks.def"
#undef HOOK
#undef CALL
};

enum {
	DRIVER_ROWS = sizeof(driver_rows) / sizeof(driver_rows[0]),
	NVML_ROWS = sizeof(nvml_rows) / sizeof(nvml_rows[0]),
	INDEX_SIZE = 512, /* a power of two, four times the rows: short probes */
};
_Static_assert(DRIVER_ROWS + NVML_ROWS < INDEX_SIZE / 2, "the index must stay sparse");

/* Row numbers + 1 by hash of a name: symbols of both manifests, and bases of the driver's. */
static uint8_t by_symbol[INDEX_SIZE];
static uint8_t by_base[INDEX_SIZE];
static void *by_version[DRIVER_ROWS]; /* the address that cuGetProcAddress gives for a row, where it has one */
static _Atomic int index_state, nvml_state;

static uint32_t hash_name(const char *name)
{
	uint32_t hash = 2166136261u;

	for (; *name != '\0'; name++)
		hash = (hash ^ (unsigned char)*name) * 16777619u;
	return hash ^ hash >> 16;
}

static const struct row *row_at(unsigned number)
{
	return number < DRIVER_ROWS ? &driver_rows[number] : &nvml_rows[number - DRIVER_ROWS];
}

static void index_add(uint8_t *index, const char *name, unsigned number)
{
	uint32_t at = hash_name(name);

	while (index[at % INDEX_SIZE] != 0)
		at++;
	index[at % INDEX_SIZE] = (uint8_t)(number + 1);
}

/* Any number of threads may build it at once only one after another: the first takes it, the others wait microseconds.
 */
static void index_build(void)
{
	int expected = 0;

	if (atomic_load_explicit(&index_state, memory_order_acquire) == 2)
		return;
	if (!atomic_compare_exchange_strong(&index_state, &expected, 1)) {
		while (atomic_load_explicit(&index_state, memory_order_acquire) != 2)
			;
		return;
	}
	for (unsigned i = 0; i < DRIVER_ROWS + NVML_ROWS; i++) {
		const struct row *row = row_at(i);

		if (row->ours == NULL)
			continue;
		index_add(by_symbol, row->symbol, i);
		if (row->base != NULL &&
			(i == 0 || row_at(i - 1)->base == NULL || strcmp(row_at(i - 1)->base, row->base) != 0))
			index_add(by_base, row->base, i);
	}
	atomic_store_explicit(&index_state, 2, memory_order_release);
}

static const struct row *find(const uint8_t *index, const char *name, bool base)
{
	uint32_t at = hash_name(name);

	for (; index[at % INDEX_SIZE] != 0; at++) {
		const struct row *row = row_at(index[at % INDEX_SIZE] - 1u);

		if (strcmp(base ? row->base : row->symbol, name) == 0)
			return row;
	}
	return NULL;
}

static void *open_loaded(const char *library, bool may_open)
{
	return dlopen(library, RTLD_LAZY | (may_open ? 0 : RTLD_NOLOAD));
}

static void fill(void *library, const struct row *rows, unsigned count)
{
	for (unsigned i = 0; i < count; i++) {
		void *address = real_dlsym(library, rows[i].symbol);

		if (address != rows[i].ours || address == NULL)
			__atomic_store_n(rows[i].real, address, __ATOMIC_RELEASE);
	}
}

/* Ask the driver itself for each row's ABI: some drivers hand out other addresses than they export. */
static void fill_by_version(void)
{
	for (unsigned i = 0; i < DRIVER_ROWS; i++) {
		const struct row *row = &driver_rows[i];
		CUdriverProcAddressQueryResult status;
		void *address = NULL;
		CUresult result = CUDA_ERROR_NOT_FOUND;

		if (row->base == NULL)
			continue;
		if (driver.cuGetProcAddress_v2 != NULL)
			result = driver.cuGetProcAddress_v2(
				row->base, &address, row->version, (cuuint64_t)row->stream, &status);
		else if (driver.cuGetProcAddress != NULL)
			result = driver.cuGetProcAddress(row->base, &address, row->version, (cuuint64_t)row->stream);
		if (result != CUDA_SUCCESS || address == NULL)
			continue;
		__atomic_store_n(&by_version[i], address, __ATOMIC_RELEASE);
		if (*row->real == NULL)
			__atomic_store_n(row->real, address, __ATOMIC_RELEASE);
	}
}

bool hooks_find_driver(void)
{
	void *library = open_loaded("libcuda.so.1", false);

	if (library == NULL)
		return false;
	index_build();
	fill(library, driver_rows, DRIVER_ROWS); /* twice at once writes the same words twice */
	fill_by_version();
	atomic_store_explicit(&hooks_driver_found, 1, memory_order_release);
	return true;
}

bool hooks_load_nvml(bool may_open)
{
	void *library;

	if (atomic_load_explicit(&nvml_state, memory_order_acquire) == 1)
		return true;
	library = open_loaded("libnvidia-ml.so.1", may_open);
	if (library == NULL)
		return false;
	index_build();
	fill(library, nvml_rows, NVML_ROWS);
	atomic_store_explicit(&nvml_state, 1, memory_order_release);
	return true;
}

/* Nothing of ours: let it through, and count it. */
static void *pass(void *address)
{
	atomic_fetch_add_explicit(&hooks_passed, 1, memory_order_relaxed);
	shim_show_passed();
	return address;
}

/* One of ours by its name, but not the driver's function that we know: a newer form, or another library's. */
static void *pass_unknown(void *address)
{
	atomic_fetch_add_explicit(&hooks_unknown, 1, memory_order_relaxed);
	return pass(address);
}

/* The name that a library gives itself, NULL where it has none. */
static const char *own_name(const struct link_map *library)
{
	const char *names = NULL;
	uint64_t name = 0;

	for (const ElfW(Dyn) *entry = library->l_ld; entry->d_tag != DT_NULL; entry++) {
		if (entry->d_tag == DT_STRTAB)
			names = (const char *)entry->d_un.d_ptr;
		else if (entry->d_tag == DT_SONAME)
			name = entry->d_un.d_val;
	}
	return names != NULL && name != 0 ? names + name : NULL;
}

/* Whether an address is in a copy of the driver under another name of file: it is the driver by its own name. */
static bool in_copy_of_driver(const void *address)
{
	struct link_map *library = NULL;
	const char *name;
	Dl_info info;

	if (dladdr1(address, &info, (void **)&library, RTLD_DL_LINKMAP) == 0 || library == NULL)
		return false;
	name = own_name(library);
	return name != NULL && strncmp(name, "libcuda.so", strlen("libcuda.so")) == 0;
}

void *hooks_for_symbol(const char *name, void *address)
{
	const struct row *row;

	if (name[0] == 'c' ? !hooks_load_driver() : !hooks_load_nvml(false))
		return address;
	row = find(by_symbol, name, false);
	if (row == NULL) {
		return pass(address);
	}
	if (address == row->ours) /* found us first in the global scope: only what the driver has may be found */
		return *row->real != NULL ? address : NULL;
	if (address == *row->real)
		return row->ours;
	/* A second copy of the driver is answered by ours, which call the first: nothing is allocated beside the limit.
	 */
	if (name[0] == 'c' && *row->real != NULL && in_copy_of_driver(address)) {
		atomic_fetch_add_explicit(&hooks_unknown, 1, memory_order_relaxed);
		shim_show_passed();
		return row->ours;
	}
	return pass_unknown(address);
}

void *hooks_for_base(const char *base, void *address)
{
	const struct row *row = find(by_base, base, true);

	if (row == NULL) {
		return pass(address);
	}
	for (const struct row *at = row;
		at < driver_rows + DRIVER_ROWS && at->base != NULL && strcmp(at->base, base) == 0; at++)
		if (address == *at->real || address == by_version[at - driver_rows])
			return at->ours;
	return pass_unknown(address);
}
