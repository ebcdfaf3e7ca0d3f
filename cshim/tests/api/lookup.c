/* The ways to a driver function: each gives what the driver would give, or our stand-in of the very same ABI. */
#define _GNU_SOURCE
#include <dlfcn.h>

#include "rig.h"

static void *driver_library(void)
{
	void *library = dlopen("libcuda.so.1", RTLD_NOW);

	CHECK(library != NULL);
	return library;
}

/* Whose function is it? */
static const char *owner_of(void *address)
{
	Dl_info info;

	CHECK(address != NULL && dladdr(address, &info) != 0);
	return strrchr(info.dli_fname, '/') + 1;
}

#define CHECK_OURS(address)    CHECK(strcmp(owner_of(address), "libvgpu.so") == 0)
#define CHECK_DRIVERS(address) CHECK(strcmp(owner_of(address), "libcuda.so.1") == 0)

static void *ask(const char *name, int version, cuuint64_t flags, CUresult wanted)
{
	CUdriverProcAddressQueryResult status;
	void *address = NULL;

	CHECK_EQUAL(cuGetProcAddress_v2(name, &address, version, flags, &status), wanted);
	return address;
}

static void dlsym_finds_our_stand_ins(void)
{
	void *library = driver_library();

	(void)rig_one(GIB, 100);
	CHECK_OURS(dlsym(library, "cuMemAlloc_v2"));
	CHECK_OURS(dlsym(library, "cuMemAlloc"));
	CHECK_OURS(dlsym(RTLD_DEFAULT, "cuMemFree_v2"));
	CHECK_OURS(dlsym(library, "cuGetProcAddress_v2"));
	CHECK_OURS(dlvsym(library, "cuMemCreate", "ANY") != NULL ? dlvsym(library, "cuMemCreate", "ANY")
								 : dlsym(library, "cuMemCreate"));
	CHECK(dlsym(library, "cuMemAlloc_v2") != dlsym(library, "cuMemAlloc"));
}

static void what_we_do_not_know_passes(void)
{
	void *library = driver_library();

	CHECK_DRIVERS(dlsym(library, "cuCtxGetDevice"));
	CHECK_DRIVERS(dlsym(library, "cuDeviceGetName"));
	CHECK(dlsym(library, "cuNoSuchFunction") == NULL);
	CHECK(dlsym(library, "cublasCreate") == NULL);
	CHECK(dlerror() != NULL);
	CHECK_DRIVERS(dlsym(library, "fakeFail"));
}

static void a_library_of_somebody_else_is_left_alone(void)
{
	void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW);

	CHECK(dlsym(library, "cuMemAlloc_v2") == NULL);
	CHECK_OURS(dlsym(library, "nvmlDeviceGetMemoryInfo"));
	CHECK(strcmp(owner_of(dlsym(library, "nvmlDeviceGetName")), "libnvidia-ml.so.1") == 0);
}

static void the_caller_of_dlsym_stays_the_caller(void)
{
	/* RTLD_NEXT counts from who asks: from this program, the next getppid is the C library's. */
	void *next = dlsym(RTLD_NEXT, "getppid"), *again = dlsym(RTLD_NEXT, "getppid");

	CHECK(strncmp(owner_of(next), "libc.so", 7) == 0);
	CHECK(next == again);
	CHECK_OURS(dlsym(RTLD_NEXT, "cuMemAlloc_v2"));
}

static void each_version_gets_its_own_abi(void)
{
	void *library = driver_library();

	CHECK(ask("cuMemAlloc", 13000, 0, CUDA_SUCCESS) == dlsym(library, "cuMemAlloc_v2"));
	CHECK(ask("cuMemAlloc", 2000, 0, CUDA_SUCCESS) == dlsym(library, "cuMemAlloc"));
	CHECK(ask("cuCtxCreate", 3020, 0, CUDA_SUCCESS) == dlsym(library, "cuCtxCreate_v2"));
	CHECK(ask("cuCtxCreate", 11040, 0, CUDA_SUCCESS) == dlsym(library, "cuCtxCreate_v3"));
	CHECK(ask("cuCtxCreate", 12050, 0, CUDA_SUCCESS) == dlsym(library, "cuCtxCreate_v4"));
	CHECK(ask("cuGraphInstantiate", 10000, 0, CUDA_SUCCESS) == dlsym(library, "cuGraphInstantiate"));
	CHECK(ask("cuGraphInstantiate", 12000, 0, CUDA_SUCCESS) == dlsym(library, "cuGraphInstantiate_v2"));
	CHECK(ask("cuGetProcAddress", 11030, 0, CUDA_SUCCESS) == dlsym(library, "cuGetProcAddress"));
	CHECK(ask("cuGetProcAddress", 12000, 0, CUDA_SUCCESS) == dlsym(library, "cuGetProcAddress_v2"));
}

