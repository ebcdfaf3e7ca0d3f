/* device.c: which device is which row: of the grant, of the environment, of the driver, of NVML. */
#include <stdio.h>
#include <string.h>

#include "limits.h"
#include "log.h"
#include "shim.h"

/* Limits from the environment count devices as the container was given them: NVML's order. Without NVML, the driver's.
 */
static void devices_from_nvml(struct shim *shim)
{
	char uuids[GRANT_DEVICES][GRANT_UUID_BYTES];
	unsigned count = 0;

	if (!hooks_load_nvml(true) || nvml.nvmlInit_v2 == NULL || nvml.nvmlDeviceGetCount_v2 == NULL ||
		nvml.nvmlDeviceGetHandleByIndex_v2 == NULL || nvml.nvmlDeviceGetUUID == NULL ||
		nvml.nvmlInit_v2() != NVML_SUCCESS)
		return;
	if (nvml.nvmlDeviceGetCount_v2(&count) != NVML_SUCCESS)
		count = 0;
	if (count > GRANT_DEVICES)
		count = GRANT_DEVICES;
	memset(uuids, 0, sizeof(uuids));
	for (unsigned i = 0; i < count; i++) {
		nvmlDevice_t device;
		char text[NVML_DEVICE_UUID_V2_BUFFER_SIZE] = "";

		if (nvml.nvmlDeviceGetHandleByIndex_v2(i, &device) == NVML_SUCCESS &&
			nvml.nvmlDeviceGetUUID(device, text, sizeof(text)) == NVML_SUCCESS)
			snprintf(uuids[i], sizeof(uuids[i]), "%.*s", (int)sizeof(uuids[i]) - 1, text);
	}
	if (nvml.nvmlShutdown != NULL)
		(void)nvml.nvmlShutdown();
	limits_fill_devices(shim, (const char (*)[GRANT_UUID_BYTES])uuids, (int)count);
}

static void devices_from_driver(struct shim *shim, const struct uuid *ids, int count)
{
	char uuids[GRANT_DEVICES][GRANT_UUID_BYTES];

	memset(uuids, 0, sizeof(uuids));
	for (int i = 0; i < count && i < (int)GRANT_DEVICES; i++) {
		char *at = uuids[i] + snprintf(uuids[i], sizeof(uuids[i]), "GPU-");

		for (int byte = 0; byte < 16; byte++)
			at += snprintf(at, 4, "%s%02x", byte == 4 || byte == 6 || byte == 8 || byte == 10 ? "-" : "",
				ids[i].bytes[byte]);
	}
	limits_fill_devices(shim, (const char (*)[GRANT_UUID_BYTES])uuids, count);
}

static bool device_uuid(CUdevice device, struct uuid *uuid)
{
	CUuuid raw;

	if ((driver.cuDeviceGetUuid_v2 == NULL || driver.cuDeviceGetUuid_v2(&raw, device) != CUDA_SUCCESS) &&
		(driver.cuDeviceGetUuid == NULL || driver.cuDeviceGetUuid(&raw, device) != CUDA_SUCCESS))
		return false;
	memcpy(uuid->bytes, raw.bytes, sizeof(uuid->bytes));
	return true;
}

static int row_of_uuid(const struct shim *shim, const struct uuid *uuid)
{
	for (uint32_t row = 0; row < shim->grant->device_count; row++)
		if (uuid_equal(&shim->uuids[row], uuid))
			return shim->grant->devices[row].flags & GRANT_DEVICE_WHOLE ? ROW_NONE : (int)row;
	return ROW_DENIED;
}

static int row_of_ordinal(const struct shim *shim, int ordinal, bool known, const struct uuid *uuid)
{
	const int row = known ? row_of_uuid(shim, uuid) : ROW_DENIED;

	/* The environment names places, not devices: one that NVML does not list (MIG) is taken at the driver's place.
	 */
	return row == ROW_DENIED && shim->from_environment && ordinal < (int)GRANT_DEVICES ? ordinal : row;
}

