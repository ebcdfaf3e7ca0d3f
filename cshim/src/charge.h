/* charge.h: one allocation's charge: reserve, call the driver, settle.
 *
 *	struct charge charge;
 *
 *	if (!charge_begin(&charge, ask_bytes))
 *		return CUDA_ERROR_OUT_OF_MEMORY;
 *	result = driver.something(...);
 *	return charge_settle(&charge, result, ...);
 *
 * Nothing is locked while the driver works. What the driver calls in between passes uncharged (`charge_nested`).
 */
#ifndef VGPU_CHARGE_H
#define VGPU_CHARGE_H

#include <stdbool.h>
#include <stdint.h>

#include "shim.h"

enum kind {
	KIND_DEVICE = 1, /* cuMemAlloc and its like */
	KIND_POOL,       /* in the order of a stream, charged with its pool; `tag` is the pool */
	KIND_ARRAY,
	KIND_MANAGED, /* may be fetched to other devices */
	KIND_LIMIT,   /* of a context, set by cuCtxSetLimit; kept among the arrays */
	KIND_UNCHARGED,
};

struct charge {
	struct shim *shim; /* NULL: nothing is counted */
	int row;
	uint64_t context;
	uint64_t bytes;
};

/* This process's state, as a function that stands for the driver's begins; NULL where nothing is charged. */
static inline struct shim *charge_shim(const void *caller)
{
	if (__builtin_expect(charge_nested != 0, 0))
		charge_called_from(caller);
	return charge_nested ? NULL : shim_get();
}

#define SHIM_HERE() charge_shim(__builtin_return_address(0))

/* Reserve `bytes` on the current context's device; false when they do not fit. */
bool charge_begin(struct charge *charge, uint64_t bytes);

/* Reserve on the device of `row`, as shim_row_of_device gives it. */
bool charge_begin_on(struct charge *charge, struct shim *shim, int row, uint64_t bytes);

/* After the driver: on failure give all back; on success correct the charge to `bytes`, what was really taken. */
void charge_correct(struct charge *charge, CUresult result, uint64_t bytes);

/* charge_correct, and remember the allocation by `key` in `table`. */
CUresult charge_settle(
	struct charge *charge, struct table *table, CUresult result, uint64_t key, uint64_t bytes, enum kind kind);

/* Plain bookkeeping on a row >= 0. */
bool charge_take(struct shim *shim, int row, uint64_t bytes);
void charge_force(struct shim *shim, int row, uint64_t bytes);
void charge_give(struct shim *shim, int row, uint64_t bytes);

/* What the container has in use on a row, as its own programs should see it: the driver's overhead included. */
uint64_t charge_used(struct shim *shim, int row);

/* The same for whoever only looks: what a dead process held is not in it for longer than a moment. */
uint64_t charge_shown(struct shim *shim, int row);

#endif
