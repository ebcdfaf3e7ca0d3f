/* cost.h: what a kernel costs, learned by measuring. */
#ifndef VGPU_COST_H
#define VGPU_COST_H

#include <stdbool.h>
#include <stdint.h>

#include "shim.h"

struct launch {
	struct shim *shim;
	int row;
	uint64_t key;         /* with `shape` it tells kernels of different cost apart; never 0 */
	uint64_t shape;       /* of the grid; 0 for a graph */
	uint64_t launched_ns; /* CLOCK_MONOTONIC, where it is measured */
	uint64_t paid_ns;
	uint64_t others_ns; /* how long other processes of the container may keep it waiting */
	uint32_t rate;
	uint32_t payment; /* the last one before it */
	bool unpriced;    /* it runs before anybody knows what it costs, and is paid for when it has been measured */
	bool sampled;
	bool per_thread;
	CUstream stream;
	CUevent start;
	CUevent end;
};

/* What the launch costs in nanoseconds of device time; 0, and `unpriced` set, if that is not known and it will be
 * measured. Waits where it has to for measurements under way. Says in `measure` whether the launch is to be measured.
 */
uint64_t cost_of(struct launch *launch, bool *measure);

/* Around the driver's launch, where it is to be measured. */
void cost_measure(struct launch *launch);
void cost_measured(struct launch *launch, CUresult result);

/* Look at every measurement under way once. */
void cost_collect(struct shim *shim);

/* Before more is paid for: wait until what was launched before the last payment has run, as far as it was measured.
 * Then no more is under way than two payments were for, also where a kernel has come to take longer than its price. */
void cost_catch_up(struct shim *shim, int row);

/* A handle has ended; the next one of its value is another kernel. */
void cost_forget(struct shim *shim, uint64_t key, uint64_t shape);

#endif
