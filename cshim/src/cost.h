/* cost.h: what a kernel costs, learned by measuring. */
#ifndef VGPU_COST_H
#define VGPU_COST_H

#include <stdbool.h>
#include <stdint.h>

#include "shim.h"

struct launch {
	struct shim *shim;
	int row;
	uint64_t key;         /* tells kernels of different cost apart; never 0 */
	uint64_t launched_ns; /* CLOCK_MONOTONIC, where it is unpriced */
	bool unpriced; /* it runs before anybody knows what it costs, and is paid for when it has been measured */
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

/* A handle has ended; the next one of its value is another kernel. */
void cost_forget(struct shim *shim, uint64_t key);

#endif
