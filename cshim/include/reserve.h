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
 * count of its changes (modulo 2^20: a process that is stopped in the middle of settling for an exact multiple of 2^20
 * changes of that word could count a reservation twice, never lose one). Giving back is an atomic subtraction in one's
 * own word.
 *
 * Invariant: at every turn, the sum of the words, once settled, is what was admitted at that turn less what was given
 * back since. Two processes are therefore never both admitted into room for one, and of two, one always is.
 *
 * What a process frees it may keep as its `spare`, up to RESERVE_SPARE_MOST, and take again without a turn: then
 * neither touches a word that other processes write. A spare stays counted, so it takes room from others; whoever finds
 * no room shuts every spare first and counts again. Shutting is one compare-and-swap on the word from which the owner
 * takes by compare-and-swap too, so each byte is either taken or free. A shut spare is never opened again: it ends when
 * its owner next writes `used`, which gives that word another tag, and is then set to zero, since a tag has 20 bits and
 * comes round again after 2^20 changes.
 *
 * Invariant: what a slot counts for (`used`, less a spare that is shut) grows at turns alone, and is never less than
 * what its process has. So nobody is refused for a byte that is free, nor admitted for one that is not.
 *
 * Within a process, one thread at a time reserves or gives back on a device (the caller's lock, in private memory).
 */
#ifndef VGPU_RESERVE_H
#define VGPU_RESERVE_H

#include <stdbool.h>
#include <stdint.h>

#include "quota.h"
#include "region.h"

#define RESERVE_SPARE_MOST (UINT64_C(64) << 30) /* of a device, so that pairs of any size are fast */

enum { RESERVE_READS = 1000 }; /* more changes than that under a reader's eyes, and it takes what it has */

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

static inline bool spare_is_of(uint64_t spare, uint64_t used)
{
	return spare >> REGION_BYTES_BITS == used >> REGION_BYTES_BITS;
}

static inline bool spare_is_open(uint64_t spare, uint64_t used)
{
	return spare_is_of(spare, used) && (spare & REGION_SPARE_SHUT) == 0;
}

/* Both words of one moment. */
static inline void reserve_read(const struct region_use *use, uint64_t *used, uint64_t *spare)
{
	*used = atomic_load_explicit(&use->used, memory_order_acquire);
	for (int reads = 0; reads < RESERVE_READS; reads++) {
		const uint64_t before = *used;

		*spare = atomic_load_explicit(&use->spare, memory_order_acquire);
		*used = atomic_load_explicit(&use->used, memory_order_acquire);
		if (*used == before)
			break;
	}
}

/* What a slot has in use. */
static inline uint64_t reserve_held(const struct region_use *use)
{
	uint64_t used, spare;

	reserve_read(use, &used, &spare);
	return spare_is_of(spare, used) ? quota_left(spare & REGION_SPARE_MASK, used_bytes(used)) : used_bytes(used);
}

/* What is in use on `device`. */
static inline uint64_t reserve_total(struct region *region, unsigned device)
{
	const unsigned slots = region_slots_in_use(region);
	uint64_t sum = 0;

	reserve_settle(region, device, atomic_load_explicit(&region->devices[device].turn, memory_order_acquire));
	for (unsigned i = 0; i < slots; i++)
		sum += reserve_held(&region->slots[i].use[device]);
	return sum;
}

/* What counts against slot `self`: of each what it has in use, and of the others what is in their open spares. Says in
 * `spares` whether there is any of that. */
static inline uint64_t reserve_sum(const struct region *region, unsigned device, unsigned self, bool *spares)
{
	const unsigned slots = region_slots_in_use(region);
	uint64_t sum = 0;

	*spares = false;
	for (unsigned i = 0; i < slots; i++) {
		uint64_t used, spare, kept;

		reserve_read(&region->slots[i].use[device], &used, &spare);
		kept = spare_is_of(spare, used) ? spare & REGION_SPARE_MASK : 0;
		if (i != self && kept != 0 && spare_is_open(spare, used)) {
			*spares = true;
			kept = 0;
		}
		sum += quota_left(kept, used_bytes(used));
	}
	return sum;
}

/* Shut the spares of all but slot `self`: what is in them is free from now on. */
static inline void reserve_shut_spares(struct region *region, unsigned device, unsigned self)
{
	const unsigned slots = region_slots_in_use(region);

	for (unsigned i = 0; i < slots; i++) {
		struct region_use *use = &region->slots[i].use[device];
		uint64_t used, spare;

		reserve_read(use, &used, &spare);
		while (i != self && spare_is_open(spare, used) && (spare & REGION_SPARE_MASK) != 0 &&
			!atomic_compare_exchange_weak(&use->spare, &spare, spare | REGION_SPARE_SHUT))
			;
	}
}

/* Take `bytes` out of the slot's own spare, which is counted already. */
static inline bool reserve_take_spare(struct region_use *use, uint64_t bytes)
{
	const uint64_t used = atomic_load_explicit(&use->used, memory_order_relaxed);
	uint64_t spare = atomic_load_explicit(&use->spare, memory_order_relaxed);

	do
		if (!spare_is_open(spare, used) || (spare & REGION_SPARE_MASK) < bytes)
			return false;
	while (!atomic_compare_exchange_weak(&use->spare, &spare, spare - bytes));
	return true;
}

/* End a spare that went with an earlier `used`, before the tag of `used` comes round again. Only the slot's owner calls
 * this; a process that shuts the spare meanwhile fails its compare-and-swap, since the word has changed. */
static inline void reserve_end_spare(struct region_use *use)
{
	const uint64_t used = atomic_load_explicit(&use->used, memory_order_relaxed);
	const uint64_t spare = atomic_load_explicit(&use->spare, memory_order_relaxed);

	if (spare != 0 && !spare_is_of(spare, used))
		atomic_store_explicit(&use->spare, 0, memory_order_relaxed);
}

static inline bool reserve_fits(uint64_t total, uint64_t bytes, uint64_t overhead_bytes, uint64_t limit_bytes)
{
	return quota_admits(quota_add(total, overhead_bytes), bytes, limit_bytes) &&
	       quota_admits(total, bytes, REGION_BYTES_MASK);
}

/* Take `bytes` for slot `slot`, if they stay within `limit_bytes` with `overhead_bytes` counted as used. Its spare goes
 * into them. */
static inline bool reserve_take(struct region *region, unsigned device, unsigned slot, uint64_t bytes,
	uint64_t overhead_bytes, uint64_t limit_bytes)
{
	struct region_use *use = &region->slots[slot].use[device];
	_Atomic uint64_t *turn_word = &region->devices[device].turn;
	uint64_t turn = atomic_load_explicit(turn_word, memory_order_acquire);
	bool spares;

	if (bytes > REGION_BYTES_MASK)
		return false;
	for (int tries = 0;;) {
		uint64_t total, used, won, seen;

		reserve_settle(region, device, turn);
		total = reserve_sum(region, device, slot, &spares);
		seen = atomic_load_explicit(turn_word, memory_order_acquire);
		if (seen != turn) {
			turn = seen;
			continue;
		}
		if (!reserve_fits(total, bytes, overhead_bytes, limit_bytes)) {
			if (!spares || tries++ == RESERVE_READS)
				return false;
			reserve_shut_spares(region, device, slot);
			continue;
		}
		won = ((turn >> 10) + 1) << 10 | slot;
		used = atomic_load_explicit(&use->used, memory_order_relaxed);
		atomic_store_explicit(&use->next, used_changed(used, reserve_held(use) + bytes), memory_order_release);
		atomic_store_explicit(&use->claim, won >> 10, memory_order_release);
		if (atomic_compare_exchange_strong(turn_word, &turn, won)) {
			reserve_settle(region, device, won);
			atomic_store_explicit(&use->claim, 0, memory_order_release);
			reserve_end_spare(use);
			return true;
		}
		atomic_store_explicit(&use->claim, 0, memory_order_release);
	}
}

/* Give `bytes` of slot `slot` back; never below zero. Returns whether they were kept as its spare. */
static inline bool reserve_give(struct region *region, unsigned device, unsigned slot, uint64_t bytes)
{
	struct region_use *use = &region->slots[slot].use[device];
	uint64_t used = atomic_load_explicit(&use->used, memory_order_relaxed);
	uint64_t spare = atomic_load_explicit(&use->spare, memory_order_relaxed);

	for (;;) {
		const uint64_t kept = spare_is_of(spare, used) ? spare & REGION_SPARE_MASK : 0;
		const uint64_t more = quota_add(kept, bytes);

		if (more > RESERVE_SPARE_MOST || more > used_bytes(used) ||
			(spare_is_of(spare, used) && !spare_is_open(spare, used)))
			break;
		if (atomic_compare_exchange_weak(&use->spare, &spare, (used & ~REGION_BYTES_MASK) | more))
			return true;
	}
	/* From here on its spare can only be shut: what is in it goes along. */
	while (!atomic_compare_exchange_weak(
		&use->used, &used, used_changed(used, quota_left(bytes, reserve_held(use)))))
		;
	reserve_end_spare(use);
	return false;
}

/* Charge `bytes` that the driver has already taken, limit or not. */
static inline void reserve_force(struct region *region, unsigned device, unsigned slot, uint64_t bytes)
{
	(void)reserve_take(region, device, slot, bytes, 0, UINT64_MAX);
}

#endif