bool shim_map_devices(struct shim *shim)
{
	struct uuid uuids[ORDINALS];
	bool known[ORDINALS];
	int count = 0;

	if (atomic_load_explicit(&shim->mapped, memory_order_acquire))
		return true;
	if (!hooks_load_driver() || driver.cuDeviceGetCount == NULL || driver.cuDeviceGetCount(&count) != CUDA_SUCCESS)
		return false;
	if (count > ORDINALS)
		count = ORDINALS;
	for (int i = 0; i < count; i++)
		known[i] = device_uuid(i, &uuids[i]);
	if (shim->from_environment) { /* two threads at once write the same bytes */
		if (shim->grant->device_count == 0)
			devices_from_nvml(shim);
		if (shim->grant->device_count == 0)
			devices_from_driver(shim, uuids, count);
		shim_publish_limits(shim);
	}
	for (int i = 0; i < ORDINALS; i++) {
		shim->rows[i] = i < count ? row_of_ordinal(shim, i, known[i], &uuids[i]) : ROW_DENIED;
		if (i < count && shim->rows[i] == ROW_DENIED)
			log_line(LOG_WARNING,
				"device %d is not among the container's %u granted devices: allocations on it are refused",
				i, shim->grant->device_count);
	}
	shim->device_count = count;
	if (count == 1 && shim->rows[0] >= 0)
		shim->single_row = shim->rows[0];
	atomic_store_explicit(&shim->mapped, true, memory_order_release);
	return true;
}

int shim_row_of_device(struct shim *shim, CUdevice device)
{
	if (device < 0 || device >= ORDINALS || !shim_map_devices(shim))
		return ROW_NONE; /* the driver refuses it */
	return shim->rows[device];
}

/* Memory of the host is free of charge; what this library does not know is on no device that was granted. */
int shim_row_of_location(struct shim *shim, const CUmemLocation *location)
{
	switch ((int)location->type) {
	case CU_MEM_LOCATION_TYPE_INVALID: /* the driver refuses it */
	case CU_MEM_LOCATION_TYPE_DEVICE:
		return shim_row_of_device(shim, location->id);
	case CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN:
		return shim_row_of_device(shim, location->localized.deviceId);
	case CU_MEM_LOCATION_TYPE_HOST:
	case CU_MEM_LOCATION_TYPE_HOST_NUMA:
	case CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT:
	case CU_MEM_LOCATION_TYPE_INVISIBLE: /* another process's */
		return ROW_NONE;
	default:
		log_line(LOG_WARNING, "memory of location type %d is refused: this library does not know it",
			(int)location->type);
		return ROW_DENIED;
	}
}

int shim_row_of_nvml(struct shim *shim, nvmlDevice_t device)
{
	const uint64_t handle = (uint64_t)(uintptr_t)device;
	const unsigned place = (unsigned)(handle >> 4 ^ handle >> 10) % NVML_HANDLES;
	char text[NVML_DEVICE_UUID_V2_BUFFER_SIZE] = "";
	struct uuid uuid;
	int row;

	if (shim->from_environment && shim->grant->device_count == 0 && !shim_map_devices(shim)) {
		devices_from_nvml(shim);
		shim_publish_limits(shim);
	}
	if (atomic_load(&shim->nvml_handles[place].handle) == handle) {
		row = atomic_load(&shim->nvml_handles[place].row);
		if (atomic_load(&shim->nvml_handles[place].handle) == handle)
			return row;
	}
	if (nvml.nvmlDeviceGetUUID == NULL || nvml.nvmlDeviceGetUUID(device, text, sizeof(text)) != NVML_SUCCESS)
		return ROW_NONE;
	uuid = uuid_from_text(text);
	row = row_of_uuid(shim, &uuid);
	atomic_store(&shim->nvml_handles[place].handle, 0);
	atomic_store(&shim->nvml_handles[place].row, row);
	atomic_store(&shim->nvml_handles[place].handle, handle);
	return row;
}
