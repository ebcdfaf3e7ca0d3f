/* libFuzzer: a region full of a tenant's bytes. Everything that a process does with it ends, and stays within it. The
 * input is laid over the header, then over the two devices and the first slots that the calls below use. */
#include <string.h>
#include <sys/mman.h>

#include "attach.h"
#include "must.h"
#include "pace.h"
#include "reserve.h"

static uint64_t word(const uint8_t **data, size_t *size)
{
	uint64_t value = 0;
	const size_t length = *size < sizeof(value) ? *size : sizeof(value);

	memcpy(&value, *data, length);
	*data += length;
	*size -= length;
	return value;
}

static void lay(void *target, size_t room, const uint8_t **data, size_t *size)
{
	const size_t length = *size < room ? *size : room;

	memcpy(target, *data, length);
	*data += length;
	*size -= length;
}

static _Atomic uint64_t known;

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	const struct process_self self = process_self();
	struct region *region = attach_map_private();
	const uint64_t ask = word(&data, &size), limit = word(&data, &size), now = word(&data, &size);
	unsigned slot;

	MUST(region != NULL);
	lay(&region->identity, offsetof(struct region, devices), &data, &size);
	lay(&region->devices[1], 2 * sizeof(region->devices[1]), &data, &size);
	for (unsigned i = 0; i < 4 && size > 0; i++) {
		struct region_slot *other = &region->slots[i * 300];

		lay(other, offsetof(struct region_slot, external_bytes), &data, &size);
		lay(&other->use[1], 2 * sizeof(other->use[1]), &data, &size);
		if (process_owner_pid(other->owner) < 2) /* asking after them asks after us */
			atomic_store(&other->owner, 0);
	}
	slot = attach_take_slot(region, &self, NULL, -1);
	if (slot != NO_SLOT) {
		struct region_use *use = &region->slots[slot].use[1];

		if (reserve_take(region, 1, slot, ask & REGION_BYTES_MASK, 0, limit)) {
			(void)reserve_give(region, 1, slot, ask & 0xffffff);
			(void)reserve_take_spare(use, ask & 0xffff);
			MUST(reserve_held(use) <= REGION_BYTES_MASK);
			(void)reserve_give(region, 1, slot, now);
		}
		reserve_shut_spares(region, 1, slot);
		(void)reserve_total(region, 1);
		(void)pace_is_next(region, 1, slot, now);
		(void)pace_pay(&region->devices[1], &known, now, ask, 1 + (uint32_t)(limit % 99));
		pace_owe(&region->devices[1], &known, now, now, ask, 1 + (uint32_t)(limit % 99));
		(void)pace_join(&region->devices[1], ask);
		(void)attach_reap(region, &self, NULL);
	}
	MUST(munmap(region, sizeof(*region)) == 0);
	return 0;
}
