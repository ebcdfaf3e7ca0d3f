/* shim.h: one process's state: its grant, its slot, its devices.
 *
 * A process attaches at its first call that matters (not when it starts, nor at a look-up). Everything that must not be
 * inherited lies in pages that the kernel wipes at fork, so a child starts unattached, with free locks and empty
 * tables.
 *
 * A `row` is a device's place in the grant, in the region, and in every array here. Devices are matched by UUID, once.
 */
#ifndef VGPU_SHIM_H
#define VGPU_SHIM_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <time.h>

#include "attach.h"
#include "grant.h"
#include "hooks.h"
#include "lock.h"
#include "process.h"
#include "region.h"
#include "table.h"
#include "uuid.h"

enum {
	ROW_NONE = -1,   /* nothing is counted or limited */
	ROW_DENIED = -2, /* a device that the grant does not name */
	ORDINALS = 64,   /* devices that the driver may show */
	CONTEXTS = 128,  /* contexts remembered with their device */
	POOL_CHUNK = 64, /* memory pools are remembered in so many pieces of so many */
	POOL_CHUNKS = 1024,
	NVML_HANDLES = 64,
	COSTS = 1024, /* kernels whose cost is known at a time */
	SAMPLES = 64, /* measurements under way */
};

enum shim_state {
	SHIM_FRESH = 0,
	SHIM_ATTACHING,
	SHIM_ATTACHED,
	SHIM_INERT, /* no limits here: every call passes */
};

/* What of a device may be asked of the environment, beside the grant. */
struct ceiling {
	uint64_t memory_bytes; /* UINT64_MAX: none */
	uint32_t sm_percent;   /* 100: none */
};

/* On which terms this process may use its spare of a device. */
struct spare_terms {
	bool hold;
	uint64_t room_bytes; /* the limit, less the driver's overhead */
};

struct context_row {
	_Atomic uint64_t context;
	_Atomic int row;
};

struct pool {
	_Atomic uint64_t handle;
	uint32_t number; /* of its place, which never changes */
	_Atomic int row; /* ROW_NONE: of the host, or another process's */
	spin_lock lock;
	uint64_t charged_bytes;   /* what the region has for it */
	uint64_t live_bytes;      /* what was allocated from it and not freed */
	uint64_t promised_bytes;  /* of what it has free: to allocations under way, which reserve nothing */
	bool trimming;            /* what it has free is being given back: none of it is promised */
	_Atomic uint64_t version; /* counts what was done with it */
	_Atomic bool destroyed;
};

/* What a kernel costs, learned. */
struct cost {
	_Atomic uint64_t key; /* 0: the place is free */
	_Atomic uint64_t shape;
	_Atomic uint64_t nanoseconds; /* 0: not known yet */
	_Atomic uint64_t low_ns;      /* the least measurement of the last window (PACE_WINDOW); 0: none yet */
	_Atomic uint64_t next_low_ns; /* of the one that is under way */
	_Atomic uint64_t variance;    /* of a measurement about the price, in square nanoseconds */
	_Atomic uint32_t rate;        /* of its launches so many in PACE_ALL are measured */
	_Atomic uint32_t launches;
	_Atomic uint32_t measured;
	_Atomic bool assumed; /* not measured, and replaced by the first measurement */
};

struct sample {
	CUevent start;
	CUevent end;
	uint64_t key;
	uint64_t shape;
	uint64_t launched_ns;
	uint64_t paid_ns;   /* the price at which it was launched */
	uint64_t others_ns; /* how long others of the container might keep it waiting */
	uint32_t payment;   /* the last one before it */
	uint32_t rate;      /* how likely it was to be measured, in PACE_ALL */
	int row;
	bool unpriced; /* paid for when it is measured */
	bool given_up; /* nobody waits for it any more */
};

struct legacy_region;