static void the_threads_own_stream_is_kept(void)
{
	void *library = driver_library();
	const cuuint64_t per_thread = CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;

	CHECK(ask("cuLaunchKernel", 12000, 0, CUDA_SUCCESS) == dlsym(library, "cuLaunchKernel"));
	CHECK(ask("cuLaunchKernel", 12000, per_thread, CUDA_SUCCESS) == dlsym(library, "cuLaunchKernel_ptsz"));
	CHECK(ask("cuMemAllocAsync", 12000, per_thread, CUDA_SUCCESS) == dlsym(library, "cuMemAllocAsync_ptsz"));
	CHECK(ask("cuGraphLaunch", 12000, per_thread, CUDA_SUCCESS) == dlsym(library, "cuGraphLaunch_ptsz"));
	CHECK_OURS(ask("cuMemAllocAsync", 12000, per_thread, CUDA_SUCCESS));
}

static void the_drivers_no_is_kept(void)
{
	CUdriverProcAddressQueryResult status;
	void *address = NULL;

	CHECK_EQUAL(cuGetProcAddress_v2("cuMemAllocAsync", &address, 8000, 0, &status), CUDA_ERROR_NOT_FOUND);
	CHECK_EQUAL(status, CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
	CHECK_EQUAL(cuGetProcAddress_v2("cuNoSuchFunction", &address, 13000, 0, &status), CUDA_ERROR_NOT_FOUND);
	CHECK_EQUAL(status, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
	CHECK_EQUAL(cuGetProcAddress_v2("", &address, 0, 0, NULL), CUDA_ERROR_NOT_FOUND);
	CHECK_EQUAL(cuGetProcAddress(NULL, &address, 0, 0), CUDA_ERROR_INVALID_VALUE);
}

/* Every function that the driver has and we hook is ours by both ways, for every version that it has. */
static void every_hook_is_found_by_symbol_and_by_version(void)
{
	static const struct {
		const char *symbol, *base;
		int version;
		const char *stream;
	} rows[] = {
#define HOOK(symbol, base, version, stream) {#symbol, #base, version, #stream},
#define CALL(symbol)
#include "hooks.def"
#undef HOOK
#undef CALL
	};
	void *library = driver_library();

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		const cuuint64_t flags =
			strcmp(rows[i].stream, "PER_THREAD") == 0 ? CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM : 0;
		void *by_symbol = dlsym(library, rows[i].symbol);
		void *by_version = ask(rows[i].base, rows[i].version, flags, CUDA_SUCCESS);

		if (by_symbol != by_version || strcmp(owner_of(by_symbol), "libvgpu.so") != 0) {
			fprintf(stderr, "%s: by symbol %s, by version %s\n", rows[i].symbol, owner_of(by_symbol),
				owner_of(by_version));
			_exit(1);
		}
	}
}

static void addresses_that_are_only_handed_out_are_known_too(void)
{
	const cuuint64_t per_thread = CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
	void *library = driver_library();

	setenv("FAKE_OTHER_ADDRESSES", "1", 1);
	CHECK(ask("cuMemAlloc", 12000, 0, CUDA_SUCCESS) == dlsym(library, "cuMemAlloc_v2"));
	CHECK(ask("cuMemAllocAsync", 12000, 0, CUDA_SUCCESS) == dlsym(library, "cuMemAllocAsync"));
	CHECK(ask("cuMemAllocAsync", 12000, per_thread, CUDA_SUCCESS) == dlsym(library, "cuMemAllocAsync_ptsz"));
	CHECK_OURS(ask("cuMemAlloc", 12000, 0, CUDA_SUCCESS));
}

static void a_function_found_either_way_is_held_to_the_limit(void)
{
	__typeof__(cuMemAlloc_v2) *by_symbol, *by_version;
	CUdeviceptr a;

	(void)rig_one(GIB, 100);
	by_symbol = (__typeof__(by_symbol))dlsym(driver_library(), "cuMemAlloc_v2");
	by_version = (__typeof__(by_version))ask("cuMemAlloc", 12000, 0, CUDA_SUCCESS);
	rig_context(0);
	CHECK_EQUAL(by_symbol(&a, 600 * MIB), CUDA_SUCCESS);
	CHECK_EQUAL(by_version(&a, 600 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
}

static void looking_up_starts_nothing(void)
{
	char region[PATH_MAX];

	(void)rig_one(GIB, 100);
	CHECK_OURS(dlsym(driver_library(), "cuMemAlloc_v2"));
	CHECK_OURS(ask("cuMemAlloc", 12000, 0, CUDA_SUCCESS));
	rig_path(region, "region");
	CHECK(access(region, F_OK) != 0);
}

int main(int argc, char **argv)
{
	static const struct test tests[] = {
		TEST(dlsym_finds_our_stand_ins),
		TEST(what_we_do_not_know_passes),
		TEST(a_library_of_somebody_else_is_left_alone),
		TEST(the_caller_of_dlsym_stays_the_caller),
		TEST(each_version_gets_its_own_abi),
		TEST(the_threads_own_stream_is_kept),
		TEST(the_drivers_no_is_kept),
		TEST(every_hook_is_found_by_symbol_and_by_version),
		TEST(addresses_that_are_only_handed_out_are_known_too),
		TEST(a_function_found_either_way_is_held_to_the_limit),
		TEST(looking_up_starts_nothing),
	};
	return RUN_TESTS(tests, argc, argv);
}
