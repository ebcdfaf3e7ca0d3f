/* What a program is told of its share, by CUDA and by NVML, and which device is which. */
#include "rig.h"

static nvmlDevice_t handle_of(unsigned int index)
{
	nvmlDevice_t device;

	CHECK_EQUAL(nvmlInit_v2(), NVML_SUCCESS);
	CHECK_EQUAL(nvmlDeviceGetHandleByIndex_v2(index, &device), NVML_SUCCESS);
	return device;
}

static nvmlMemory_t nvml_memory(unsigned int index)
{
	nvmlMemory_t memory;

	CHECK_EQUAL(nvmlDeviceGetMemoryInfo(handle_of(index), &memory), NVML_SUCCESS);
	return memory;
}

static void everything_shows_the_share(void)
{
	nvmlMemory_v2_t second = {.version = sizeof(second) | 2u << 24};
	size_t free_bytes, total_bytes;
	CUdeviceptr a;

	(void)rig_one(4 * GIB, 100);
	rig_context(0);
	CHECK_EQUAL(cuMemAlloc_v2(&a, GIB), CUDA_SUCCESS);
	CHECK_EQUAL(cuDeviceTotalMem_v2(&total_bytes, 0), CUDA_SUCCESS);
	CHECK_EQUAL(total_bytes, 4 * GIB);
	CHECK_EQUAL(cuMemGetInfo_v2(&free_bytes, &total_bytes), CUDA_SUCCESS);
	CHECK_EQUAL(free_bytes, 3 * GIB);
	CHECK_EQUAL(total_bytes, 4 * GIB);
	CHECK_EQUAL(cuMemGetInfo_v2(NULL, NULL), CUDA_SUCCESS);
	CHECK_EQUAL(nvml_memory(0).total, 4 * GIB);
	CHECK_EQUAL(nvml_memory(0).used, GIB);
	CHECK_EQUAL(nvml_memory(0).free, 3 * GIB);
	CHECK_EQUAL(nvmlDeviceGetMemoryInfo_v2(handle_of(0), &second), NVML_SUCCESS);
	CHECK_EQUAL(second.total, 4 * GIB);
	CHECK_EQUAL(second.used + second.free + second.reserved, second.total);
}

static void a_share_larger_than_the_card_is_the_card(void)
{
	size_t total_bytes;

	(void)rig_one(64 * GIB, 100);
	rig_context(0);
	CHECK_EQUAL(cuDeviceTotalMem_v2(&total_bytes, 0), CUDA_SUCCESS);
	CHECK_EQUAL(total_bytes, 8 * GIB);
	CHECK_EQUAL(nvml_memory(0).total, 8 * GIB);
	CHECK_EQUAL(rig_free(), 8 * GIB);
}

static void a_limit_below_what_is_in_use_shows_no_free_memory(void)
{
	struct grant grant = rig_one(5 * GIB, 100);
	CUdeviceptr a, b;

	rig_context(0);
	CHECK_EQUAL(cuMemAlloc_v2(&a, 5 * GIB), CUDA_SUCCESS);
	grant.devices[0].memory_limit_bytes = 4 * GIB;
	rig_write(&grant);
	CHECK_EQUAL(rig_free(), 0);
	CHECK_EQUAL(nvml_memory(0).total, 4 * GIB);
	CHECK_EQUAL(nvml_memory(0).used, 4 * GIB);
	CHECK_EQUAL(nvml_memory(0).free, 0);
	CHECK_EQUAL(cuMemAlloc_v2(&b, 1), CUDA_ERROR_OUT_OF_MEMORY);
	grant.devices[0].memory_limit_bytes = 6 * GIB; /* and up again, while it runs */
	rig_write(&grant);
	CHECK_EQUAL(cuMemAlloc_v2(&b, GIB), CUDA_SUCCESS);
	CHECK_EQUAL(rig_free(), 0);
}

