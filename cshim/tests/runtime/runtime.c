/* NVIDIA's own CUDA runtime on the fake driver, under the shim; linked to the dynamic library, and to the static one.
 *
 * The runtime looks up every function that it will ever call, by cuGetProcAddress, before it does anything else. It
 * then asks the driver for private tables (cuGetExportTable) and checks by them that the driver is NVIDIA's. The fake
 * one is not, does not pretend to be, and refuses; the runtime says so to its caller. What comes before is what decides
 * whether a program of the runtime is held to its share: each look-up has to pass through the shim, and to find either
 * its stand-in for exactly that ABI or the driver's own function. The allocations below are made with what it found.
 *
 * The runtime's headers need more of NVIDIA's than its wheel has; four prototypes are enough. */
#define _GNU_SOURCE
#include <dlfcn.h>

#include "driver.h"
#include "rig.h"

extern int cudaDriverGetVersion(int *version);
extern int cudaGetDeviceCount(int *count);
extern int cudaMalloc(void **pointer, size_t bytes);

enum { LEAST_LOOKUPS = 300, LEAST_OURS = 40 };

static void *found(const char *name, int version, cuuint64_t flags)
{
	void *pointer = NULL;

	CHECK_EQUAL(cuGetProcAddress_v2(name, &pointer, version, flags, NULL), CUDA_SUCCESS);
	return pointer;
}

static void *in_library(const char *folder, const char *name, const char *symbol)
{
	char path[PATH_MAX];
	void *library;

	snprintf(path, sizeof(path), "%s%s/%s", getenv("VGPU_BUILD"), folder, name);
	library = dlopen(path, RTLD_LAZY | RTLD_NOLOAD);
	CHECK(library != NULL);
	return dlsym(library, symbol);
}

static void begin(void)
{
	int version = 0;

	setenv("FAKE_GPU_COMPLETE", "1", 1);
	(void)rig_one(GIB, 100);
	CHECK_EQUAL(cudaDriverGetVersion(&version), 0);
	CHECK(version >= 13000);
}

static void the_runtimes_look_ups_pass_through_the_shim(void)
{
	const struct fake_lookup *lookups;
	unsigned count;

	begin();
	count = fakeLookups(&lookups);
	CHECK(count >= LEAST_LOOKUPS);
	rig_context(0);
	CHECK(atomic_load(&rig_region()->slots[0].passed) >=
		LEAST_LOOKUPS / 2); /* those that are not ours, it counted */
}

static void each_look_up_finds_the_function_of_its_abi(void)
{
	const struct fake_lookup *lookups;
	unsigned count, ours = 0;

	begin();
	count = fakeLookups(&lookups);
	for (unsigned i = 0; i < count; i++) {
		const char *symbol = fakeSymbol(lookups[i].name, lookups[i].version, lookups[i].flags);
		void *expected;

		if (symbol == NULL)
			continue;
		expected = in_library("", "libvgpu.so", symbol);
		ours += expected != NULL;
		if (expected == NULL)
			expected = in_library("/fake", "libcuda.so.1", symbol);
		CHECK(expected != NULL);
		CHECK(found(lookups[i].name, lookups[i].version, lookups[i].flags) == expected);
	}
	CHECK(ours >= LEAST_OURS);
}

static void what_the_runtime_found_is_held_to_the_limit(void)
{
	__typeof__(cuMemAlloc_v2) *allocate;
	__typeof__(cuMemGetInfo_v2) *info;
	__typeof__(cuMemFree_v2) *release;
	__typeof__(cuMemAllocAsync) *allocate_async;
	size_t free_bytes, total_bytes;
	CUdeviceptr a, b;

	begin();
	rig_context(0);
	allocate = (__typeof__(cuMemAlloc_v2) *)found("cuMemAlloc", 3020, 0);
	allocate_async = (__typeof__(cuMemAllocAsync) *)found(
		"cuMemAllocAsync", 11020, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM);
	info = (__typeof__(cuMemGetInfo_v2) *)found("cuMemGetInfo", 3020, 0);
	release = (__typeof__(cuMemFree_v2) *)found("cuMemFree", 3020, 0);
	CHECK_EQUAL(allocate(&a, 600 * MIB), CUDA_SUCCESS);
	CHECK_EQUAL(allocate(&b, 600 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
	CHECK_EQUAL(allocate_async(&b, 600 * MIB, NULL), CUDA_ERROR_OUT_OF_MEMORY);
	CHECK_EQUAL(info(&free_bytes, &total_bytes), CUDA_SUCCESS);
	CHECK_EQUAL(free_bytes, 424 * MIB);
	CHECK_EQUAL(total_bytes, GIB);
	CHECK_EQUAL(release(a), CUDA_SUCCESS);
	CHECK_EQUAL(rig_free(), GIB);
}

static void the_runtime_stops_at_the_drivers_private_tables_and_takes_nothing(void)
{
	void *pointer = NULL;
	int count = -1;

	begin();
	CHECK_EQUAL(cudaGetDeviceCount(&count), CUDA_ERROR_NOT_SUPPORTED);
	CHECK_EQUAL(cudaMalloc(&pointer, MIB), CUDA_ERROR_NOT_SUPPORTED);
	CHECK_EQUAL(fakeUsedBytes(0), 0);
}

int main(int argc, char **argv)
{
	static const struct test tests[] = {
		TEST(the_runtimes_look_ups_pass_through_the_shim),
		TEST(each_look_up_finds_the_function_of_its_abi),
		TEST(what_the_runtime_found_is_held_to_the_limit),
		TEST(the_runtime_stops_at_the_drivers_private_tables_and_takes_nothing),
	};
	return RUN_TESTS(tests, argc, argv);
}
