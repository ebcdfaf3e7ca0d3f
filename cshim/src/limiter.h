/* limiter.h: a launch's way through the compute limit. */
#ifndef VGPU_LIMITER_H
#define VGPU_LIMITER_H

#include "charge.h"
#include "shim.h"

struct launch {
	struct shim *shim; /* NULL: not limited, nothing to do afterwards */
	int row;
	unsigned cost; /* place in the table of costs */
	bool sampled;
	bool per_thread;
	CUstream stream;
	CUevent start;
	CUevent end;
};

/* Under a limit: wait for this launch's turn, pay for it, and prepare to measure it. */
void limiter_enter(struct launch *launch, struct shim *shim, int row, uint64_t key);
void limiter_leave(struct launch *launch, CUresult result);

/* Called before every launch. `key` tells kernels of different cost apart. Without a limit: a few loads and one store. */
static inline void launch_begin(struct launch *launch, uint64_t key, CUstream stream, bool per_thread)
{
	struct shim *shim = shim_get();
	struct region_use *use;
	int row;

	launch->shim = NULL;
	if (__builtin_expect(shim == NULL, 0))
		return;
	row = shim->single_row;
	if (__builtin_expect(row < 0, 0)) {
		uint64_t context;

		row = shim_row_of_context(shim, &context);
		if (row < 0)
			return;
	}
	use = shim_use(shim, row);
	/* Threads may lose a count to each other: what matters is that it changes. */
	atomic_store_explicit(
		&use->launches, atomic_load_explicit(&use->launches, memory_order_relaxed) + 1, memory_order_relaxed);
	if (__builtin_expect(shim_sm_percent(shim, row) == 100, 1) &&
		__atomic_load_n(&shim->grant->blocked_until_ns, __ATOMIC_RELAXED) == 0)
		return;
	launch->stream = stream;
	launch->per_thread = per_thread;
	limiter_enter(launch, shim, row, key);
}

static inline CUresult launch_end(struct launch *launch, CUresult result)
{
	if (__builtin_expect(launch->shim != NULL, 0))
		limiter_leave(launch, result);
	return result;
}

#endif
