/* vgpu-smi: what NVML shows in here, as a table or as JSON; a stand-in for nvidia-smi where only the driver is. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "nvml_abi.h"

enum { PROCESSES = 1024 };

static const char usage[] =
	"Usage: vgpu-smi [--json]\n"
	"Show each device with its memory and its processes, as NVML tells them.\n"
	"\n"
	"  --json   one line: {\"devices\": [{index, uuid, name, total_mib, used_mib, free_mib, gpu_percent,\n"
	"           processes: [{pid, used_mib}]}]}\n"
	"  --help   this text\n"
	"\n"
	"Exit status: 0, or 1 when there is no NVML or one of its calls failed.\n";

static struct {
	__typeof__(nvmlInit_v2) *init;
	__typeof__(nvmlDeviceGetCount_v2) *count;
	__typeof__(nvmlDeviceGetHandleByIndex_v2) *handle;
	__typeof__(nvmlDeviceGetUUID) *uuid;
	__typeof__(nvmlDeviceGetName) *name;
	__typeof__(nvmlDeviceGetMemoryInfo) *memory;
	__typeof__(nvmlDeviceGetUtilizationRates) *utilisation;
	__typeof__(nvmlDeviceGetComputeRunningProcesses_v3) *processes;
} call;

struct device {
	char uuid[NVML_DEVICE_UUID_V2_BUFFER_SIZE];
	char name[96];
	nvmlMemory_t memory;
	nvmlUtilization_t utilisation;
	unsigned int process_count;
	nvmlProcessInfo_t processes[PROCESSES];
};

static void fail(const char *what)
{
	fprintf(stderr, "vgpu-smi: %s\n", what);
	exit(1);
}

static void *find(void *library, const char *name)
{
	void *address = dlsym(library, name);

	if (address == NULL)
		fail(name);
	return address;
}

static void load(void)
{
	void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW);

	if (library == NULL)
		fail(dlerror());
	call.init = (__typeof__(nvmlInit_v2) *)find(library, "nvmlInit_v2");
	call.count = (__typeof__(nvmlDeviceGetCount_v2) *)find(library, "nvmlDeviceGetCount_v2");
	call.handle = (__typeof__(nvmlDeviceGetHandleByIndex_v2) *)find(library, "nvmlDeviceGetHandleByIndex_v2");
	call.uuid = (__typeof__(nvmlDeviceGetUUID) *)find(library, "nvmlDeviceGetUUID");
	call.name = (__typeof__(nvmlDeviceGetName) *)find(library, "nvmlDeviceGetName");
	call.memory = (__typeof__(nvmlDeviceGetMemoryInfo) *)find(library, "nvmlDeviceGetMemoryInfo");
	call.utilisation = (__typeof__(nvmlDeviceGetUtilizationRates) *)find(library, "nvmlDeviceGetUtilizationRates");
	call.processes = (__typeof__(nvmlDeviceGetComputeRunningProcesses_v3) *)find(
		library, "nvmlDeviceGetComputeRunningProcesses_v3");
}

static void read_device(unsigned int index, struct device *device)
{
	nvmlDevice_t handle;

	memset(device, 0, sizeof(*device));
	device->process_count = PROCESSES;
	if (call.handle(index, &handle) != NVML_SUCCESS ||
		call.uuid(handle, device->uuid, sizeof(device->uuid)) != NVML_SUCCESS ||
		call.name(handle, device->name, sizeof(device->name)) != NVML_SUCCESS ||
		call.memory(handle, &device->memory) != NVML_SUCCESS ||
		call.processes(handle, &device->process_count, device->processes) != NVML_SUCCESS)
		fail("a device does not answer");
	(void)call.utilisation(handle, &device->utilisation); /* not every card has it */
}

static void print_json(unsigned int index, const struct device *device)
{
	printf("%s{\"index\": %u, \"uuid\": \"%s\", \"name\": \"%s\", \"total_mib\": %llu, \"used_mib\": %llu, \"free_mib\": "
	       "%llu, \"gpu_percent\": %u, \"processes\": [",
		index > 0 ? ", " : "", index, device->uuid, device->name, device->memory.total >> 20,
		device->memory.used >> 20, device->memory.free >> 20, device->utilisation.gpu);
	for (unsigned int i = 0; i < device->process_count; i++)
		printf("%s{\"pid\": %u, \"used_mib\": %llu}", i > 0 ? ", " : "", device->processes[i].pid,
			device->processes[i].usedGpuMemory >> 20);
	printf("]}");
}

static void print_table(unsigned int index, const struct device *device)
{
	printf("%-3u %-24.24s %8llu / %8llu MiB %4u %%  %s\n", index, device->name, device->memory.used >> 20,
		device->memory.total >> 20, device->utilisation.gpu, device->uuid);
	for (unsigned int i = 0; i < device->process_count; i++)
		printf("    pid %-20u %8llu MiB\n", device->processes[i].pid, device->processes[i].usedGpuMemory >> 20);
}

int main(int argc, char **argv)
{
	const bool json = argc == 2 && strcmp(argv[1], "--json") == 0;
	static struct device device;
	unsigned int count = 0;

	if (argc > 1 && !json) {
		fputs(usage, strcmp(argv[1], "--help") == 0 ? stdout : stderr);
		return strcmp(argv[1], "--help") == 0 ? 0 : 1;
	}
	load();
	if (call.init() != NVML_SUCCESS || call.count(&count) != NVML_SUCCESS)
		fail("NVML does not start");
	printf(json ? "{\"devices\": [" : "#   Device                       Used /    Total       GPU  UUID\n");
	for (unsigned int i = 0; i < count; i++) {
		read_device(i, &device);
		if (json)
			print_json(i, &device);
		else
			print_table(i, &device);
	}
	if (json)
		printf("]}\n");
	return 0;
}
