/* shim.c: attaching, and what of this process stands in the region. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "guard.h"
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

void shim_publish_limits(struct shim *shim)
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
		guard_region(shim->region, path);
	}
	shim->slot = attach_take_slot(shim->region, &shim->self, path, fd);
	if (shim->slot == NO_SLOT)
		log_stop("all %u places of the region %s are taken by live processes", REGION_SLOTS, path);
	shim->own = &shim->region->slots[shim->slot];
	shim->random = random_seed(shim);
	if (fd >= 0)
		close(fd);
	shim->single_row = shim->grant->device_count == 1 && !shim->from_environment ? 0 : ROW_NONE;
	shim_publish_limits(shim);
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
		shim_publish_limits(shim);
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
