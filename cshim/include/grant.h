/* grant.h: what one container was given, as the node agent writes it on the host and the shim maps it read-only.
 *
 * The file is this struct, little-endian, nothing before it and nothing behind it that matters. Two parts:
 *   - what was granted (bytes GRANT_CHECKED_OFFSET to GRANT_LIVE_OFFSET), covered by `checksum`, a CRC-32 (zlib's);
 *   - live words, each written alone with one aligned store, outside the checksum.
 *
 * Writing it: into a temporary file that is renamed into place before the container starts. Changing it later (a
 * resize): in place, since a bind mount holds the inode. `generation` goes to the next odd number, the changed words
 * are written one aligned 8-byte write each, then the checksum, then `generation` to the next even number. A process
 * that runs reads only single words, so it sees the old limit or the new one; a process that starts waits for an even
 * generation and a checksum that agrees, and refuses to start without.
 */
#ifndef VGPU_GRANT_H
#define VGPU_GRANT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define GRANT_MAGIC          0x544e5247494d4148ull /* "HAMIGRNT" */
#define GRANT_VERSION        1u
#define GRANT_DEVICES        16u
#define GRANT_UUID_BYTES     64u
#define GRANT_POD_UID_BYTES  48u
#define GRANT_NAME_BYTES     64u
#define GRANT_PATH_BYTES     424u
#define GRANT_FIXED_PATH     "/usr/local/vgpu/grant"
#define GRANT_DIRECTORY      "/usr/local/vgpu/"
#define GRANT_MEMORY_CEILING (UINT64_C(1) << 44) /* the largest limit that can be counted: 16 TiB on one device */

enum grant_flag {
	GRANT_OVERSUBSCRIBE = 1u << 0,    /* where the card has no room left, cuMemAlloc falls back to managed memory */
	GRANT_FREE_IS_PHYSICAL = 1u << 1, /* reported free memory is bounded by what the card has free */
	GRANT_OOM_KILLER = 1u << 2,       /* a refused allocation kills the container's largest process */
	GRANT_REGION_MADE = 1u << 3,      /* the region is a file that the agent made and mounted: without it no process
					     starts */
};

enum grant_device_flag {
	GRANT_DEVICE_WHOLE = 1u << 0,            /* the whole card: calls pass straight through, nothing is counted */
	GRANT_DEVICE_MEMORY_UNLIMITED = 1u << 1, /* counted, not limited; memory_limit_bytes is 0 */
};

enum grant_core_policy {
	GRANT_CORE_DEFAULT = 0, /* the compute limit holds while `core_switch` is set */
	GRANT_CORE_FORCE = 1,
	GRANT_CORE_DISABLE = 2,
};

struct grant_device {
	char uuid[GRANT_UUID_BYTES];   /* "GPU-..." or "MIG-...", NUL-terminated */
	uint64_t memory_limit_bytes;   /* 1 .. GRANT_MEMORY_CEILING; 0 only with WHOLE or MEMORY_UNLIMITED */
	uint64_t started_with_bytes;   /* the limit when the container started: that value in the environment is the
					  agent's */
	uint64_t context_bytes;        /* charged per process for the driver's own context; 0 when not known */
	uint32_t sm_percent;           /* 1 .. 99 limits; 0 and 100 do not */
	uint32_t flags;                /* enum grant_device_flag */
	uint32_t started_with_percent; /* the compute share likewise; 0 when there was none */
	uint32_t reserved_word;
	uint64_t reserved[3];
};

struct grant {
	uint64_t magic;
	uint32_t version;
	uint32_t checksum;
	/* checked from here */
	uint32_t size; /* of this struct */
	uint32_t device_count;
	uint32_t flags;       /* enum grant_flag */
	uint32_t core_policy; /* enum grant_core_policy */
	uint32_t priority;    /* 0 is the highest */
	uint32_t reserved;
	char pod_uid[GRANT_POD_UID_BYTES];
	char container[GRANT_NAME_BYTES];
	char region_path[GRANT_PATH_BYTES]; /* inside the container; empty: CUDA_DEVICE_MEMORY_SHARED_CACHE names it */
	struct grant_device devices[GRANT_DEVICES];
	/* live from here */
	uint64_t generation;       /* even: settled; odd: being written */
	uint64_t blocked_until_ns; /* CLOCK_MONOTONIC: no kernel starts before; a lease, so a dead agent blocks nobody
				      for long */
	uint32_t core_switch;      /* 1: the default policy limits compute now */
	uint32_t live_reserved;
	uint64_t shared_until_ns; /* CLOCK_MONOTONIC: until then other containers use a device of this one too; a lease
				     likewise */
	uint16_t charge_permille[GRANT_DEVICES]; /* until then: how much of what a kernel takes at least is charged; 0:
						    all of it, 1000 */
	uint64_t overhead_bytes[GRANT_DEVICES];  /* what the driver uses beyond what the region accounts for, seen from
						    the host */
};

