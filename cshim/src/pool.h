/* pool.h: memory in the order of a stream. The driver takes it for a pool in large pieces and keeps it there after a
 * free, so a pool is charged what the driver says it holds, not what was asked of it. */
#ifndef VGPU_POOL_H
#define VGPU_POOL_H

#include <stdint.h>

#include "shim.h"

/* Bring the charges of all pools to what they hold now. */
void pool_resample(struct shim *shim);

/* `bytes` that came from pool `number` were freed. */
void pool_freed(struct shim *shim, uint32_t number, uint64_t bytes);

#endif
