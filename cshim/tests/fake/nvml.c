/* nvml.c: the fake libnvidia-ml.so.1, over the same cards. It knows the whole machine, as the real one does. */
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>

#pragma GCC visibility push(default)
#include "nvml_abi.h"
#pragma GCC visibility pop
#include "state.h"

static _Atomic int initialised;

#define ENTER()                                                                                                        \
	do {                                                                                                           \
		if (!atomic_load(&initialised))                                                                        \
			return NVML_ERROR_UNINITIALIZED;                                                               \
	} while (0)

static struct fake_device *card_of(nvmlDevice_t device)
{
	return (struct fake_device *)device;
}

static int number_of(nvmlDevice_t device)
{
	return (int)(card_of(device) - fake_state()->devices);
}

nvmlReturn_t nvmlInit_v2(void)
{
	(void)fake_state();
	atomic_fetch_add(&initialised, 1);
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlShutdown(void)
{
	ENTER();
	atomic_fetch_sub(&initialised, 1);
	return NVML_SUCCESS;
}

const char *nvmlErrorString(nvmlReturn_t result)
{
	return result == NVML_SUCCESS ? "Success" : "Error";
}

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *deviceCount)
{
	int devices[FAKE_DEVICES];

	ENTER();
	*deviceCount = (unsigned int)fake_visible(false, devices);
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device)
{
	int devices[FAKE_DEVICES];

	ENTER();
	if (index >= (unsigned int)fake_visible(false, devices))
		return NVML_ERROR_INVALID_ARGUMENT;
	*device = (nvmlDevice_t)&fake_state()->devices[devices[index]];
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device)
{
	int devices[FAKE_DEVICES];
	const int count = fake_visible(false, devices);

	ENTER();
	for (int i = 0; i < count; i++) {
		if (strcmp(fake_state()->devices[devices[i]].uuid, uuid) != 0)
			continue;
		*device = (nvmlDevice_t)&fake_state()->devices[devices[i]];
		return NVML_SUCCESS;
	}
	return NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned int *index)
{
	int devices[FAKE_DEVICES];
	const int count = fake_visible(false, devices);

	ENTER();
	for (int i = 0; i < count; i++) {
		if (devices[i] != number_of(device))
			continue;
		*index = (unsigned int)i;
		return NVML_SUCCESS;
	}
	return NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned int length)
{
	ENTER();
	snprintf(name, length, "%s", card_of(device)->name);
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned int length)
{
	ENTER();
	snprintf(uuid, length, "%s", card_of(device)->uuid);
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
	ENTER();
	memory->total = card_of(device)->total_bytes;
	memory->used = fake_used(number_of(device));
	memory->free = memory->total - memory->used;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory)
{
	ENTER();
	if (memory->version != (unsigned int)(sizeof(*memory) | 2u << 24))
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	memory->total = card_of(device)->total_bytes;
	memory->reserved = 0;
	memory->used = fake_used(number_of(device));
	memory->free = memory->total - memory->used;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *utilization)
{
	const struct fake_device *card = card_of(device);

	ENTER();
	utilization->gpu = card->util >= 0 ? (unsigned int)card->util : card->busy_until_ns > fake_now_ns() ? 100 : 0;
	utilization->memory = 0;
	return NVML_SUCCESS;
}

static nvmlReturn_t list(nvmlDevice_t device, unsigned int *count, void *infos, size_t stride)
{
	struct fake_state *state = fake_state();
	const unsigned int room = infos != NULL ? *count : 0;
	unsigned int found = 0;

	ENTER();
	(void)fake_used(number_of(device)); /* drops the dead */
	fake_lock(state);
	for (int i = 0; i < FAKE_PROCESSES; i++) {
		const struct fake_process *process = &state->processes[i];

		if (process->pid == 0 || process->used_bytes[number_of(device)] == 0)
			continue;
		if (found < room) {
			nvmlProcessInfo_v1_t *info = (void *)((char *)infos + found * stride);

			info->pid = (unsigned int)process->pid;
			info->usedGpuMemory = process->used_bytes[number_of(device)];
		}
		found++;
	}
	fake_unlock(state);
	*count = found;
	return found > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

#define LIST(symbol, type)                                                                                             \
	nvmlReturn_t symbol(nvmlDevice_t device, unsigned int *count, type *infos)                                     \
	{                                                                                                              \
		return list(device, count, infos, sizeof(*infos));                                                     \
	}

LIST(nvmlDeviceGetComputeRunningProcesses, nvmlProcessInfo_v1_t)
LIST(nvmlDeviceGetComputeRunningProcesses_v2, nvmlProcessInfo_v2_t)
LIST(nvmlDeviceGetComputeRunningProcesses_v3, nvmlProcessInfo_t)
LIST(nvmlDeviceGetGraphicsRunningProcesses, nvmlProcessInfo_v1_t)
LIST(nvmlDeviceGetGraphicsRunningProcesses_v2, nvmlProcessInfo_v2_t)
LIST(nvmlDeviceGetGraphicsRunningProcesses_v3, nvmlProcessInfo_t)
LIST(nvmlDeviceGetMPSComputeRunningProcesses, nvmlProcessInfo_v1_t)
LIST(nvmlDeviceGetMPSComputeRunningProcesses_v2, nvmlProcessInfo_v2_t)
LIST(nvmlDeviceGetMPSComputeRunningProcesses_v3, nvmlProcessInfo_t)

nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device, nvmlProcessUtilizationSample_t *utilization,
	unsigned int *processSamplesCount, unsigned long long lastSeenTimeStamp)
{
	(void)device, (void)utilization, (void)lastSeenTimeStamp;
	ENTER();
	*processSamplesCount = 0;
	return NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t device, nvmlProcessDetailList_t *plist)
{
	ENTER();
	if (plist == NULL || plist->version != (unsigned int)(sizeof(*plist) | 1u << 24))
		return NVML_ERROR_INVALID_ARGUMENT;
	return list(device, &plist->numProcArrayEntries, plist->procArray, sizeof(*plist->procArray));
}

nvmlReturn_t nvmlDeviceGetProcessesUtilizationInfo(
	nvmlDevice_t device, nvmlProcessesUtilizationInfo_t *procesesUtilInfo)
{
	(void)device;
	ENTER();
	if (procesesUtilInfo->version != (unsigned int)(sizeof(*procesesUtilInfo) | 1u << 24))
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	procesesUtilInfo->processSamplesCount = 7; /* of the whole machine */
	return NVML_ERROR_INSUFFICIENT_SIZE;
}
