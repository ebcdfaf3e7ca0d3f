/* pool.h: memory in the order of a stream. The driver takes it for a pool in large pieces and keeps it there after a
 * free, so a pool is charged what the driver says it holds, not what was asked of it. */
#ifndef VGPU_POOL_H
#define VGPU_POOL_H

#include <stdint.h>

#include "shim.h"

/* Bring the charges of all pools to what they hold now. */
void pool_resample(struct shim *shim);

/* The same, after what the pools of a row keep and nobody uses was given back: before anything there is refused. */
void pool_trim(struct shim *shim, int row);

/* `bytes` that came from pool `number` were freed. */
void pool_freed(struct shim *shim, uint32_t number, uint64_t bytes);

#endif
