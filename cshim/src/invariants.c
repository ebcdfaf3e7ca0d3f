/* invariants.c: see invariants.h. A thread looks only while no other is in a call, and the others wait for it. */
#ifdef VGPU_CHECKS

#define _GNU_SOURCE
#include <dlfcn.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>

#include "charge.h"
#include "invariants.h"
#include "quota.h"

enum { LOOKING = -1000000 };

static _Atomic int calls;
static __thread int depth;

static uint64_t table_bytes(struct table *table, int row, bool pools)
{
	uint64_t sum = 0;

	for (unsigned i = 0; i < TABLE_SHARDS; i++)
		for (uint32_t at = 0; at < table->shards[i].room; at++) {
			const struct table_entry *entry = &table->shards[i].entries[at];

			if (entry->key != 0 && entry->device == row && (pools || entry->kind != KIND_POOL))
				sum += entry->bytes;
		}
	return sum;
}

static uint64_t pool_bytes(struct shim *shim, int row)
{
	uint64_t sum = 0;

	for (uint32_t i = 0; i < atomic_load(&shim->pools_used); i++) {
		struct pool *chunk = atomic_load(&shim->pool_chunks[i / POOL_CHUNK]);

		if (chunk != NULL && chunk[i % POOL_CHUNK].row == row)
			sum += chunk[i % POOL_CHUNK].charged_bytes;
	}
	return sum;
}

/* What the fake driver holds for this process on the device of a row; 0 with another driver. */
static uint64_t driver_bytes(struct shim *shim, int row)
{
	uint64_t (*own)(int) = NULL;

	*(void **)&own = real_dlsym(RTLD_DEFAULT, "fakeOwnBytes");
	for (int device = 0; own != NULL && device < shim->device_count; device++)
		if (shim->rows[device] == row)
			return own(device);
	return 0;
}

static void look(struct shim *shim)
{
	for (int row = 0; row < (int)shim->grant->device_count; row++) {
		const uint64_t remembered =
			table_bytes(&shim->pointers, row, false) + table_bytes(&shim->managed, row, true) +
			table_bytes(&shim->arrays, row, true) + table_bytes(&shim->blocks, row, true) +
			pool_bytes(shim, row) + atomic_load(&shim->graph_charges[row]) +
			atomic_load(&shim->context_charges[row]);
		const uint64_t driver_holds = driver_bytes(shim, row);

		if (remembered == shim->held_bytes[row] && (driver_holds <= remembered || shim->oversubscribe))
			continue;
		fprintf(stderr, "invariant: row %d: tables %llu, charged %llu, the driver holds %llu\n", row,
			(unsigned long long)remembered, (unsigned long long)shim->held_bytes[row],
			(unsigned long long)driver_holds);
		abort();
	}
}

int invariants_enter(void)
{
	int open = atomic_load(&calls);

	if (depth++ > 0)
		return 0;
	while (open < 0 || !atomic_compare_exchange_weak(&calls, &open, open + 1)) {
		if (open < 0)
			sched_yield();
		open = atomic_load(&calls);
	}
	return 0;
}

void invariants_leave(int *guard)
{
	struct shim *shim = shim_pages;
	int alone = 1;

	(void)guard;
	if (--depth > 0)
		return;
	if (shim != NULL && atomic_load(&shim->state) == SHIM_ATTACHED && atomic_load(&shim->mapped) &&
		atomic_compare_exchange_strong(&calls, &alone, LOOKING)) {
		look(shim);
		atomic_store(&calls, 1);
	}
	atomic_fetch_sub(&calls, 1);
}

#else

typedef int invariants_are_not_checked; /* a file is never empty */

#endif
