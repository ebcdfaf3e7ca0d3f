/* region.h: what a container's processes use, in one file that all of them map and the node agent reads.
 *
 * A file of zeros is a valid empty region, so creating one needs no lock: grow it to REGION_BYTES, map it, set
 * `identity` by compare-and-swap. Slots never move. A slot belongs to the process that its `owner` word names, (pid,
 * start time) in one word, so that claiming and freeing are one compare-and-swap each and a reused pid is never
 * mistaken for it.
 *
 * Every word is written alone. A process may be killed between any two stores and leaves nothing that another has to
 * wait for: there is no lock in here. What a device has in use is the sum of its slots' `used` words; reserve.h says
 * how a reservation is exact all the same.
 *
 * Readers from outside (the agent): slots below `slot_high_water` with `owner` != 0. What one has in use is the bytes
 * of `used`, less those of `spare` if both have the same tag (the bits from REGION_BYTES_BITS up). The file is writable
 * by the tenant: a reader trusts no value in it, and copies it rather than mapping it.
 */
#ifndef VGPU_REGION_H
#define VGPU_REGION_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#define REGION_MAGIC      0x4e474552494d4148ull /* "HAMIREGN" */
#define REGION_VERSION    2u
#define REGION_DEVICES    16u
#define REGION_SLOTS      1024u
#define REGION_UUID_BYTES 64u

#define REGION_BYTES_BITS 44u
#define REGION_BYTES_MASK ((UINT64_C(1) << REGION_BYTES_BITS) - 1) /* the rest of a `used` word counts its changes */
#define REGION_SPARE_SHUT                                                                                              \
	(UINT64_C(1) << (REGION_BYTES_BITS - 1)) /* of a `spare` word: nothing is taken from it any more */
#define REGION_SPARE_MASK (REGION_SPARE_SHUT - 1)

#define REGION_PID_BITS   22u /* the kernel's own bound on pids is 2^22 */
#define REGION_PID_MASK   ((UINT64_C(1) << REGION_PID_BITS) - 1)

/* One process's use of one device; one cache line, written by its owner, by whoever settles its last reservation, and
 * by whoever clears it after its death. */
struct region_use {
	_Atomic uint64_t used;  /* bytes charged, tagged */
	_Atomic uint64_t spare; /* of them, freed and kept for its own next allocations; belongs to the `used` of
				   the same tag, and to no other */
	_Atomic uint64_t next;  /* `used` as it will be once the reservation `claim` is won */
	_Atomic uint64_t claim; /* the turn this process is trying to take, 0 for none */
	_Atomic uint64_t context_bytes; /* of `used`: the driver's own contexts */
	_Atomic uint64_t launches;      /* kernels and graphs started: a change means it is active */
	_Atomic uint64_t busy_ns;       /* device time that the compute limiter charged */
	_Atomic uint64_t waiting;       /* its virtual time while it waits for compute, 0 when it does not */
};

struct region_slot {
	_Atomic uint64_t owner;       /* pid | start time in clock ticks << REGION_PID_BITS; 0: free */
	_Atomic uint64_t image;       /* address of the initial stack: changes at exec, 0 when not known */
	_Atomic uint64_t namespace;   /* inode of the owner's pid namespace: pids are judged only in one's own */
	_Atomic uint64_t attached_ns; /* CLOCK_MONOTONIC */
	_Atomic uint64_t passed;      /* look-ups of driver functions that this library does not know */
	_Atomic uint64_t contexts;    /* a bit for each device on which it has one: the driver lists it there */
	_Atomic uint64_t unknown; /* of them, those of functions that this library holds, in a form it does not know */
	_Atomic uint64_t time_namespace; /* inode: a start time is judged only in one's own; 0 when not known */
	_Atomic uint64_t external_bytes[REGION_DEVICES]; /* imported from other APIs: shown, not charged */
	struct region_use use[REGION_DEVICES];
};

struct region_device {
	char uuid[REGION_UUID_BYTES]; /* the same bytes from every process */
	_Atomic uint64_t turn;        /* the last reservation: number << 10 | slot that won it */
	_Atomic uint64_t limit_bytes; /* as last seen by a process, for readers; the grant decides */
	_Atomic uint64_t refused;     /* allocations that did not fit */
	_Atomic uint64_t sm_percent;  /* as last seen */
	_Atomic uint64_t turn_reserved[4];
	_Atomic uint64_t paid_until_ns; /* compute: when all device time charged so far has been earned */
	_Atomic uint64_t virtual_ns;    /* compute: virtual time of the last process served */
	_Atomic uint64_t busy_until_ns; /* compute: when what was paid for so far has run, one thing after the other */
	_Atomic uint64_t paid_reserved[5];
};

struct region {
	_Atomic uint64_t identity; /* REGION_MAGIC, set once */
	_Atomic uint32_t version;
	_Atomic uint32_t size;
	_Atomic uint32_t slot_high_water; /* slots below it may be in use; only grows */
	_Atomic uint32_t device_count;
	_Atomic uint64_t priority;
	uint64_t reserved[12];
	struct region_device devices[REGION_DEVICES];
	struct region_slot slots[REGION_SLOTS];
};

#define REGION_BYTES sizeof(struct region)

_Static_assert(sizeof(struct region_use) == 64, "one cache line per process and device");
_Static_assert(offsetof(struct region_slot, use) == 192, "three cache lines of slot header");
_Static_assert(sizeof(struct region_slot) == 192 + 16 * 64, "a slot is its header and its uses");
_Static_assert(sizeof(struct region_device) == 192, "three cache lines per device");
_Static_assert(offsetof(struct region_device, turn) == 64, "reservations have their own line");
_Static_assert(offsetof(struct region_device, paid_until_ns) == 128, "the limiter has its own line");
_Static_assert(offsetof(struct region, devices) == 128, "devices start on a cache line");
_Static_assert(offsetof(struct region, slots) == 128 + 16 * 192, "slots start on a cache line");
_Static_assert(sizeof(struct region) == 128 + 16 * 192 + 1024 * 1216, "the region's size is part of its format");
_Static_assert(REGION_SLOTS == 1u << 10, "a turn keeps its winner in ten bits");
_Static_assert(ATOMIC_LLONG_LOCK_FREE == 2 && ATOMIC_INT_LOCK_FREE == 2, "words must be lock-free between processes");

#endif
