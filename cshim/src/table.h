/* table.h: what this process has allocated, by pointer or handle: one hash probe to find, however many there are. */
#ifndef VGPU_TABLE_H
#define VGPU_TABLE_H

#include <stdbool.h>
#include <stdint.h>

#include "lock.h"

enum { TABLE_SHARDS = 64 };

struct table_entry {
	uint64_t key; /* never 0 */
	uint64_t bytes;
	uint64_t scope; /* the context it goes with, 0 for none */
	uint32_t tag;   /* what the table's user wants to know of it */
	uint16_t device;
	uint16_t kind;
};

struct table_shard {
	spin_lock lock;
	uint32_t room; /* a power of two, or 0 before the first entry */
	uint32_t count;
	struct table_entry *entries;
} __attribute__((aligned(64)));

struct table {
	struct table_shard shards[TABLE_SHARDS];
};

/* Add an entry, replacing one with its key. False when there is no memory for it. */
bool table_put(struct table *table, const struct table_entry *entry);

/* Take the entry with `key` out. False when there is none: then `*entry` is left as it was. */
bool table_take(struct table *table, uint64_t key, struct table_entry *entry);

bool table_get(struct table *table, uint64_t key, struct table_entry *entry);

/* Take out, one per call, an entry of `scope`. False when none is left. */
bool table_take_scope(struct table *table, uint64_t scope, struct table_entry *entry);

/* The entry whose [key, key + bytes) holds `address`. Looks at every entry: for rare calls. */
bool table_find_range(struct table *table, uint64_t address, struct table_entry *entry);

#endif