struct shim {
	_Atomic int state;
	_Atomic bool mapped; /* `rows` is filled */
	bool from_environment;
	bool oversubscribe;
	bool oom_killer;
	uint32_t core_policy;
	struct process_self self;
	struct grant *grant; /* the file, read-only, or a private page filled from the environment */
	struct region *region;
	char region_path[512]; /* empty: a private region */
	unsigned slot;
	struct region_slot *own;      /* the slot itself */
	struct legacy_region *legacy; /* NULL: not written */

	int device_count;
	int single_row; /* the only row that a kernel can run on, or ROW_NONE: ask the driver each time */
	int rows[ORDINALS];
	struct uuid uuids[GRANT_DEVICES];
	struct ceiling ceilings[GRANT_DEVICES];
	struct ceiling fallback; /* environment, for every device that has none of its own */

	spin_lock reserve_locks[GRANT_DEVICES];
	uint64_t held_bytes[GRANT_DEVICES];            /* what this process has in use, whatever the region says */
	_Atomic uint64_t paid_until_ns[GRANT_DEVICES]; /* the furthest that it has paid */
	int64_t clock_ahead_ns;                        /* of the machine's, in this process's time namespace */
	struct spare_terms spares[GRANT_DEVICES];
	struct context_row contexts[CONTEXTS];
	_Atomic uint32_t context_counts[GRANT_DEVICES];
	_Atomic uint64_t context_charges[GRANT_DEVICES];
	struct table primaries; /* by device + 1: how often it is retained */
	struct table pointers;
	struct table arrays;
	struct table handles;  /* of VMM: handle -> block */
	struct table mappings; /* of VMM: address -> block */
	struct table blocks;   /* of VMM: what is charged */
	uint64_t last_block;
	struct table array_maps;     /* places of sparse arrays -> block; `scope` is the array */
	_Atomic uint32_t exported;   /* blocks that were exported */
	struct table graphs;         /* executable graphs that allocate: which devices, and on each how much */
	struct table graph_pointers; /* what they allocate -> the graph (scope) */
	struct table managed;        /* managed memory that was fetched to another device, charged there too */
	struct table externals;
	_Atomic uint32_t pools_used;
	struct pool *_Atomic pool_chunks[POOL_CHUNKS];
	struct table pool_numbers; /* by handle: its place + 1, in `tag` */
	struct {
		_Atomic uint64_t handle;
		_Atomic int row;
	} nvml_handles[NVML_HANDLES];
	_Atomic uint64_t graph_charges[GRANT_DEVICES];
	spin_lock vmm_lock;
	spin_lock context_lock;
	_Atomic int captures;       /* streams being captured */
	_Atomic uint64_t looked_ns; /* when this process last looked for dead ones before it showed a figure */

	_Atomic uint32_t payments[GRANT_DEVICES];      /* how often this process has paid */
	_Atomic int64_t credit_ns[GRANT_DEVICES];      /* device time paid for and not used */
	_Atomic uint64_t served_ns[GRANT_DEVICES];     /* this process's virtual time */
	_Atomic uint64_t busy_until_ns[GRANT_DEVICES]; /* when what it paid for has run */
	_Atomic uint64_t random;                       /* chooses which launches are measured */
	struct cost costs[COSTS];
	spin_lock sample_lock;
	_Atomic int samples_open;
	_Atomic uint64_t unpriced_ns; /* what kernels cost of late that ran at no known price; 0: none yet */
	struct sample samples[SAMPLES];
};

extern struct shim *shim_pages; /* NULL before the first attach of this process's ancestors */

/* Show how many look-ups have passed; called by look-ups, so it starts nothing. */
void shim_show_passed(void);

/* Attach if this process has not; NULL when it has no limits. */
struct shim *shim_attach(void);

static inline struct shim *shim_get(void)
{
	struct shim *shim = shim_pages;

	if (__builtin_expect(shim != NULL, 1)) {
		const int state = atomic_load_explicit(&shim->state, memory_order_acquire);

		if (__builtin_expect(state == SHIM_ATTACHED, 1))
			return shim;
		if (state == SHIM_INERT)
			return NULL;
	}
	return shim_attach();
}

