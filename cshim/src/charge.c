/* charge.c: what is counted against a share, and what is tried before an allocation is refused. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>

#include "charge.h"
#include "legacy.h"
#include "log.h"
#include "pool.h"
#include "reserve.h"

__thread int charge_nested __attribute__((tls_model("initial-exec")));

static const void *library_of(const void *address)
{
	Dl_info info;

	return dladdr(address, &info) != 0 ? info.dli_fbase : NULL;
}

void charge_called_from(const void *caller)
{
	if (library_of(caller) != library_of((const void *)driver.cuInit))
		charge_nested = 0;
}

static uint64_t overhead(struct shim *shim, int row)
{
	return __atomic_load_n(&shim->grant->overhead_bytes[row], __ATOMIC_RELAXED);
}

/* The beginning of a change: the next thread waits, and what others have written over is put right. */
static void changing(struct shim *shim, int row)
{
	const struct region_use *use = shim_use(shim, row);

	spin_take(&shim->reserve_locks[row]);
	if (__builtin_expect(
		    reserve_held(use) != shim->held_bytes[row] ||
			    atomic_load_explicit(&shim->own->owner, memory_order_relaxed) != shim->self.owner ||
			    atomic_load_explicit(&shim->region->identity, memory_order_relaxed) != REGION_MAGIC,
		    0))
		shim_mend(shim, row);
}

/* The end of a change by `more` less `less` bytes: show it, and let the next thread in. */
static void settled(struct shim *shim, int row, uint64_t more, uint64_t less)
{
	shim->held_bytes[row] = quota_left(less, quota_add(shim->held_bytes[row], more));
	if (__builtin_expect(shim->legacy != NULL, 0))
		legacy_show(shim, row);
	spin_give(&shim->reserve_locks[row]);
}

/* A spare may be used while nothing has changed since a reservation found room beside it: neither the limit and the
 * driver's overhead, nor that all is within them. A limit that the environment lowers for this process alone is not
 * what others keep to, so there each reservation is judged by itself. */
static bool take(struct shim *shim, int row, uint64_t bytes)
{
	const uint64_t limit = shim_memory_limit(shim, row), beyond = overhead(shim, row);
	const uint64_t room = quota_left(beyond, limit);
	struct spare_terms *terms = &shim->spares[row];
	bool taken;

	changing(shim, row);
	if (__builtin_expect(quota_add(shim->held_bytes[row], bytes) > room, 0)) { /* whatever the region says */
		settled(shim, row, 0, 0);
		return false;
	}
	taken = terms->hold && terms->room_bytes == room && reserve_take_spare(shim_use(shim, row), bytes);
	if (!taken) {
		taken = reserve_take(shim->region, (unsigned)row, shim->slot, bytes, beyond, limit);
		*terms = (struct spare_terms){
			.hold = taken && shim->ceilings[row].memory_bytes == UINT64_MAX, .room_bytes = room};
	}
	settled(shim, row, taken ? bytes : 0, 0);
	return taken;
}

/* The process that holds most on the row is killed, this one if it is the one. */
static void kill_largest(struct shim *shim, int row)
{
	uint64_t most = 0, owner = 0;

	for (unsigned i = 0; i < region_slots_in_use(shim->region); i++) {
		struct region_slot *slot = &shim->region->slots[i];
		const uint64_t used = reserve_held(&slot->use[row]);

		if (used > most && atomic_load(&slot->namespace) == shim->self.namespace) {
			most = used;
			owner = atomic_load(&slot->owner);
		}
	}
	if (process_owner_pid(owner) == 0)
		return;
	log_line(LOG_ERROR, "out of memory on device %s: killing process %u, which holds %llu MiB",
		shim_device(shim, row)->uuid, process_owner_pid(owner), (unsigned long long)(most >> 20));
	(void)kill((pid_t)process_owner_pid(owner), SIGKILL);
}

