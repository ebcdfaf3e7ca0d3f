/* legacy_region.h: the region of the reference implementation, layout 1.2, which monitors in the field read. Facts
 * about a file format, asserted below; only what such readers look at is ever written, and nothing here decides
 * anything.
 */
#ifndef VGPU_LEGACY_REGION_H
#define VGPU_LEGACY_REGION_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#define LEGACY_MAGIC      19920718
#define LEGACY_FILE_BYTES 2008953 /* one more than the struct, as its readers know it */

enum { LEGACY_DEVICES = 16, LEGACY_SLOTS = 1024, LEGACY_UUID_BYTES = 96 };

struct legacy_use {
	_Atomic uint64_t context_bytes;
	_Atomic uint64_t module_bytes;
	_Atomic uint64_t data_bytes;
	_Atomic uint64_t offset_bytes;
	_Atomic uint64_t total_bytes;
	uint64_t spare[3];
};

struct legacy_slot {
	_Atomic int32_t pid;
	_Atomic int32_t host_pid;
	struct legacy_use used[LEGACY_DEVICES];
	uint64_t monitor_used[LEGACY_DEVICES];
	uint64_t utilisation[LEGACY_DEVICES][6];
	_Atomic int32_t status; /* 0 free, 1 running */
	int32_t padding;
	uint64_t sequence;
	uint64_t spare[2];
};

struct legacy_region {
	_Atomic int32_t initialised;
	int32_t major;
	int32_t minor;
	int32_t sm_initialised;
	uint64_t owner_pid;
	uint64_t semaphore[4];
	uint64_t device_count;
	char uuids[LEGACY_DEVICES][LEGACY_UUID_BYTES];
	uint64_t limit_bytes[LEGACY_DEVICES];
	uint64_t sm_percent[LEGACY_DEVICES];
	struct legacy_slot slots[LEGACY_SLOTS];
	_Atomic int32_t slot_count;
	_Atomic int32_t utilisation_switch;
	_Atomic int32_t recent_kernel; /* below 0: the monitor blocks this container */
	int32_t priority;
	_Atomic int64_t last_kernel_seconds;
	uint64_t second_semaphore[4];
};

_Static_assert(sizeof(struct legacy_slot) == 1960, "a slot");
_Static_assert(offsetof(struct legacy_slot, monitor_used) == 1032, "slot: what the monitor saw");
_Static_assert(offsetof(struct legacy_slot, utilisation) == 1160, "slot: utilisation");
_Static_assert(offsetof(struct legacy_slot, status) == 1928, "slot: status");
_Static_assert(offsetof(struct legacy_region, semaphore) == 24, "semaphore");
_Static_assert(offsetof(struct legacy_region, device_count) == 56, "device count");
_Static_assert(offsetof(struct legacy_region, uuids) == 64, "uuids");
_Static_assert(offsetof(struct legacy_region, limit_bytes) == 1600, "memory limits");
_Static_assert(offsetof(struct legacy_region, sm_percent) == 1728, "compute limits");
_Static_assert(offsetof(struct legacy_region, slots) == 1856, "slots");
_Static_assert(offsetof(struct legacy_region, slot_count) == 2008896, "slot count");
_Static_assert(offsetof(struct legacy_region, last_kernel_seconds) == 2008912, "last kernel");
_Static_assert(sizeof(struct legacy_region) == 2008952, "the whole");

#endif
