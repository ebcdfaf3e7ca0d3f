/* nvml.c: what nvidia-smi and its like see: the share instead of the card, and the container's own processes. */
#include <stddef.h>
#include <string.h>

#include "charge.h"
#include "pool.h"
#include "quota.h"
#include "reserve.h"

/* How a struct says which one it is. */
#define NVML_VERSION(type, number) ((unsigned int)(sizeof(type) | (number) << 24))

#define REAL_NVML(function)                                                                                            \
	do {                                                                                                           \
		if (!hooks_load_nvml(false))                                                                           \
			return NVML_ERROR_UNINITIALIZED;                                                               \
		if (nvml.function == NULL)                                                                             \
			return NVML_ERROR_FUNCTION_NOT_FOUND;                                                          \
	} while (0)

/* The row of a device whose figures are to be replaced, else below zero. */
static int limited_row(struct shim **shim, nvmlDevice_t device)
{
	*shim = shim_get();
	return *shim != NULL ? shim_row_of_nvml(*shim, device) : ROW_NONE;
}

struct share {
	unsigned long long total;
	unsigned long long used;
	unsigned long long free;
};

/* Used and free always add up to the total, also where a limit was lowered below what is in use. */
static struct share share_of(
	struct shim *shim, int row, unsigned long long physical_total, unsigned long long physical_free)
{
	const uint64_t limit = shim_memory_limit(shim, row);
	struct share share = {.total = limit < physical_total ? limit : physical_total};

	pool_resample(shim);
	share.used = charge_shown(shim, row);
	if (share.used > share.total)
		share.used = share.total;
	share.free = share.total - share.used;
	if (shim->grant->flags & GRANT_FREE_IS_PHYSICAL && physical_free < share.free)
		share.free = physical_free;
	return share;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
	struct shim *shim;
	struct share share;
	nvmlReturn_t result;
	int row;

	REAL_NVML(nvmlDeviceGetMemoryInfo);
	result = nvml.nvmlDeviceGetMemoryInfo(device, memory);
	if (result != NVML_SUCCESS || memory == NULL)
		return result;
	row = limited_row(&shim, device);
	if (row < 0)
		return result;
	share = share_of(shim, row, memory->total, memory->free);
	memory->total = share.total;
	memory->used = share.used;
	memory->free = share.free;
	return result;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory)
{
	struct shim *shim;
	struct share share;
	nvmlReturn_t result;
	int row;

	REAL_NVML(nvmlDeviceGetMemoryInfo_v2);
	result = nvml.nvmlDeviceGetMemoryInfo_v2(device, memory);
	if (result != NVML_SUCCESS || memory == NULL || memory->version != NVML_VERSION(nvmlMemory_v2_t, 2u))
		return result;
	row = limited_row(&shim, device);
	if (row < 0)
		return result;
	share = share_of(shim, row, memory->total, memory->free);
	memory->total = share.total;
	memory->reserved = 0; /* the card's own reserve is no part of the share */
	memory->used = share.used;
	memory->free = share.free;
	return result;
}

/* The container's processes on a row, in entries of `stride` bytes: pid, bytes, and where there is room two instance
 * ids, which are "none"; what comes after is zero. The protocol is NVML's: too little room answers how much is needed.
 */
