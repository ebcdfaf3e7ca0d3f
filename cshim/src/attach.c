/* attach.c: the region as a file, and the slots in it: taken, recognised, cleared. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "attach.h"
#include "log.h"
#include "reserve.h"

#define SLOT_LOCK_OFFSET (INT64_C(1) << 40)

/* Whether the header is ours, or none yet. Another process may be between its stores. */
static bool header_fits(const struct region *region)
{
	const uint64_t identity = atomic_load(&region->identity);
	const uint32_t size = atomic_load(&region->size), version = atomic_load(&region->version);

	return (identity == 0 || identity == REGION_MAGIC) && (version == 0 || version == REGION_VERSION) &&
	       (size == 0 || size == REGION_BYTES);
}

/* Make the header what it should be, whatever stands there. */
static void header_write(struct region *region)
{
	atomic_store(&region->identity, REGION_MAGIC);
	atomic_store(&region->size, (uint32_t)REGION_BYTES);
	atomic_store(&region->version, REGION_VERSION);
}

void attach_mend_header(struct region *region)
{
	header_write(region);
}

/* A file with holes kills who writes into one when the file system is full: all of it is there before it is mapped.
 * Where that cannot be asked for (an old file system, a filter of system calls) it is mapped as it is. */
static bool region_fill(int fd, const struct stat *status)
{
	if ((uint64_t)status->st_size >= REGION_BYTES && (uint64_t)status->st_blocks * 512 >= REGION_BYTES)
		return true;
	if ((uint64_t)status->st_size < REGION_BYTES && ftruncate(fd, (off_t)REGION_BYTES) != 0)
		return false;
	return fallocate(fd, 0, 0, (off_t)REGION_BYTES) == 0 || (errno != ENOSPC && errno != EDQUOT);
}

struct region *attach_map(const char *path, enum region_maker maker, int *fd)
{
	struct region *region = NULL;
	struct stat status;
	int error;

	*fd = open(path, O_RDWR | (maker == REGION_BY_AGENT ? 0 : O_CREAT) | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0666);
	if (*fd < 0)
		return NULL;
	(void)fchmod(*fd, 0666); /* other users of the container; fails for who did not create it, who need not */
	if (fstat(*fd, &status) != 0)
		goto out;
	errno = EINVAL;
	if (!S_ISREG(status.st_mode) || !region_fill(*fd, &status))
		goto out;
	region = mmap(NULL, REGION_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, *fd, 0);
	if (region == MAP_FAILED) {
		region = NULL;
		goto out;
	}
	/* The agent has set the identity, so a file without one was emptied; one that is damaged is used on, since its
	 * processes put right what they have in use. A file that anybody made may be another program's. */
	if (maker == REGION_BY_AGENT ? atomic_load(&region->identity) == 0 : !header_fits(region)) {
		munmap(region, REGION_BYTES);
		region = NULL;
		errno = EPROTO;
		goto out;
	}
	if (!header_fits(region))
		log_line(LOG_ERROR, "the region %s was damaged, and is put right", path);
	header_write(region);
out:
	error = errno;
	if (region == NULL) {
		close(*fd);
		*fd = -1;
	}
	errno = error;
	return region;
}

struct region *attach_map_private(void)
{
	struct region *region = mmap(NULL, REGION_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (region == MAP_FAILED)
		return NULL;
	header_write(region);
	return region;
}

/* Locks of the open file, not of the process: they last while the mapping does, whatever the program does with its
 * descriptors, and go at exec and at death. */
static bool slot_lock(int fd, unsigned slot, int command, struct flock *lock)
{
	*lock = (struct flock){.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = SLOT_LOCK_OFFSET + slot, .l_len = 1};
	return fcntl(fd, command, lock) == 0;
}

static bool is_unlocked(const char *path, unsigned slot)
{
	int fd = path != NULL ? open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK) : -1;
	struct flock lock;
	bool unlocked;

	if (fd < 0)
		return false;
	unlocked = slot_lock(fd, slot, F_OFD_GETLK, &lock) && lock.l_type == F_UNLCK;
	close(fd);
	return unlocked;
}

static bool is_gone(const struct region_slot *slot, unsigned number, uint64_t owner, const struct process_self *self,
	const char *path)
{
	const uint64_t namespace = atomic_load(&slot->namespace);

	const uint64_t time_namespace = atomic_load(&slot->time_namespace);

	if ((namespace != 0 && self->namespace != 0 && namespace != self->namespace) ||
		(time_namespace != 0 && self->time_namespace != 0 && time_namespace != self->time_namespace))
		return is_unlocked(path, number);
	return process_is_gone(owner, atomic_load(&slot->image)) ||
	       (!process_may_ask() && !process_is_shown(owner) && is_unlocked(path, number));
}

/* Bring a word of a slot to zero, unless the slot has changed hands since: then somebody else has cleared it before.
 * The word is read first and the owner after, so a value that passes belongs to `owner`. */
static void clear_word(struct region_slot *slot, uint64_t owner, _Atomic uint64_t *word, bool tagged)
{
	uint64_t value = atomic_load(word);

	while ((tagged ? used_bytes(value) : value) != 0 && atomic_load(&slot->owner) == owner)
		if (atomic_compare_exchange_weak(word, &value, tagged ? used_changed(value, 0) : 0))
			return;
}