static void what_the_driver_uses_beyond_the_count_is_used(void)
{
	struct grant grant = rig_one(GIB, 100);
	CUdeviceptr a;

	rig_context(0);
	grant.overhead_bytes[0] = 200 * MIB;
	rig_write(&grant);
	CHECK_EQUAL(rig_free(), 824 * MIB);
	CHECK_EQUAL(cuMemAlloc_v2(&a, 825 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
	CHECK_EQUAL(cuMemAlloc_v2(&a, 824 * MIB), CUDA_SUCCESS);
}

static void only_the_containers_processes_are_listed(void)
{
	nvmlProcessInfo_v1_t first[4];
	nvmlProcessInfo_t third[4];
	nvmlProcessDetail_v1_t details[4];
	nvmlProcessDetailList_t list = {.version = (unsigned int)(sizeof(list) | 1u << 24)};
	nvmlProcessesUtilizationInfo_t samples = {.version = (unsigned int)(sizeof(samples) | 1u << 24)};
	unsigned int count = 0;
	CUdeviceptr a;
	int ready[2];
	pid_t neighbour;
	char byte;

	(void)rig_one(GIB, 100);
	CHECK(pipe(ready) == 0);
	neighbour = fork();
	if (neighbour == 0) { /* another container on the same card */
		struct grant grant = rig_grant(1, GIB, 100);

		strcat(grant.region_path, "-of-the-neighbour");
		rig_write(&grant);
		rig_context(0);
		CHECK_EQUAL(cuMemAlloc_v2(&a, 512 * MIB), CUDA_SUCCESS);
		CHECK(write(ready[1], "x", 1) == 1);
		pause();
	}
	CHECK(read(ready[0], &byte, 1) == 1);
	(void)rig_one(GIB, 100);
	rig_context(0);
	CHECK_EQUAL(cuMemAlloc_v2(&a, 256 * MIB), CUDA_SUCCESS);
	CHECK_EQUAL(nvml_memory(0).used, 256 * MIB);
	CHECK_EQUAL(nvmlDeviceGetComputeRunningProcesses_v3(handle_of(0), &count, NULL), NVML_ERROR_INSUFFICIENT_SIZE);
	CHECK_EQUAL(count, 1);
	count = 4;
	CHECK_EQUAL(nvmlDeviceGetComputeRunningProcesses_v3(handle_of(0), &count, third), NVML_SUCCESS);
	CHECK_EQUAL(count, 1);
	CHECK_EQUAL(third[0].pid, getpid());
	CHECK_EQUAL(third[0].usedGpuMemory, 256 * MIB);
	count = 4;
	CHECK_EQUAL(nvmlDeviceGetComputeRunningProcesses(handle_of(0), &count, first), NVML_SUCCESS);
	CHECK_EQUAL(first[0].usedGpuMemory, 256 * MIB);
	count = 4;
	CHECK_EQUAL(nvmlDeviceGetGraphicsRunningProcesses_v3(handle_of(0), &count, third), NVML_SUCCESS);
	CHECK_EQUAL(count, 0);
	CHECK_EQUAL(nvmlDeviceGetRunningProcessDetailList(handle_of(0), &list), NVML_ERROR_INSUFFICIENT_SIZE);
	CHECK_EQUAL(list.numProcArrayEntries, 1);
	list.procArray = details;
	CHECK_EQUAL(nvmlDeviceGetRunningProcessDetailList(handle_of(0), &list), NVML_SUCCESS);
	CHECK_EQUAL(list.numProcArrayEntries, 1);
	CHECK_EQUAL(details[0].pid, getpid());
	CHECK_EQUAL(details[0].usedGpuMemory, 256 * MIB);
	CHECK_EQUAL(details[0].usedGpuCcProtectedMemory, 0);
	list.mode = NVML_PROCESS_MODE_GRAPHICS;
	CHECK_EQUAL(nvmlDeviceGetRunningProcessDetailList(handle_of(0), &list), NVML_SUCCESS);
	CHECK_EQUAL(list.numProcArrayEntries, 0);
	list.version = 7;
	CHECK_EQUAL(nvmlDeviceGetRunningProcessDetailList(handle_of(0), &list), NVML_ERROR_INVALID_ARGUMENT);
	CHECK_EQUAL(nvmlDeviceGetProcessesUtilizationInfo(handle_of(0), &samples), NVML_ERROR_NOT_FOUND);
	CHECK_EQUAL(samples.processSamplesCount, 0);
	kill(neighbour, SIGKILL);
}

static void begin_four(void)
{
	struct grant grant = rig_grant(4, 1000 * MIB, 100);

	rig_cards(4, 8 * GIB);
	rig_write(&grant);
}

static void visible_devices_are_counted_where_they_are(void)
{
	static const struct {
		const char *visible;
		int card; /* of ordinal 0 */
	} forms[] = {{"2,3", 2}, {"3", 3}, {"1,0", 1}, {NULL, 0}, {"GPU-00000002-0000-4000-8000-000000000000", 2}};

	for (size_t i = 0; i < sizeof(forms) / sizeof(forms[0]); i++) {
		CUdeviceptr a;

		if (fork() != 0) {
			int status;

			wait(&status);
			CHECK_EQUAL(status, 0);
			continue;
		}
		begin_four();
		if (forms[i].visible != NULL)
			setenv("CUDA_VISIBLE_DEVICES", forms[i].visible, 1);
		CHECK_EQUAL(nvmlInit_v2(), NVML_SUCCESS); /* NVML first, as many programs do */
		CHECK_EQUAL(nvml_memory(0).total, 1000 * MIB);
		rig_context(0);
		CHECK_EQUAL(cuMemAlloc_v2(&a, 900 * MIB), CUDA_SUCCESS);
		CHECK_EQUAL(cuMemAlloc_v2(&a, 200 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
		for (unsigned card = 0; card < 4; card++) {
			CHECK_EQUAL(rig_charged((int)card), (int)card == forms[i].card ? 900 * MIB : 0);
			CHECK_EQUAL(nvml_memory(card).used, (int)card == forms[i].card ? 900 * MIB : 0);
		}
		unlink("region");
		unlink("cards.state");
		exit(0);
	}
}

static void utilisation_is_the_devices_own(void)
{
	nvmlUtilization_t utilisation;

	begin_four();
	setenv("NVIDIA_VISIBLE_DEVICES", "2,3", 1);
	rig_context(0);
	CHECK_EQUAL(nvmlDeviceGetUtilizationRates(handle_of(0), &utilisation), NVML_SUCCESS);
	CHECK_EQUAL(utilisation.gpu, 30);
	CHECK_EQUAL(nvmlDeviceGetUtilizationRates(handle_of(1), &utilisation), NVML_SUCCESS);
	CHECK_EQUAL(utilisation.gpu, 40);
}

static void many_steps_on_the_second_device_stay_there(void)
{
	struct grant grant = rig_grant(2, 5800 * MIB, 100);
	CUdeviceptr a;

	rig_cards(2, 8 * GIB);
	rig_write(&grant);
	setenv("CUDA_VISIBLE_DEVICES", "1", 1);
	rig_context(0);
	for (int i = 0; i < 16; i++)
		CHECK_EQUAL(cuMemAlloc_v2(&a, 256 * MIB), CUDA_SUCCESS);
	CHECK_EQUAL(rig_charged(1), 4096 * MIB);
	CHECK_EQUAL(rig_charged(0), 0);
}

static void a_device_that_was_not_granted_is_refused(void)
{
	const CUmemAllocationProp prop = {
		.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 1}};
	struct grant grant = rig_grant(1, GIB, 100);
	CUmemGenericAllocationHandle handle;
	CUdeviceptr a;

	rig_cards(2, 8 * GIB);
	rig_write(&grant);
	rig_context(1);
	CHECK_EQUAL(cuMemAlloc_v2(&a, 1), CUDA_ERROR_OUT_OF_MEMORY);
	CHECK_EQUAL(cuMemCreate(&handle, 2 * MIB, &prop, 0), CUDA_ERROR_OUT_OF_MEMORY);
	CHECK_EQUAL(fakeUsedBytes(1), 0);
}

static void a_block_is_charged_where_it_is_placed(void)
{
	const CUmemAllocationProp prop = {
		.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 1}};
	CUmemGenericAllocationHandle handle;

	begin_four();
	rig_context(0);
	CHECK_EQUAL(cuMemCreate(&handle, 512 * MIB, &prop, 0), CUDA_SUCCESS);
	CHECK_EQUAL(rig_charged(0), 0);
	CHECK_EQUAL(rig_charged(1), 512 * MIB);
}

static void nvml_without_a_driver_is_nvmls_answer(void)
{
	nvmlMemory_t memory;

	(void)rig_one(GIB, 100);
	CHECK_EQUAL(nvmlDeviceGetMemoryInfo(NULL, &memory), NVML_ERROR_UNINITIALIZED);
}

int main(int argc, char **argv)
{
	static const struct test tests[] = {
		TEST(everything_shows_the_share),
		TEST(a_share_larger_than_the_card_is_the_card),
		TEST(a_limit_below_what_is_in_use_shows_no_free_memory),
		TEST(what_the_driver_uses_beyond_the_count_is_used),
		TEST(only_the_containers_processes_are_listed),
		TEST(visible_devices_are_counted_where_they_are),
		TEST(utilisation_is_the_devices_own),
		TEST(many_steps_on_the_second_device_stay_there),
		TEST(a_device_that_was_not_granted_is_refused),
		TEST(a_block_is_charged_where_it_is_placed),
		TEST(nvml_without_a_driver_is_nvmls_answer),
	};
	return RUN_TESTS(tests, argc, argv);
}
