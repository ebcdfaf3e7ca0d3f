/* memory.h: what the kinds of memory of the fake driver share. */
#ifndef FAKE_MEMORY_H
#define FAKE_MEMORY_H

#include <pthread.h>
#include <stdint.h>

#include "table.h"

#define FAKE_PIECE (UINT64_C(2) << 20) /* pools, graphs and blocks come in multiples of it */

enum { FROM_CARD = 1, FROM_POOL, FROM_GRAPH }; /* kinds of an entry of fake_pointers */

extern struct table fake_pointers;
extern struct table fake_arrays;
extern pthread_mutex_t fake_memory_lock;

static inline uint64_t fake_round_up(uint64_t bytes, uint64_t unit)
{
	return (bytes + unit - 1) / unit * unit;
}

/* `bytes` of the pool `number` are free again. */
void fake_pool_return(uint32_t number, uint64_t bytes);

#endif