/* CLOCK_MONOTONIC of the machine, whatever this process's time namespace. */
static inline uint64_t shim_now_ns(const struct shim *shim)
{
	struct timespec now = {0};

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)((int64_t)now.tv_sec * 1000000000 + now.tv_nsec - shim->clock_ahead_ns);
}

/* Put right what the region says of this process, where others have written over it: its slot, and what it has in use
 * on `row`, whose lock the caller holds. */
void shim_mend(struct shim *shim, int row);

/* Show the grant's limits in the region, for readers. */
void shim_publish_limits(struct shim *shim);

/* Free what dead processes of the container held. */
void shim_reap(struct shim *shim);

/* The same, if that was not done a moment ago: for figures, which a program may ask for all the time. */
void shim_reap_now_and_then(struct shim *shim);

/* The row of a device, of the current context, of NVML's device. ROW_NONE where nothing is to be counted. */
int shim_row_of_device(struct shim *shim, CUdevice device);
int shim_row_of_location(struct shim *shim, const CUmemLocation *location);
int shim_row_of_context(struct shim *shim, uint64_t *context);
int shim_row_of_other_context(struct shim *shim, CUcontext context);
int shim_row_of_nvml(struct shim *shim, nvmlDevice_t device);

/* Where a stream's work runs and its memory comes from: on its own device, whichever is current. */
int shim_row_of_stream(struct shim *shim, CUstream stream);
bool shim_device_of_stream(struct shim *shim, CUstream stream, CUdevice *device);

/* Whether what goes into the stream now is recorded into a graph instead of done. */
bool shim_is_capturing(const struct shim *shim, CUstream stream, bool per_thread);

/* While a stream is captured some calls are refused and spoil the capture, even from another thread, unless the calling
 * thread has said that it knows what it does. So each such call of our own stands between these two, and is not made
 * where `shim_may_ask` says no: a capture is open, and the driver is too old for that. */
struct relaxed {
	bool done;
	CUstreamCaptureMode mode;
};
bool shim_may_ask(const struct shim *shim);
struct relaxed shim_relax(void);
void shim_restore(struct relaxed relaxed);

/* Make the stream's context current where it is not; `shim_leave_stream` undoes what was done. */
bool shim_enter_stream(struct shim *shim, CUstream stream);
void shim_leave_stream(bool entered);

void shim_forget_context(struct shim *shim, CUcontext context);

/* Fill `rows`, once the driver answers; false before cuInit. */
bool shim_map_devices(struct shim *shim);

static inline struct grant_device *shim_device(struct shim *shim, int row)
{
	return &shim->grant->devices[row];
}

/* The memory limit of a row now, UINT64_MAX for none. */
static inline uint64_t shim_memory_limit(struct shim *shim, int row)
{
	const uint64_t granted = __atomic_load_n(&shim_device(shim, row)->memory_limit_bytes, __ATOMIC_RELAXED);
	const uint64_t ceiling = shim->ceilings[row].memory_bytes;

	return granted == 0 || granted > ceiling ? ceiling : granted;
}

/* The compute share of a row now, 1 to 99, or 100 where nothing limits it. */
static inline uint32_t shim_sm_percent(struct shim *shim, int row)
{
	uint32_t percent = __atomic_load_n(&shim_device(shim, row)->sm_percent, __ATOMIC_RELAXED);
	const uint32_t ceiling = shim->ceilings[row].sm_percent;

	percent = percent == 0 || percent > ceiling ? ceiling : percent;
	if (percent >= 100 || shim->core_policy == GRANT_CORE_DISABLE)
		return 100;
	if (shim->core_policy == GRANT_CORE_DEFAULT && !__atomic_load_n(&shim->grant->core_switch, __ATOMIC_RELAXED))
		return 100;
	return percent;
}

static inline struct region_use *shim_use(struct shim *shim, int row)
{
	return &shim->own->use[row];
}

#endif
