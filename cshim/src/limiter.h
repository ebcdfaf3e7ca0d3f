/* limiter.h: a launch's way through the compute limit. */
#ifndef VGPU_LIMITER_H
#define VGPU_LIMITER_H

#include "charge.h"
#include "cost.h"
#include "shim.h"

/* What tells kernels of different cost apart: a function and its grid, exactly, or an executable graph. */
struct work {
	uint64_t key;
	uint64_t shape;
};

/* Where a launch may be limited: wait for its turn, pay for it, and prepare to measure it. */
void limiter_enter(struct launch *launch, struct work work, CUstream stream, bool per_thread);
CUresult limiter_leave(struct launch *launch, CUresult result);

/* The row that a launch into `stream` runs on, below zero for none. */
static inline int launch_row(struct shim *shim, CUstream stream)
{
	return __builtin_expect(shim->single_row >= 0, 1) ? shim->single_row : shim_row_of_stream(shim, stream);
}

/* Called before every launch: a few loads, and one store that says this process is active. True: nothing limits it. */
static inline bool launch_is_free(CUstream stream)
{
	struct shim *shim = shim_get();
	struct region_use *use;
	int row;

	if (__builtin_expect(shim == NULL, 0))
		return true;
	row = launch_row(shim, stream);
	if (__builtin_expect(row < 0, 0))
		return true;
	use = shim_use(shim, row);
	/* Threads may lose a count to each other: what matters is that it changes. */
	atomic_store_explicit(
		&use->launches, atomic_load_explicit(&use->launches, memory_order_relaxed) + 1, memory_order_relaxed);
	return shim_sm_percent(shim, row) == 100 && shim->legacy == NULL &&
	       __atomic_load_n(&shim->grant->blocked_until_ns, __ATOMIC_RELAXED) == 0;
}

#endif
