/* reserve.h: taking room on a device, exactly, among processes that may die between any two instructions. Pure: memory
 * of the region only, no system call, no lock between processes.
 *
 * What is in use on a device is the sum of its slots' `used` words. To take room a process
 *
 *   1. reads `turn`, which names the last reservation and who won it, and settles that one (see below);
 *   2. adds up the slots, and gives up if its ask does not fit and `turn` has not moved meanwhile;
 *   3. writes down what its own word will be (`next`) and which turn it tries for (`claim`);
 *   4. takes the turn with one compare-and-swap. Only one process can; the others begin again.
 *
 * The compare-and-swap is the reservation. Bringing the winner's `used` up to `next` is settling, and whoever comes
 * next does it for a winner that has not: so a winner that is stopped or killed between 4 and its own settling is
 * counted all the same, and one that is killed before 4 is not. Settling twice changes nothing, since `used` carries a
 * count of its changes. Giving back is an atomic subtraction in one's own word.
 *
 * Invariant: at every turn, the sum of the words, once settled, is what was admitted at that turn less what was given
 * back since. Two processes are therefore never both admitted into room for one, and of two, one always is.
 *
 * Within a process, one thread at a time reserves or gives back on a device (the caller's lock, in private memory).
 */
#ifndef VGPU_RESERVE_H
#define VGPU_RESERVE_H

#include <stdbool.h>
#include <stdint.h>

#include "quota.h"
#include "region.h"

static inline uint64_t used_bytes(uint64_t word)
{
	return word & REGION_BYTES_MASK;
}

static inline uint64_t used_changed(uint64_t word, uint64_t bytes)
{
	return (((word >> REGION_BYTES_BITS) + 1) << REGION_BYTES_BITS) | (bytes & REGION_BYTES_MASK);
}

static inline unsigned region_slots_in_use(const struct region *region)
{
	const uint32_t high = atomic_load_explicit(&region->slot_high_water, memory_order_acquire);

	return high < REGION_SLOTS ? high : REGION_SLOTS;
}

/* Complete the reservation that won `turn`, if its winner has not done so itself. */
static inline void reserve_settle(struct region *region, unsigned device, uint64_t turn)
{
	struct region_use *use = &region->slots[turn & (REGION_SLOTS - 1)].use[device];
	const uint64_t number = turn >> 10;
	uint64_t used, next;

	if (number == 0 || atomic_load_explicit(&use->claim, memory_order_acquire) != number)
		return;
	used = atomic_load_explicit(&use->used, memory_order_acquire);
	next = atomic_load_explicit(&use->next, memory_order_acquire);
	if (atomic_load_explicit(&use->claim, memory_order_acquire) != number)
		return; /* its owner has gone on: `next` may belong to another turn */
	if (next >> REGION_BYTES_BITS == used_changed(used, 0) >> REGION_BYTES_BITS)
		atomic_compare_exchange_strong(&use->used, &used, next);
}

static inline uint64_t reserve_sum(const struct region *region, unsigned device)
{
	const unsigned slots = region_slots_in_use(region);
	uint64_t sum = 0;

	for (unsigned i = 0; i < slots; i++)
		sum += used_bytes(atomic_load_explicit(&region->slots[i].use[device].used, memory_order_acquire));
	return sum;
}

/* What is in use on `device`, every won reservation included. */
static inline uint64_t reserve_total(struct region *region, unsigned device)
{
	reserve_settle(region, device, atomic_load_explicit(&region->devices[device].turn, memory_order_acquire));
	return reserve_sum(region, device);
}

/* Take `bytes` for slot `slot`, if they stay within `limit_bytes` with `overhead_bytes` counted as used. */
static inline bool reserve_take(struct region *region, unsigned device, unsigned slot, uint64_t bytes,
	uint64_t overhead_bytes, uint64_t limit_bytes)
{
	struct region_use *use = &region->slots[slot].use[device];
	_Atomic uint64_t *turn_word = &region->devices[device].turn;
	uint64_t turn = atomic_load_explicit(turn_word, memory_order_acquire);

	if (bytes > REGION_BYTES_MASK)
		return false;
	for (;;) {
		uint64_t total, used, won, seen;

		reserve_settle(region, device, turn);
		total = reserve_sum(region, device);
		seen = atomic_load_explicit(turn_word, memory_order_acquire);
		if (seen != turn) {
			turn = seen;
			continue;
		}
		if (!quota_admits(quota_add(total, overhead_bytes), bytes, limit_bytes) ||
			!quota_admits(total, bytes, REGION_BYTES_MASK))
			return false;
		won = ((turn >> 10) + 1) << 10 | slot;
		used = atomic_load_explicit(&use->used, memory_order_relaxed);
		atomic_store_explicit(&use->next, used_changed(used, used_bytes(used) + bytes), memory_order_release);
		atomic_store_explicit(&use->claim, won >> 10, memory_order_release);
		if (atomic_compare_exchange_strong(turn_word, &turn, won)) {
			reserve_settle(region, device, won);
			atomic_store_explicit(&use->claim, 0, memory_order_release);
			return true;
		}
		atomic_store_explicit(&use->claim, 0, memory_order_release);
	}
}

/* Give `bytes` of slot `slot` back; never below zero. */
static inline void reserve_give(struct region *region, unsigned device, unsigned slot, uint64_t bytes)
{
	_Atomic uint64_t *word = &region->slots[slot].use[device].used;
	uint64_t used = atomic_load_explicit(word, memory_order_relaxed);
	uint64_t left;

	do
		left = quota_left(bytes, used_bytes(used));
	while (!atomic_compare_exchange_weak(word, &used, used_changed(used, left)));
}

/* Charge `bytes` that the driver has already taken, limit or not. */
static inline void reserve_force(struct region *region, unsigned device, unsigned slot, uint64_t bytes)
{
	(void)reserve_take(region, device, slot, bytes, 0, UINT64_MAX);
}

#endif
