/* shim.c: attaching, and which device is which row. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "legacy.h"
#include "limits.h"
#include "log.h"
#include "reserve.h"
#include "shim.h"

#ifndef MADV_WIPEONFORK
#define MADV_WIPEONFORK 18
#endif

enum { LOOK_AGAIN_NS = 100 * 1000 * 1000 };

struct shim *shim_pages;

static void wipe_in_child(void)
{
	memset(shim_pages, 0, sizeof(*shim_pages));
}

/* Memory that is zero in every new process. Where the kernel cannot do that (before 4.14), libc's fork handler does,
 * for children made with fork at least. */
static struct shim *pages_new(void)
{
	struct shim *pages = mmap(NULL, sizeof(*pages), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct shim *first = NULL;

	if (pages == MAP_FAILED)
		log_stop("no memory for this process's limits");
	if (!__atomic_compare_exchange_n(&shim_pages, &first, pages, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
		munmap(pages, sizeof(*pages));
		return first;
	}
	if (madvise(pages, sizeof(*pages), MADV_WIPEONFORK) != 0)
		(void)pthread_atfork(NULL, NULL, wipe_in_child);
	return pages;
}

static void publish_limits(struct shim *shim)
{
	for (uint32_t i = 0; i < shim->grant->device_count; i++) {
		struct region_device *device = &shim->region->devices[i];

		memcpy(device->uuid, shim->grant->devices[i].uuid, sizeof(device->uuid));
		shim->uuids[i] = uuid_from_text(shim->grant->devices[i].uuid);
		atomic_store(&device->limit_bytes,
			shim_memory_limit(shim, (int)i) == UINT64_MAX ? 0 : shim_memory_limit(shim, (int)i));
		atomic_store(&device->sm_percent, shim->grant->devices[i].sm_percent);
	}
	atomic_store(&shim->region->device_count, shim->grant->device_count);
	atomic_store(&shim->region->priority, shim->grant->priority);
}

static bool is_whole(const struct grant *grant)
{
	for (uint32_t i = 0; i < grant->device_count; i++)
		if (!(grant->devices[i].flags & GRANT_DEVICE_WHOLE))
			return false;
	return grant->device_count > 0;
}

/* Which launches are measured must not be known before: the kernel's random bytes for this program, and this process.
 */
static uint64_t random_seed(const struct shim *shim)
{
	const void *bytes = (const void *)getauxval(AT_RANDOM);
	uint64_t seed = shim->self.owner * 0x9e3779b97f4a7c15ull;
	uint64_t random = 0;

	if (bytes != NULL)
		memcpy(&random, bytes, sizeof(random));
	seed ^= random;
	return seed != 0 ? seed : 1;
}

static enum shim_state attach_now(struct shim *shim)
{
	enum region_maker maker;
	const char *path;
	int fd = -1;

	if (!limits_read(shim) || is_whole(shim->grant))
		return SHIM_INERT;
	path = limits_region_path(shim);
	shim->self = process_self();
	shim->clock_ahead_ns = process_clock_ahead_ns();
	maker = shim->grant->flags & GRANT_REGION_MADE ? REGION_BY_AGENT : REGION_BY_ANYBODY;
	if (strlen(path) >= sizeof(shim->region_path))
		errno = ENAMETOOLONG;
	else
		shim->region = attach_map(path, maker, &fd);
	if (shim->region == NULL && maker == REGION_BY_AGENT)
		log_stop(
			"the region %s, which the node agent made and mounted, cannot be used (%s): what others of this "
			"container use would not be seen, so this process does not start. Restart the pod",
			path, errno == EPROTO ? "it was emptied" : strerror(errno));
	if (shim->region == NULL) {
		log_line(LOG_ERROR,
			"the region %s cannot be used (%s): limits hold in this process, what others use is not seen. Is its "
			"directory mounted and writable?",
			path, strerror(errno));
		shim->region = attach_map_private();
		if (shim->region == NULL)
			log_stop("no memory for a private region");
	} else {
		strcpy(shim->region_path, path);
	}
	shim->slot = attach_take_slot(shim->region, &shim->self, path, fd);
	if (shim->slot == NO_SLOT)
		log_stop("all %u places of the region %s are taken by live processes", REGION_SLOTS, path);
	shim->own = &shim->region->slots[shim->slot];
	shim->random = random_seed(shim);
	if (fd >= 0)
		close(fd);
	shim->single_row = shim->grant->device_count == 1 && !shim->from_environment ? 0 : ROW_NONE;
	publish_limits(shim);
	legacy_open(shim);
	atomic_store(&shim->own->passed, atomic_load(&hooks_passed));
	atomic_store(&shim->own->unknown, atomic_load(&hooks_unknown));
	return SHIM_ATTACHED;
}

void shim_show_passed(void)
{
	struct shim *shim = shim_pages;

	if (shim == NULL || atomic_load_explicit(&shim->state, memory_order_acquire) != SHIM_ATTACHED)
		return;
	atomic_store_explicit(&shim->own->passed, atomic_load(&hooks_passed), memory_order_relaxed);
	atomic_store_explicit(&shim->own->unknown, atomic_load(&hooks_unknown), memory_order_relaxed);
}

void shim_mend(struct shim *shim, int row)
{
	struct region_use *use = &shim->own->use[row];
	uint64_t used = atomic_load_explicit(&use->used, memory_order_acquire);

	if (atomic_load_explicit(&shim->region->identity, memory_order_relaxed) != REGION_MAGIC) {
		attach_mend_header(shim->region);
		publish_limits(shim);
		log_line(LOG_ERROR, "the region %s was damaged, and is put right", shim->region_path);
	}
	if (!attach_keep_slot(shim->region, shim->slot, &shim->self))
		log_stop("another process has this one's place in the region %s: it was written over. Restart the "
			 "container",
			shim->region_path);
	if (reserve_held(use) == shim->held_bytes[row])
		return;
	log_line(LOG_ERROR, "the region %s was written over: this process has %llu MiB in use on device %s, not %llu",
		shim->region_path, (unsigned long long)(shim->held_bytes[row] >> 20), shim_device(shim, row)->uuid,
		(unsigned long long)(reserve_held(use) >> 20));
	while (!atomic_compare_exchange_weak(&use->used, &used, used_changed(used, shim->held_bytes[row])))
		;
	reserve_end_spare(use);
}

void shim_reap(struct shim *shim)
{
	(void)attach_reap(shim->region, &shim->self, shim->region_path[0] != '\0' ? shim->region_path : NULL);
	if (shim->legacy != NULL)
		legacy_sweep(shim);
}

void shim_reap_now_and_then(struct shim *shim)
{
	uint64_t looked = atomic_load_explicit(&shim->looked_ns, memory_order_relaxed);
	struct timespec now = {0};
	uint64_t now_ns;

	clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
	now_ns = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
	if ((looked == 0 || now_ns - looked >= LOOK_AGAIN_NS) &&
		atomic_compare_exchange_strong(&shim->looked_ns, &looked, now_ns))
		shim_reap(shim);
}

struct shim *shim_attach(void)
{
	struct shim *shim = shim_pages != NULL ? shim_pages : pages_new();
	int state = SHIM_FRESH;

	if (atomic_compare_exchange_strong(&shim->state, &state, SHIM_ATTACHING)) {
		state = attach_now(shim);
		atomic_store_explicit(&shim->state, state, memory_order_release);
	}
	while (state == SHIM_ATTACHING) {
		sched_yield();
		state = atomic_load_explicit(&shim->state, memory_order_acquire);
	}
	return state == SHIM_ATTACHED ? shim : NULL;
}

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
		publish_limits(shim);
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

static struct context_row *context_place(struct shim *shim, uint64_t context)
{
	return &shim->contexts[(context >> 4 ^ context >> 12) % CONTEXTS];
}

/* The device of a context, which is only told while it is current: one that is not is made so for a moment. */
static bool device_of_context(CUcontext context, bool current, CUdevice *device)
{
	CUcontext popped;
	bool told;

	if (driver.cuCtxGetDevice == NULL)
		return false;
	if (current)
		return driver.cuCtxGetDevice(device) == CUDA_SUCCESS;
	if (driver.cuCtxPushCurrent_v2 == NULL || driver.cuCtxPopCurrent_v2 == NULL ||
		driver.cuCtxPushCurrent_v2(context) != CUDA_SUCCESS)
		return false;
	told = driver.cuCtxGetDevice(device) == CUDA_SUCCESS;
	(void)driver.cuCtxPopCurrent_v2(&popped);
	return told;
}

static int row_of_context(struct shim *shim, CUcontext context, bool current)
{
	const uint64_t key = (uint64_t)(uintptr_t)context;
	struct context_row *place = context_place(shim, key);
	CUdevice device;
	int row;

	if (atomic_load_explicit(&place->context, memory_order_acquire) == key) {
		row = atomic_load_explicit(&place->row, memory_order_acquire);
		if (atomic_load_explicit(&place->context, memory_order_acquire) == key)
			return row;
	}
	if (!device_of_context(context, current, &device))
		return shim->single_row >= 0 ? shim->single_row
					     : ROW_DENIED; /* a context on a device that we cannot name */
	row = shim_row_of_device(shim, device);
	if (row == ROW_NONE && !atomic_load(&shim->mapped))
		return ROW_NONE;
	atomic_store_explicit(&place->context, 0, memory_order_release);
	atomic_store_explicit(&place->row, row, memory_order_release);
	atomic_store_explicit(&place->context, key, memory_order_release);
	return row;
}

static CUcontext current_context(void)
{
	CUcontext current = NULL;

	if (!hooks_load_driver() || driver.cuCtxGetCurrent == NULL || driver.cuCtxGetCurrent(&current) != CUDA_SUCCESS)
		return NULL;
	return current;
}

int shim_row_of_context(struct shim *shim, uint64_t *context)
{
	const CUcontext current = current_context();

	*context = (uint64_t)(uintptr_t)current;
	/* Nothing can be allocated without one: the driver says so. */
	return current == NULL ? ROW_NONE : row_of_context(shim, current, true);
}

int shim_row_of_other_context(struct shim *shim, CUcontext context)
{
	return hooks_load_driver() ? row_of_context(shim, context, false) : ROW_NONE;
}

/* The context that a stream belongs to; the current one for the default streams, and where there is but one device. */
static CUcontext context_of_stream(const struct shim *shim, CUstream stream)
{
	const bool is_default = stream == NULL || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD;
	CUcontext context = NULL;

	if (is_default || shim->device_count == 1 || !hooks_load_driver() || driver.cuStreamGetCtx == NULL ||
		driver.cuStreamGetCtx(stream, &context) != CUDA_SUCCESS || context == NULL)
		return current_context();
	return context;
}

int shim_row_of_stream(struct shim *shim, CUstream stream)
{
	const CUcontext context = context_of_stream(shim, stream);

	return context == NULL ? ROW_NONE : row_of_context(shim, context, context == current_context());
}

bool shim_device_of_stream(struct shim *shim, CUstream stream, CUdevice *device)
{
	const CUcontext context = context_of_stream(shim, stream);

	return context != NULL && device_of_context(context, context == current_context(), device);
}

bool shim_is_capturing(const struct shim *shim, CUstream stream, bool per_thread)
{
	CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
	CUresult result = CUDA_ERROR_NOT_FOUND;

	if (atomic_load_explicit(&shim->captures, memory_order_relaxed) == 0)
		return false;
	if (per_thread && driver.cuStreamIsCapturing_ptsz != NULL)
		result = driver.cuStreamIsCapturing_ptsz(stream, &status);
	else if (driver.cuStreamIsCapturing != NULL)
		result = driver.cuStreamIsCapturing(stream, &status);
	return result == CUDA_SUCCESS && status != CU_STREAM_CAPTURE_STATUS_NONE;
}

bool shim_may_ask(const struct shim *shim)
{
	return atomic_load(&shim->captures) == 0 || driver.cuThreadExchangeStreamCaptureMode != NULL;
}

struct relaxed shim_relax(void)
{
	struct relaxed relaxed = {.mode = CU_STREAM_CAPTURE_MODE_RELAXED};

	relaxed.done = driver.cuThreadExchangeStreamCaptureMode != NULL &&
		       driver.cuThreadExchangeStreamCaptureMode(&relaxed.mode) == CUDA_SUCCESS;
	return relaxed;
}

void shim_restore(struct relaxed relaxed)
{
	if (relaxed.done)
		(void)driver.cuThreadExchangeStreamCaptureMode(&relaxed.mode);
}

bool shim_enter_stream(struct shim *shim, CUstream stream)
{
	const CUcontext context = context_of_stream(shim, stream);

	return context != NULL && context != current_context() && driver.cuCtxPushCurrent_v2 != NULL &&
	       driver.cuCtxPopCurrent_v2 != NULL && driver.cuCtxPushCurrent_v2(context) == CUDA_SUCCESS;
}

void shim_leave_stream(bool entered)
{
	CUcontext context;

	if (entered)
		(void)driver.cuCtxPopCurrent_v2(&context);
}

void shim_forget_context(struct shim *shim, CUcontext context)
{
	uint64_t expected = (uint64_t)(uintptr_t)context;

	(void)atomic_compare_exchange_strong(&context_place(shim, expected)->context, &expected, 0);
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
		publish_limits(shim);
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