#define GRANT_CHECKED_OFFSET offsetof(struct grant, size)
#define GRANT_LIVE_OFFSET    offsetof(struct grant, generation)

_Static_assert(sizeof(struct grant_device) == 128, "two cache lines per device");
_Static_assert(offsetof(struct grant_device, memory_limit_bytes) == 64, "the limit is one aligned word");
_Static_assert(GRANT_CHECKED_OFFSET == 16, "magic, version and checksum stand before what is checked");
_Static_assert(offsetof(struct grant, devices) == 576, "devices start on a cache line");
_Static_assert(GRANT_LIVE_OFFSET == 576 + 16 * 128, "the live words start on a cache line");
_Static_assert(offsetof(struct grant, shared_until_ns) % 8 == 0, "a lease is one aligned word");
_Static_assert(offsetof(struct grant, overhead_bytes) == GRANT_LIVE_OFFSET + 64, "one cache line of live words");
_Static_assert(sizeof(struct grant) == 2816, "the grant's size is part of its format");

enum grant_fault {
	GRANT_OK,
	GRANT_TOO_SHORT,
	GRANT_NOT_A_GRANT,
	GRANT_OTHER_VERSION,
	GRANT_BEING_WRITTEN,
	GRANT_BAD_CHECKSUM,
	GRANT_BAD_FIELD,
};

/* The CRC-32 that zlib computes: polynomial 0xedb88320, reflected, inverted at both ends. */
static inline uint32_t grant_crc32(const void *bytes, size_t length)
{
	const unsigned char *at = bytes;
	uint32_t crc = ~0u;

	while (length-- > 0) {
		crc ^= *at++;
		for (int bit = 0; bit < 8; bit++)
			crc = (crc >> 1) ^ (0xedb88320u & (0u - (crc & 1u)));
	}
	return ~crc;
}

static inline uint32_t grant_checksum(const struct grant *grant)
{
	return grant_crc32((const char *)grant + GRANT_CHECKED_OFFSET, GRANT_LIVE_OFFSET - GRANT_CHECKED_OFFSET);
}

static inline bool grant_text_ends(const char *text, size_t room)
{
	for (size_t i = 0; i < room; i++)
		if (text[i] == '\0')
			return true;
	return false;
}

static inline bool grant_device_valid(const struct grant_device *device)
{
	const bool unlimited = (device->flags & (GRANT_DEVICE_WHOLE | GRANT_DEVICE_MEMORY_UNLIMITED)) != 0;

	if (!grant_text_ends(device->uuid, sizeof(device->uuid)) || device->uuid[0] == '\0')
		return false;
	if (unlimited != (device->memory_limit_bytes == 0))
		return false;
	return device->memory_limit_bytes <= GRANT_MEMORY_CEILING &&
	       device->started_with_bytes <= GRANT_MEMORY_CEILING && device->context_bytes <= GRANT_MEMORY_CEILING &&
	       device->sm_percent <= 100;
}

/* Judge a private copy of a grant file's first `length` bytes. Never reads outside it, whatever it holds. */
static inline enum grant_fault grant_judge(const struct grant *grant, size_t length)
{
	if (length < sizeof(*grant))
		return GRANT_TOO_SHORT;
	if (grant->magic != GRANT_MAGIC)
		return GRANT_NOT_A_GRANT;
	if (grant->version != GRANT_VERSION)
		return GRANT_OTHER_VERSION;
	if (grant->generation & 1)
		return GRANT_BEING_WRITTEN;
	if (grant->checksum != grant_checksum(grant))
		return GRANT_BAD_CHECKSUM;
	if (grant->size != sizeof(*grant) || grant->device_count == 0 || grant->device_count > GRANT_DEVICES ||
		grant->core_policy > GRANT_CORE_DISABLE ||
		!grant_text_ends(grant->region_path, sizeof(grant->region_path)))
		return GRANT_BAD_FIELD;
	for (uint32_t i = 0; i < grant->device_count; i++)
		if (!grant_device_valid(&grant->devices[i]))
			return GRANT_BAD_FIELD;
	return GRANT_OK;
}

static inline const char *grant_fault_text(enum grant_fault fault)
{
	static const char *const texts[] = {
		[GRANT_OK] = "is valid",
		[GRANT_TOO_SHORT] = "is too short",
		[GRANT_NOT_A_GRANT] = "is not a grant file",
		[GRANT_OTHER_VERSION] = "has another version than this library",
		[GRANT_BEING_WRITTEN] = "was left half written",
		[GRANT_BAD_CHECKSUM] = "does not match its checksum",
		[GRANT_BAD_FIELD] = "has a field out of range",
	};
	return texts[fault];
}

#endif
