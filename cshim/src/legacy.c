/* legacy.c: the reference's region as a view of ours. Written only, but for the word by which its monitor blocks. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "legacy.h"
#include "log.h"
#include "quantity.h"
#include "reserve.h"

enum {
	BLOCK_SLICE_NS = 10 * 1000 * 1000,
	BLOCK_PATIENCE = 3000, /* slices: a monitor that has died blocks nobody for longer than half a minute */
	ACTIVE = 2,            /* what a launch leaves for the monitor to count down */
};

static struct legacy_region *map(const char *path)
{
	struct legacy_region *legacy = NULL;
	struct stat status;
	int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0666);

	if (fd < 0)
		return NULL;
	(void)fchmod(fd, 0666);
	if (fstat(fd, &status) == 0 && S_ISREG(status.st_mode) &&
		(status.st_size >= LEGACY_FILE_BYTES || ftruncate(fd, LEGACY_FILE_BYTES) == 0))
		legacy = mmap(NULL, sizeof(*legacy), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	return legacy == MAP_FAILED ? NULL : legacy;
}

/* Every process writes the same header: whoever comes first, the bytes are these. */
static void fill(struct shim *shim, struct legacy_region *legacy)
{
	const bool first = atomic_load(&legacy->initialised) != LEGACY_MAGIC;

	legacy->major = 1;
	legacy->minor = 2;
	legacy->device_count = shim->grant->device_count;
	for (uint32_t i = 0; i < shim->grant->device_count; i++) {
		memcpy(legacy->uuids[i], shim->grant->devices[i].uuid, GRANT_UUID_BYTES);
		legacy->limit_bytes[i] = shim->grant->devices[i].memory_limit_bytes;
		legacy->sm_percent[i] =
			shim->grant->devices[i].sm_percent == 0 ? 100 : shim->grant->devices[i].sm_percent;
	}
	legacy->priority = (int32_t)shim->grant->priority;
	if (!first)
		return;
	legacy->semaphore[0] = legacy->second_semaphore[0] = 1; /* free: nobody here ever takes them */
	atomic_store(&legacy->utilisation_switch, 1);
	atomic_store(&legacy->recent_kernel, ACTIVE);
	atomic_store(&legacy->initialised, LEGACY_MAGIC);
}

void legacy_open(struct shim *shim)
{
	const char *path = getenv("CUDA_DEVICE_MEMORY_SHARED_CACHE");
	struct legacy_slot *slot;
	int32_t count;

	if (!quantity_switch(getenv("HAMI_LEGACY_REGION")) || path == NULL || shim->region_path[0] == '\0')
		return;
	if (strcmp(path, shim->region_path) == 0) {
		log_line(LOG_WARNING, "HAMI_LEGACY_REGION: %s is our own region already", path);
		return;
	}
	shim->legacy = map(path);
	if (shim->legacy == NULL) {
		log_line(LOG_WARNING, "HAMI_LEGACY_REGION: %s cannot be written", path);
		return;
	}
	fill(shim, shim->legacy);
	legacy_sweep(shim);
	slot = &shim->legacy->slots[shim->slot];
	atomic_store(&slot->pid, (int32_t)process_owner_pid(shim->self.owner));
	atomic_store(&slot->host_pid, 0);
	count = atomic_load(&shim->legacy->slot_count);
	while (count <= (int32_t)shim->slot &&
		!atomic_compare_exchange_weak(&shim->legacy->slot_count, &count, (int32_t)shim->slot + 1))
		;
	for (int row = 0; row < (int)shim->grant->device_count; row++)
		legacy_show(shim, row);
	atomic_store(&slot->status, 1);
}

void legacy_show(struct shim *shim, int row)
{
	struct legacy_use *shown = &shim->legacy->slots[shim->slot].used[row];
	const uint64_t total = reserve_held(shim_use(shim, row));
	const uint64_t context = atomic_load_explicit(&shim_use(shim, row)->context_bytes, memory_order_relaxed);

	atomic_store_explicit(&shown->context_bytes, context < total ? context : total, memory_order_relaxed);
	atomic_store_explicit(&shown->data_bytes, context < total ? total - context : 0, memory_order_relaxed);
	atomic_store_explicit(&shown->total_bytes, total, memory_order_relaxed);
}

void legacy_sweep(struct shim *shim)
{
	for (unsigned i = 0; i < LEGACY_SLOTS; i++) {
		struct legacy_slot *slot = &shim->legacy->slots[i];

		if (atomic_load(&slot->status) == 0 || atomic_load(&shim->region->slots[i].owner) != 0)
			continue;
		atomic_store(&slot->status, 0);
		atomic_store(&slot->pid, 0);
		for (int row = 0; row < LEGACY_DEVICES; row++) {
			atomic_store(&slot->used[row].context_bytes, 0);
			atomic_store(&slot->used[row].data_bytes, 0);
			atomic_store(&slot->used[row].total_bytes, 0);
		}
	}
}

void legacy_launch(struct shim *shim)
{
	const struct timespec slice = {.tv_nsec = BLOCK_SLICE_NS};
	struct legacy_region *legacy = shim->legacy;
	int32_t recent = atomic_load(&legacy->recent_kernel);

	for (int i = 0; recent < 0 && i < BLOCK_PATIENCE; i++) {
		nanosleep(&slice, NULL);
		recent = atomic_load(&legacy->recent_kernel);
	}
	while (recent >= 0 && recent != ACTIVE &&
		!atomic_compare_exchange_weak(&legacy->recent_kernel, &recent, ACTIVE))
		; /* never over a value below zero: that is the monitor's */
	atomic_store_explicit(&legacy->last_kernel_seconds, (int64_t)time(NULL), memory_order_relaxed);
}