static nvmlReturn_t list_processes(struct shim *shim, int row, unsigned int *count, void *infos, size_t stride)
{
	const unsigned room = infos != NULL ? *count : 0;
	unsigned found = 0;

	for (unsigned i = 0; i < region_slots_in_use(shim->region); i++) {
		struct region_slot *slot = &shim->region->slots[i];
		const uint64_t owner = atomic_load(&slot->owner);
		const uint64_t used = reserve_held(&slot->use[row]);

		if (owner == 0 || (used == 0 && (atomic_load(&slot->contexts) >> row & 1) == 0))
			continue;
		if (found < room) {
			nvmlProcessInfo_v2_t *info = (void *)((char *)infos + found * stride);

			memset(info, 0, stride);
			info->pid = process_owner_pid(owner);
			info->usedGpuMemory = used;
			if (stride >= sizeof(*info))
				info->gpuInstanceId = info->computeInstanceId = UINT32_MAX;
		}
		found++;
	}
	*count = found;
	return found > room && found > 0 ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

_Static_assert(offsetof(nvmlProcessInfo_v1_t, usedGpuMemory) == offsetof(nvmlProcessInfo_v2_t, usedGpuMemory) &&
		       offsetof(nvmlProcessDetail_v1_t, computeInstanceId) ==
			       offsetof(nvmlProcessInfo_v2_t, computeInstanceId),
	"the first fields are common");

/* Compute processes are ours to list; there are no graphics and no MPS processes of the container. */
#define LIST(symbol, type, ours)                                                                                       \
	nvmlReturn_t symbol(nvmlDevice_t device, unsigned int *count, type *infos)                                     \
	{                                                                                                              \
		struct shim *shim;                                                                                     \
		int row;                                                                                               \
                                                                                                                       \
		REAL_NVML(symbol);                                                                                     \
		row = count != NULL ? limited_row(&shim, device) : ROW_NONE;                                           \
		if (row < 0)                                                                                           \
			return nvml.symbol(device, count, infos);                                                      \
		if (ours) {                                                                                            \
			shim_reap(shim);                                                                               \
			return list_processes(shim, row, count, infos, sizeof(*infos));                                \
		}                                                                                                      \
		*count = 0;                                                                                            \
		return NVML_SUCCESS;                                                                                   \
	}

LIST(nvmlDeviceGetComputeRunningProcesses, nvmlProcessInfo_v1_t, true)
LIST(nvmlDeviceGetComputeRunningProcesses_v2, nvmlProcessInfo_v2_t, true)
LIST(nvmlDeviceGetComputeRunningProcesses_v3, nvmlProcessInfo_t, true)
LIST(nvmlDeviceGetGraphicsRunningProcesses, nvmlProcessInfo_v1_t, false)
LIST(nvmlDeviceGetGraphicsRunningProcesses_v2, nvmlProcessInfo_v2_t, false)
LIST(nvmlDeviceGetGraphicsRunningProcesses_v3, nvmlProcessInfo_t, false)
LIST(nvmlDeviceGetMPSComputeRunningProcesses, nvmlProcessInfo_v1_t, false)
LIST(nvmlDeviceGetMPSComputeRunningProcesses_v2, nvmlProcessInfo_v2_t, false)
LIST(nvmlDeviceGetMPSComputeRunningProcesses_v3, nvmlProcessInfo_t, false)

/* The same lists in one function, by the kind of process. */
nvmlReturn_t nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t device, nvmlProcessDetailList_t *plist)
{
	struct shim *shim;
	int row;

	REAL_NVML(nvmlDeviceGetRunningProcessDetailList);
	if (plist == NULL || plist->version != NVML_VERSION(nvmlProcessDetailList_t, 1u) ||
		plist->mode > NVML_PROCESS_MODE_ALL)
		return nvml.nvmlDeviceGetRunningProcessDetailList(device, plist);
	row = limited_row(&shim, device);
	if (row < 0)
		return nvml.nvmlDeviceGetRunningProcessDetailList(device, plist);
	if (plist->mode == NVML_PROCESS_MODE_COMPUTE || plist->mode == NVML_PROCESS_MODE_ALL) {
		shim_reap(shim);
		return list_processes(
			shim, row, &plist->numProcArrayEntries, plist->procArray, sizeof(*plist->procArray));
	}
	plist->numProcArrayEntries = 0;
	return NVML_SUCCESS;
}

/* NVML's samples name processes of the whole host: none of them is shown. */
nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device, nvmlProcessUtilizationSample_t *utilization,
	unsigned int *processSamplesCount, unsigned long long lastSeenTimeStamp)
{
	struct shim *shim;

	REAL_NVML(nvmlDeviceGetProcessUtilization);
	if (processSamplesCount == NULL || limited_row(&shim, device) < 0)
		return nvml.nvmlDeviceGetProcessUtilization(
			device, utilization, processSamplesCount, lastSeenTimeStamp);
	*processSamplesCount = 0;
	return NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvmlDeviceGetProcessesUtilizationInfo(
	nvmlDevice_t device, nvmlProcessesUtilizationInfo_t *procesesUtilInfo)
{
	struct shim *shim;

	REAL_NVML(nvmlDeviceGetProcessesUtilizationInfo);
	if (procesesUtilInfo == NULL || procesesUtilInfo->version != NVML_VERSION(nvmlProcessesUtilizationInfo_t, 1u) ||
		limited_row(&shim, device) < 0)
		return nvml.nvmlDeviceGetProcessesUtilizationInfo(device, procesesUtilInfo);
	procesesUtilInfo->processSamplesCount = 0;
	return NVML_ERROR_NOT_FOUND;
}