bool charge_take(struct shim *shim, int row, uint64_t bytes)
{
	if (bytes == 0) /* takes nothing, so it fits, also where the use is above the limit */
		return true;
	if (__builtin_expect(take(shim, row, bytes), 1))
		return true;
	/* Before it is refused: pools may keep what nobody uses, and processes have died. */
	pool_trim(shim, row);
	shim_reap(shim);
	if (take(shim, row, bytes))
		return true;
	atomic_fetch_add(&shim->region->devices[row].refused, 1);
	if (shim->oom_killer && bytes <= shim_memory_limit(shim, row)) /* what never fits is worth nobody's life */
		kill_largest(shim, row);
	log_line(LOG_WARNING, "%llu MiB more do not fit into the limit of %llu MiB on device %s, %llu MiB are in use",
		(unsigned long long)(bytes >> 20), (unsigned long long)(shim_memory_limit(shim, row) >> 20),
		shim_device(shim, row)->uuid, (unsigned long long)(charge_used(shim, row) >> 20));
	return false;
}

void charge_force(struct shim *shim, int row, uint64_t bytes)
{
	changing(shim, row);
	reserve_force(shim->region, (unsigned)row, shim->slot, bytes);
	shim->spares[row].hold = false;
	if (charge_used(shim, row) > shim_memory_limit(shim, row))
		reserve_shut_spares(shim->region, (unsigned)row, shim->slot); /* nobody has room now, kept or not */
	settled(shim, row, bytes, 0);
}

void charge_give(struct shim *shim, int row, uint64_t bytes)
{
	changing(shim, row);
	shim->spares[row].hold &= reserve_give(shim->region, (unsigned)row, shim->slot, bytes);
	settled(shim, row, 0, bytes);
}

uint64_t charge_used(struct shim *shim, int row)
{
	return quota_add(reserve_total(shim->region, (unsigned)row), overhead(shim, row));
}

uint64_t charge_shown(struct shim *shim, int row)
{
	if (reserve_total(shim->region, (unsigned)row) != reserve_held(shim_use(shim, row)))
		shim_reap_now_and_then(shim); /* others hold something: are they still there? */
	return charge_used(shim, row);
}

bool charge_begin_on(struct charge *charge, struct shim *shim, int row, uint64_t bytes)
{
	*charge = (struct charge){.row = row, .bytes = bytes};
	if (row == ROW_NONE)
		return true;
	if (row == ROW_DENIED || !charge_take(shim, row, bytes))
		return false;
	charge->shim = shim;
	charge_nested = 1;
	return true;
}

bool charge_begin(struct charge *charge, uint64_t bytes)
{
	struct shim *shim = charge_nested ? NULL : shim_get();
	uint64_t context = 0;

	if (shim == NULL)
		return charge_begin_on(charge, NULL, ROW_NONE, bytes);
	if (!charge_begin_on(charge, shim, shim_row_of_context(shim, &context), bytes))
		return false;
	charge->context = context;
	return true;
}

void charge_correct(struct charge *charge, CUresult result, uint64_t bytes)
{
	if (charge->shim == NULL)
		return;
	charge_nested = 0;
	if (result != CUDA_SUCCESS)
		bytes = 0;
	if (bytes > charge->bytes)
		charge_force(charge->shim, charge->row, bytes - charge->bytes);
	else if (bytes < charge->bytes)
		charge_give(charge->shim, charge->row, charge->bytes - bytes);
	charge->bytes = bytes;
}

CUresult charge_settle(
	struct charge *charge, struct table *table, CUresult result, uint64_t key, uint64_t bytes, enum kind kind)
{
	struct table_entry entry = {
		.key = key,
		.bytes = bytes,
		.scope = charge->context,
		.device = (uint16_t)charge->row,
		.kind = (uint16_t)kind,
	};

	charge_correct(charge, result, bytes);
	/* Without memory for the entry the charge stays until the process ends: too much is counted, never too little.
	 */
	if (charge->shim != NULL && result == CUDA_SUCCESS && !table_put(table, &entry))
		log_line(LOG_ERROR, "no memory to remember an allocation: it stays charged until this process ends");
	return result;
}