static void clear_slot(struct region *region, unsigned number, uint64_t owner)
{
	struct region_slot *slot = &region->slots[number];

	for (unsigned device = 0; device < REGION_DEVICES; device++) {
		struct region_use *use = &slot->use[device];
		_Atomic uint64_t *const words[] = {&use->claim, &use->context_bytes, &slot->external_bytes[device],
			&use->launches, &use->busy_ns, &use->waiting};

		/* First what its last reservation may still bring it, then what it has. */
		reserve_settle(region, device, atomic_load(&region->devices[device].turn));
		for (unsigned i = 0; i < sizeof(words) / sizeof(words[0]); i++)
			clear_word(slot, owner, words[i], false);
		clear_word(slot, owner, &use->used, true);
		clear_word(slot, owner, &use->spare, false); /* it has ended with that `used` */
	}
	clear_word(slot, owner, &slot->image, false);
	clear_word(slot, owner, &slot->namespace, false);
	clear_word(slot, owner, &slot->time_namespace, false);
	clear_word(slot, owner, &slot->passed, false);
	clear_word(slot, owner, &slot->unknown, false);
	clear_word(slot, owner, &slot->contexts, false);
}

static void fill_slot(struct region_slot *slot, const struct process_self *self)
{
	struct timespec now = {0};

	clock_gettime(CLOCK_MONOTONIC, &now);
	atomic_store(&slot->namespace, self->namespace);
	atomic_store(&slot->time_namespace, self->time_namespace);
	atomic_store(&slot->image, self->image);
	atomic_store(&slot->attached_ns, (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec);
}

static void raise_high_water(struct region *region, unsigned slots)
{
	uint32_t high = atomic_load(&region->slot_high_water);

	while (high < slots && !atomic_compare_exchange_weak(&region->slot_high_water, &high, slots))
		;
}

/* Let the mark fall to what is in use again, so that a container which once had many processes does not pay for that
 * for ever. A process that takes a slot above it meanwhile raises it again before anything there counts, and looks
 * after that (slot_keep). */
static void lower_high_water(struct region *region)
{
	uint32_t high = atomic_load(&region->slot_high_water);
	uint32_t used = high < REGION_SLOTS ? high : REGION_SLOTS;

	while (used > 0 && atomic_load(&region->slots[used - 1].owner) == 0)
		used--;
	if (used < high && atomic_compare_exchange_strong(&region->slot_high_water, &high, used))
		for (unsigned i = used; i < REGION_SLOTS && i < high; i++)
			if (atomic_load(&region->slots[i].owner) != 0) /* taken while we looked */
				raise_high_water(region, i + 1);
}

static unsigned own_slot(struct region *region, const struct process_self *self)
{
	for (unsigned i = 0; i < region_slots_in_use(region); i++)
		if (atomic_load(&region->slots[i].owner) == self->owner &&
			atomic_load(&region->slots[i].namespace) == self->namespace)
			return i;
	return NO_SLOT;
}

static unsigned free_slot(struct region *region, const struct process_self *self)
{
	for (unsigned i = 0; i < REGION_SLOTS; i++) {
		uint64_t free = 0;

		if (atomic_load_explicit(&region->slots[i].owner, memory_order_relaxed) != 0)
			continue;
		raise_high_water(region, i + 1); /* before anything in the slot counts */
		if (atomic_compare_exchange_strong(&region->slots[i].owner, &free, self->owner)) {
			raise_high_water(region, i + 1); /* it may have fallen meanwhile */
			return i;
		}
	}
	return NO_SLOT;
}

static bool is_dirty(const struct region_slot *slot)
{
	uint64_t any = 0;

	for (unsigned device = 0; device < REGION_DEVICES; device++)
		any |= used_bytes(atomic_load_explicit(&slot->use[device].used, memory_order_relaxed)) |
		       atomic_load_explicit(&slot->use[device].waiting, memory_order_relaxed);
	return any != 0;
}

unsigned attach_reap(struct region *region, const struct process_self *self, const char *path)
{
	unsigned freed = 0;

	for (unsigned i = 0; i < region_slots_in_use(region); i++) {
		struct region_slot *slot = &region->slots[i];
		uint64_t owner = atomic_load(&slot->owner);

		if (owner == 0 && is_dirty(slot))
			clear_slot(region, i, 0); /* nobody's: what stands there was written over */
		if (owner == 0 || owner == self->owner || !is_gone(slot, i, owner, self, path))
			continue;
		clear_slot(region, i, owner);
		freed += atomic_compare_exchange_strong(&slot->owner, &owner, 0);
	}
	lower_high_water(region);
	return freed;
}

unsigned attach_take_slot(struct region *region, const struct process_self *self, const char *path, int fd)
{
	unsigned slot = own_slot(region, self);
	struct flock lock;

	if (slot != NO_SLOT) {
		clear_slot(region, slot, self->owner); /* what was there before this exec has gone with it */
	} else {
		(void)attach_reap(region, self, path);
		slot = free_slot(region, self);
	}
	if (slot == NO_SLOT)
		return NO_SLOT;
	fill_slot(&region->slots[slot], self);
	if (fd >= 0)
		(void)slot_lock(fd, slot, F_OFD_SETLK, &lock);
	return slot;
}

bool attach_keep_slot(struct region *region, unsigned slot, const struct process_self *self)
{
	uint64_t owner = atomic_load_explicit(&region->slots[slot].owner, memory_order_relaxed);

	if (owner == 0 && atomic_compare_exchange_strong(&region->slots[slot].owner, &owner, self->owner)) {
		fill_slot(&region->slots[slot], self);
		owner = self->owner;
	}
	raise_high_water(region, slot + 1);
	return owner == self->owner;
}
