/* Where limits come from, and that a promised limit which cannot be read stops the process. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sys/stat.h>

#include "legacy_region.h"
#include "log.h"
#include "rig.h"

static CUresult allocate(uint64_t bytes)
{
	CUdeviceptr a;

	return cuMemAlloc_v2(&a, bytes);
}

/* Run in a process of its own; returns its exit status. */
static int status_of(void (*run)(void))
{
	int status;

	fflush(NULL);
	if (fork() == 0) {
		if (freopen("/dev/null", "w", stderr) == NULL)
			_exit(1);
		run();
		_exit(0);
	}
	wait(&status);
	CHECK(WIFEXITED(status));
	return WEXITSTATUS(status);
}

static void use_the_card(void)
{
	rig_context(0);
	CHECK_EQUAL(allocate(MIB), CUDA_SUCCESS);
}

static void use_nvml(void)
{
	nvmlDevice_t device;
	nvmlMemory_t memory;

	(void)nvmlInit_v2();
	(void)nvmlDeviceGetHandleByIndex_v2(0, &device);
	(void)nvmlDeviceGetMemoryInfo(device, &memory);
}

static void do_nothing_with_cuda(void)
{
	CHECK(system("true") == 0);
}

static void the_environment_limits_where_there_is_no_grant(void)
{
	rig_cards(1, 8 * GIB);
	setenv("CUDA_DEVICE_MEMORY_LIMIT_0", "1000m", 1);
	setenv("CUDA_DEVICE_MEMORY_SHARED_CACHE", "./region", 1);
	rig_context(0);
	CHECK_EQUAL(allocate(1001 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
	CHECK_EQUAL(allocate(1000 * MIB), CUDA_SUCCESS);
	CHECK_EQUAL(rig_charged(0), 1000 * MIB);
}

static void the_environment_counts_devices_as_the_container_has_them(void)
{
	rig_cards(4, 8 * GIB);
	setenv("CUDA_DEVICE_MEMORY_LIMIT", "4Gi", 1);
	setenv("CUDA_DEVICE_MEMORY_LIMIT_2", "1Gi", 1);
	setenv("CUDA_DEVICE_MEMORY_SHARED_CACHE", "./region", 1);
	setenv("CUDA_VISIBLE_DEVICES", "2,3", 1);
	rig_context(0);
	CHECK_EQUAL(allocate(2 * GIB), CUDA_ERROR_OUT_OF_MEMORY);
	CHECK_EQUAL(allocate(GIB), CUDA_SUCCESS);
	CHECK_EQUAL(rig_charged(2), GIB);
}

static void the_environment_can_only_lower_a_grant(void)
{
	struct grant grant = rig_one(2 * GIB, 100);

	setenv("CUDA_DEVICE_MEMORY_LIMIT_0", "1Gi", 1);
	rig_context(0);
	CHECK_EQUAL(allocate(GIB + 1), CUDA_ERROR_OUT_OF_MEMORY);
	grant.devices[0].memory_limit_bytes = 4 * GIB;
	rig_write(&grant);
	CHECK_EQUAL(allocate(GIB + 1), CUDA_ERROR_OUT_OF_MEMORY);
	CHECK_EQUAL(allocate(GIB), CUDA_SUCCESS);
}

static void the_environment_cannot_raise_a_grant(void)
{
	(void)rig_one(GIB, 100);
	setenv("CUDA_DEVICE_MEMORY_LIMIT_0", "none", 1);
	setenv("CUDA_DEVICE_MEMORY_LIMIT", "8Gi", 1);
	rig_context(0);
	CHECK_EQUAL(allocate(GIB + 1), CUDA_ERROR_OUT_OF_MEMORY);
}

static void the_agents_own_value_in_the_environment_does_not_hold_a_resize_back(void)
{
	struct grant grant = rig_one(GIB, 100);

	setenv("CUDA_DEVICE_MEMORY_LIMIT_0", "1024m", 1);
	rig_context(0);
	CHECK_EQUAL(allocate(2 * GIB), CUDA_ERROR_OUT_OF_MEMORY);
	grant.devices[0].memory_limit_bytes = 2 * GIB;
	rig_write(&grant);
	CHECK_EQUAL(allocate(2 * GIB), CUDA_SUCCESS);
}

static void an_unreadable_limit_stops_the_process(void)
{
	static const char *const texts[] = {"", "0", "-1", "4x", "1.5G", "50%", "99999999999G"};

	rig_cards(1, 8 * GIB);
	for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
		setenv("CUDA_DEVICE_MEMORY_LIMIT_0", texts[i], 1);
		CHECK_EQUAL(status_of(use_the_card), STOP_STATUS);
	}
	setenv("CUDA_DEVICE_MEMORY_LIMIT_0", "1Gi", 1);
	setenv("CUDA_DEVICE_MEMORY_SHARED_CACHE", "./region", 1);
	CHECK_EQUAL(status_of(use_the_card), 0);
	setenv("CUDA_DEVICE_SM_LIMIT", "101", 1);
	CHECK_EQUAL(status_of(use_the_card), STOP_STATUS);
}

static void a_damaged_grant_stops_the_process(void)
{
	struct grant grant = rig_one(GIB, 100);
	char path[PATH_MAX];

	CHECK_EQUAL(status_of(use_the_card), 0);
	grant.magic = 1;
	rig_write(&grant);
	CHECK_EQUAL(status_of(use_the_card), STOP_STATUS);
	CHECK_EQUAL(status_of(use_nvml), STOP_STATUS);
	CHECK_EQUAL(status_of(do_nothing_with_cuda), 0);
	rig_path(path, "grant");
	CHECK(truncate(path, 100) == 0);
	CHECK_EQUAL(status_of(use_the_card), STOP_STATUS);
	unlink(path);
	CHECK_EQUAL(status_of(use_the_card), STOP_STATUS);
}

static void a_grant_that_is_being_written_is_waited_for(void)
{
	struct grant grant = rig_one(GIB, 100);
	int status;

	grant.generation = 1;
	rig_write(&grant);
	if (fork() == 0) {
		usleep(100000);
		grant.generation = 2;
		rig_write(&grant);
		_exit(0);
	}
	use_the_card();
	wait(&status);
}

static void nothing_is_mapped_of(const char *name)
{
	char line[512];
	FILE *maps = fopen("/proc/self/maps", "r");

	CHECK(maps != NULL);
	while (fgets(line, sizeof(line), maps) != NULL)
		CHECK(strstr(line, name) == NULL);
	fclose(maps);
}

static void without_any_limit_nothing_happens(void)
{
	char region[PATH_MAX];

	rig_cards(1, 8 * GIB);
	rig_context(0);
	CHECK_EQUAL(allocate(8 * GIB), CUDA_SUCCESS);
	rig_path(region, "region");
	CHECK(access(region, F_OK) != 0);
	nothing_is_mapped_of("cudevshr");
}

static void a_region_that_cannot_be_written_leaves_the_process_its_own_limit(void)
{
	struct grant grant = rig_grant(1, GIB, 100);

	rig_cards(1, 8 * GIB);
	strcpy(grant.region_path, "/proc/no-such-directory/region");
	rig_write(&grant);
	if (freopen("/dev/null", "w", stderr) == NULL)
		_exit(1);
	rig_context(0);
	CHECK_EQUAL(allocate(GIB), CUDA_SUCCESS);
	CHECK_EQUAL(allocate(1), CUDA_ERROR_OUT_OF_MEMORY);
}

static void another_user_of_the_container_shares_the_region(void)
{
	struct grant grant = rig_grant(1, GIB, 100);
	int status;

	CHECK(chmod(".", 0777) == 0);
	rig_cards(1, 8 * GIB);
	rig_write(&grant);
	rig_context(0);
	CHECK_EQUAL(allocate(600 * MIB), CUDA_SUCCESS);
	CHECK(chmod("cards.state", 0666) == 0);
	if (fork() == 0) {
		if (geteuid() == 0)
			CHECK(setgid(65534) == 0 && setuid(65534) == 0);
		unsetenv("HOME");
		rig_context(0);
		CHECK_EQUAL(allocate(500 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
		CHECK_EQUAL(allocate(400 * MIB), CUDA_SUCCESS);
		exit(0);
	}
	wait(&status);
	CHECK_EQUAL(status, 0);
	CHECK_EQUAL(allocate(400 * MIB), CUDA_SUCCESS); /* and is seen to have gone, whoever he was */
}

static void the_reference_region_is_written_beside_ours(void)
{
	struct grant grant = rig_grant(2, GIB, 30);
	struct legacy_region *legacy;
	CUfunction kernel;
	struct stat file;
	CUdeviceptr a;
	int fd;

	rig_cards(2, 8 * GIB);
	grant.priority = 3;
	rig_write(&grant);
	setenv("HAMI_LEGACY_REGION", "true", 1);
	setenv("CUDA_DEVICE_MEMORY_SHARED_CACHE", "./legacy.cache", 1);
	rig_context(1);
	CHECK_EQUAL(cuMemAlloc_v2(&a, 300 * MIB), CUDA_SUCCESS);
	fd = open("legacy.cache", O_RDWR);
	CHECK(fd >= 0 && fstat(fd, &file) == 0 && file.st_size == LEGACY_FILE_BYTES);
	legacy = mmap(NULL, sizeof(*legacy), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	CHECK(legacy != MAP_FAILED);
	CHECK_EQUAL(atomic_load(&legacy->initialised), LEGACY_MAGIC);
	CHECK_EQUAL(legacy->device_count, 2);
	CHECK_EQUAL(legacy->limit_bytes[1], GIB);
	CHECK_EQUAL(legacy->sm_percent[1], 30);
	CHECK_EQUAL(legacy->priority, 3);
	CHECK(strcmp(legacy->uuids[1], rig_uuid(1)) == 0);
	CHECK_EQUAL(legacy->slot_count, 1);
	CHECK_EQUAL(legacy->slots[0].status, 1);
	CHECK_EQUAL(legacy->slots[0].pid, getpid());
	CHECK_EQUAL(legacy->slots[0].used[1].total_bytes, 300 * MIB);
	CHECK_EQUAL(legacy->slots[0].used[1].data_bytes, 300 * MIB);
	CHECK_EQUAL(cuMemFree_v2(a), CUDA_SUCCESS);
	CHECK_EQUAL(legacy->slots[0].used[1].total_bytes, 0);
	atomic_store(&legacy->recent_kernel, 0);
	kernel = rig_kernel("k");
	CHECK_EQUAL(rig_launch(kernel), CUDA_SUCCESS);
	CHECK_EQUAL(atomic_load(&legacy->recent_kernel), 2);
	CHECK(atomic_load(&legacy->last_kernel_seconds) != 0);
}

static void look_ups_of_unknown_functions_are_counted(void)
{
	uint64_t before;

	(void)rig_one(GIB, 100);
	rig_context(0);
	before = atomic_load(&rig_region()->slots[0].passed);
	CHECK(dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuDeviceGetName") != NULL);
	CHECK_EQUAL(atomic_load(&rig_region()->slots[0].passed), before + 1);
}

static void a_program_without_cuda_maps_nothing(void)
{
	(void)rig_one(GIB, 100);
	nothing_is_mapped_of("/grant");
	nothing_is_mapped_of("/region");
}

/* The driver's overhead grew under the program, so that more is in use than the limit allows: what takes no memory goes
 * on working. */
static void what_takes_no_memory_is_never_refused(void)
{
	CUDA_MEM_ALLOC_NODE_PARAMS params = {.poolProps = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}}};
	struct grant grant = rig_one(GIB, 100);
	CUgraphExec exec;
	CUgraphNode node;
	CUgraph graph;
	CUcontext context;
	CUdeviceptr a;
	int status;

	rig_context(0);
	CHECK_EQUAL(allocate(800 * MIB), CUDA_SUCCESS);
	params.bytesize = 100 * MIB;
	CHECK_EQUAL(cuGraphCreate(&graph, 0), CUDA_SUCCESS);
	CHECK_EQUAL(cuGraphAddMemAllocNode(&node, graph, NULL, 0, &params), CUDA_SUCCESS);
	CHECK_EQUAL(cuGraphInstantiateWithFlags(&exec, graph, 0), CUDA_SUCCESS);
	CHECK_EQUAL(cuGraphLaunch(exec, NULL), CUDA_SUCCESS);
	grant.overhead_bytes[0] = 200 * MIB;
	rig_write(&grant);
	CHECK_EQUAL(cuMemAlloc_v2(&a, 1), CUDA_ERROR_OUT_OF_MEMORY);
	CHECK_EQUAL(cuGraphLaunch(exec, NULL), CUDA_SUCCESS);
	CHECK_EQUAL(cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
	CHECK_EQUAL(cuCtxCreate_v2(&context, 0, 0), CUDA_SUCCESS);
	if (fork() == 0) { /* nor another process's first context */
		rig_context(0);
		_exit(0);
	}
	wait(&status);
	CHECK_EQUAL(status, 0);
	CHECK_EQUAL(atomic_load(&rig_region()->devices[0].refused), 1);
}

int main(int argc, char **argv)
{
	static const struct test tests[] = {
		TEST(what_takes_no_memory_is_never_refused),
		TEST(the_environment_limits_where_there_is_no_grant),
		TEST(the_environment_counts_devices_as_the_container_has_them),
		TEST(the_environment_can_only_lower_a_grant),
		TEST(the_environment_cannot_raise_a_grant),
		TEST(the_agents_own_value_in_the_environment_does_not_hold_a_resize_back),
		TEST(an_unreadable_limit_stops_the_process),
		TEST(a_damaged_grant_stops_the_process),
		TEST(a_grant_that_is_being_written_is_waited_for),
		TEST(without_any_limit_nothing_happens),
		TEST(a_region_that_cannot_be_written_leaves_the_process_its_own_limit),
		TEST(another_user_of_the_container_shares_the_region),
		TEST(the_reference_region_is_written_beside_ours),
		TEST(look_ups_of_unknown_functions_are_counted),
		TEST(a_program_without_cuda_maps_nothing),
	};
	return RUN_TESTS(tests, argc, argv);
}
