/* table.c: open addressing with linear probing, in shards of one lock each. An entry is deleted by moving its followers
 * up, so a probe never walks over what is gone. Memory comes from mmap: the program may have its own malloc. */
#define _GNU_SOURCE
#include <string.h>
#include <sys/mman.h>

#include "table.h"

enum { FIRST_ROOM = 128 };

static uint64_t mix(uint64_t key)
{
	key ^= key >> 33;
	key *= 0xff51afd7ed558ccdull;
	key ^= key >> 29;
	return key;
}

static struct table_shard *shard_of(struct table *table, uint64_t hash)
{
	return &table->shards[hash >> 58];
}

_Static_assert(TABLE_SHARDS == 64, "a shard is chosen by the top six bits of the hash");

/* The place of `key`, or the empty one where it would go. */
static uint32_t place_of(const struct table_shard *shard, uint64_t hash, uint64_t key)
{
	uint32_t at = (uint32_t)hash & (shard->room - 1);

	while (shard->entries[at].key != 0 && shard->entries[at].key != key)
		at = (at + 1) & (shard->room - 1);
	return at;
}

static struct table_entry *entries_new(uint32_t room)
{
	void *memory = mmap(
		NULL, room * sizeof(struct table_entry), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	return memory == MAP_FAILED ? NULL : memory;
}

static bool shard_grow(struct table_shard *shard)
{
	struct table_shard larger = {.room = shard->room == 0 ? FIRST_ROOM : shard->room * 2, .count = shard->count};

	larger.entries = entries_new(larger.room);
	if (larger.entries == NULL)
		return false;
	for (uint32_t i = 0; i < shard->room; i++)
		if (shard->entries[i].key != 0)
			larger.entries[place_of(&larger, mix(shard->entries[i].key), shard->entries[i].key)] =
				shard->entries[i];
	if (shard->entries != NULL)
		munmap(shard->entries, shard->room * sizeof(struct table_entry));
	shard->entries = larger.entries;
	shard->room = larger.room;
	return true;
}

static void shard_delete(struct table_shard *shard, uint32_t hole)
{
	const uint32_t mask = shard->room - 1;

	for (uint32_t at = (hole + 1) & mask; shard->entries[at].key != 0; at = (at + 1) & mask) {
		const uint32_t home = (uint32_t)mix(shard->entries[at].key) & mask;

		if (((at - home) & mask) < ((at - hole) & mask))
			continue; /* it would be moved before its home */
		shard->entries[hole] = shard->entries[at];
		hole = at;
	}
	shard->entries[hole].key = 0;
	shard->count--;
}

bool table_put(struct table *table, const struct table_entry *entry)
{
	const uint64_t hash = mix(entry->key);
	struct table_shard *shard = shard_of(table, hash);
	bool put = true;

	spin_take(&shard->lock);
	if (shard->count * 4 >= shard->room * 3)
		put = shard_grow(shard);
	if (put) {
		struct table_entry *place = &shard->entries[place_of(shard, hash, entry->key)];

		shard->count += place->key == 0;
		*place = *entry;
	}
	spin_give(&shard->lock);
	return put;
}

static bool table_look(struct table *table, uint64_t key, struct table_entry *entry, bool take)
{
	const uint64_t hash = mix(key);
	struct table_shard *shard = shard_of(table, hash);
	bool found = false;

	if (key == 0)
		return false;
	spin_take(&shard->lock);
	if (shard->count != 0) {
		const uint32_t place = place_of(shard, hash, key);

		found = shard->entries[place].key != 0;
		if (found)
			*entry = shard->entries[place];
		if (found && take)
			shard_delete(shard, place);
	}
	spin_give(&shard->lock);
	return found;
}

bool table_take(struct table *table, uint64_t key, struct table_entry *entry)
{
	return table_look(table, key, entry, true);
}

bool table_get(struct table *table, uint64_t key, struct table_entry *entry)
{
	return table_look(table, key, entry, false);
}

bool table_take_scope(struct table *table, uint64_t scope, struct table_entry *entry)
{
	bool found = false;

	for (unsigned i = 0; i < TABLE_SHARDS && !found; i++) {
		struct table_shard *shard = &table->shards[i];

		spin_take(&shard->lock);
		for (uint32_t at = 0; at < shard->room && !found; at++) {
			if (shard->entries[at].key == 0 || shard->entries[at].scope != scope)
				continue;
			found = true;
			*entry = shard->entries[at];
			shard_delete(shard, at);
		}
		spin_give(&shard->lock);
	}
	return found;
}

bool table_find_range(struct table *table, uint64_t address, struct table_entry *entry)
{
	bool found = false;

	for (unsigned i = 0; i < TABLE_SHARDS && !found; i++) {
		struct table_shard *shard = &table->shards[i];

		spin_take(&shard->lock);
		for (uint32_t at = 0; at < shard->room && !found; at++) {
			const struct table_entry *here = &shard->entries[at];

			found = here->key != 0 && address >= here->key && address - here->key < here->bytes;
			if (found)
				*entry = *here;
		}
		spin_give(&shard->lock);
	}
	return found;
}
