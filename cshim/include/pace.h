/* pace.h: holding a container to its share of a device's time. Pure: region memory and a clock reading, no system call.
 *
 * `paid_until_ns` is the moment at which all device time charged so far has been earned: a kernel of c nanoseconds at a
 * share of p percent moves it by c * 100 / p, and nothing starts while it lies in the future. That is one
 * compare-and-swap, needs no thread that refills anything, and a process that dies in the middle leaves a valid word.
 *
 * Among the processes of the container the one with the least service so far goes first (start-time fair queueing):
 * each that waits shows its virtual time in `waiting`, and one that was idle begins at the virtual time of the last one
 * served.
 */
#ifndef VGPU_PACE_H
#define VGPU_PACE_H

#include <stdbool.h>
#include <stdint.h>

#include "region.h"
#include "reserve.h"

#define PACE_BURST_NS (UINT64_C(20) * 1000 * 1000) /* what an idle container may catch up on */
#define PACE_HORIZON_NS                                                                                                \
	(UINT64_C(300) * 1000 * 1000 * 1000)          /* no debt is longer; further ahead than this is damage          \
						       */
#define PACE_OTHERS_NS (UINT64_C(1000) * 1000 * 1000) /* nobody waits for longer; more is damage */
#define PACE_CHUNK_NS  (UINT64_C(1000) * 1000)        /* device time that a process takes at once for short kernels */

static inline uint64_t pace_wall_ns(uint64_t device_ns, uint32_t percent)
{
	return device_ns > PACE_HORIZON_NS ? PACE_HORIZON_NS : device_ns * 100 / percent;
}

/* What `paid_until_ns` becomes when `device_ns` are charged that began at `began_ns`: nobody catches up on more than a
 * burst before that, damage is forgotten, and the debt has a bound. */
static inline uint64_t pace_charged(
	uint64_t paid_until_ns, uint64_t began_ns, uint64_t now_ns, uint64_t device_ns, uint32_t percent)
{
	const bool too_late = paid_until_ns < began_ns && began_ns - paid_until_ns > PACE_BURST_NS;
	const bool too_far = paid_until_ns > now_ns && paid_until_ns - now_ns > PACE_HORIZON_NS;
	const uint64_t from = too_late || too_far ? began_ns - PACE_BURST_NS : paid_until_ns;
	const uint64_t until = from + pace_wall_ns(device_ns, percent);

	return until < now_ns + PACE_HORIZON_NS ? until : now_ns + PACE_HORIZON_NS;
}

/* How far the container has paid: the region says it, unless it was written over, for this process knows how far it has
 * paid itself (`known`). */
static inline uint64_t pace_paid(const struct region_device *device, const _Atomic uint64_t *known)
{
	const uint64_t paid = atomic_load_explicit(&device->paid_until_ns, memory_order_acquire);
	const uint64_t own = atomic_load_explicit(known, memory_order_relaxed);

	return paid < own ? own : paid;
}

/* Put `until_ns` in the place of `paid_ns`, which pace_paid gave; false when another process has paid meanwhile. */
static inline bool pace_move(struct region_device *device, _Atomic uint64_t *known, uint64_t paid_ns, uint64_t until_ns)
{
	uint64_t there = atomic_load_explicit(&device->paid_until_ns, memory_order_acquire);
	uint64_t own = atomic_load_explicit(known, memory_order_relaxed);

	if (there > paid_ns || !atomic_compare_exchange_weak(&device->paid_until_ns, &there, until_ns))
		return false;
	while (own != until_ns && !atomic_compare_exchange_weak(known, &own, until_ns))
		;
	return true;
}

/* Pay for `device_ns`. Returns 0 when they may start now, else how long to wait before asking again. */
static inline uint64_t pace_pay(
	struct region_device *device, _Atomic uint64_t *known, uint64_t now_ns, uint64_t device_ns, uint32_t percent)
{
	uint64_t paid;

	do {
		paid = pace_paid(device, known);
		if (paid > now_ns && paid - now_ns <= PACE_HORIZON_NS)
			return paid - now_ns;
	} while (!pace_move(device, known, paid, pace_charged(paid, now_ns, now_ns, device_ns, percent)));
	return 0;
}

/* Pay for what was launched at `launched_ns` and has run: the time since has earned its part. */
static inline void pace_owe(struct region_device *device, _Atomic uint64_t *known, uint64_t launched_ns,
	uint64_t now_ns, uint64_t device_ns, uint32_t percent)
{
	uint64_t paid;

	do
		paid = pace_paid(device, known);
	while (!pace_move(device, known, paid, pace_charged(paid, launched_ns, now_ns, device_ns, percent)));
}

/* Whether a process that waits with virtual time `mine` in slot `self` is next in line. */
static inline bool pace_is_next(const struct region *region, unsigned row, unsigned self, uint64_t mine)
{
	const unsigned slots = region_slots_in_use(region);

	for (unsigned i = 0; i < slots; i++) {
		const uint64_t other = atomic_load_explicit(&region->slots[i].use[row].waiting, memory_order_relaxed);

		if (i != self && other != 0 && (other < mine || (other == mine && i < self)))
			return false;
	}
	return true;
}

/* The virtual time at which a process with `own` service joins the line. Never 0. */
static inline uint64_t pace_join(const struct region_device *device, uint64_t own)
{
	const uint64_t last = atomic_load_explicit(&device->virtual_ns, memory_order_relaxed);

	return own > last ? own : last + 1;
}

static inline void pace_served(struct region_device *device, uint64_t virtual_ns)
{
	uint64_t last = atomic_load_explicit(&device->virtual_ns, memory_order_relaxed);

	while (last < virtual_ns && !atomic_compare_exchange_weak(&device->virtual_ns, &last, virtual_ns))
		;
}

/* Add what was just paid for to the work that is under way until `*until_ns`. */
static inline void pace_busy(_Atomic uint64_t *until_ns, uint64_t now_ns, uint64_t device_ns)
{
	uint64_t until = atomic_load_explicit(until_ns, memory_order_relaxed), next;

	do
		next = (until > now_ns && until - now_ns <= PACE_HORIZON_NS ? until : now_ns) + device_ns;
	while (!atomic_compare_exchange_weak(until_ns, &until, next));
}

/* How long other processes of the container may keep the device from now, where this one's own work ends at `own_ns`.
 */
static inline uint64_t pace_others_ns(const struct region_device *device, uint64_t own_ns, uint64_t now_ns)
{
	const uint64_t until = atomic_load_explicit(&device->busy_until_ns, memory_order_relaxed);
	const uint64_t from = own_ns > now_ns ? own_ns : now_ns;

	return until > from && until - from <= PACE_OTHERS_NS ? until - from : 0;
}

/* What of a measurement is the kernel's own time: it may have waited for the others, who have paid for that. */
static inline uint64_t pace_own_ns(uint64_t cost_ns, uint64_t measured_ns, uint64_t others_ns)
{
	if (measured_ns <= cost_ns || others_ns == 0)
		return measured_ns;
	return measured_ns - cost_ns > others_ns ? measured_ns - others_ns : cost_ns;
}

#define PACE_PERMILLE UINT32_C(1000)
#define PACE_WINDOW   32 /* measurements of a kernel; the least of the last one to two windows is kept */

/* What a measurement is charged while other containers use the device too: it may be the kernel's own time, or the time
 * it waited for them. The least of late (`low_ns`) is the nearest to its own time. What a kernel that varies costs
 * beyond that, the agent makes good: it compares what the driver counts with what was charged, and says how much of
 * `low_ns` is charged (`permille`; 0: all). */
static inline uint64_t pace_beside_others_ns(uint64_t low_ns, uint32_t permille)
{
	const uint64_t most = PACE_HORIZON_NS;

	return (low_ns < most ? low_ns : most) * (permille == 0 ? PACE_PERMILLE : permille) / PACE_PERMILLE;
}

/* What a kernel is taken to cost after it was measured for the `count`th time: the mean of the first few measurements,
 * then a running one. A measurement above the price and one below it weigh the same, or the price would not be the
 * mean. */
static inline uint64_t pace_learn(uint64_t cost_ns, uint64_t measured_ns, uint32_t count)
{
	const uint64_t weight = count < 8 ? count : 8;

	if (measured_ns < cost_ns)
		return cost_ns - (cost_ns - measured_ns) / weight;
	return cost_ns + (measured_ns - cost_ns) / weight;
}

/* How far a measurement lies from the price, squared, on average: more is believed at once, less slowly, so that a
 * kernel which is dear now and then is not taken for a steady one in between. */
static inline uint64_t pace_spread(uint64_t variance, uint64_t cost_ns, uint64_t measured_ns)
{
	const uint64_t most = UINT32_MAX, apart = cost_ns < measured_ns ? measured_ns - cost_ns : cost_ns - measured_ns;
	const uint64_t square = (apart < most ? apart : most) * (apart < most ? apart : most);

	return square > variance ? variance + (square - variance) / 4 : variance - (variance - square) / 512;
}

/* Of how many launches in PACE_ALL one is measured. A measured launch also stands for those that were not: it is
 * charged its difference from the price as often as launches like it go unmeasured, so the sum is right on average
 * whatever the pattern. How far it strays from that depends on the rate: it is chosen so that after w nanoseconds of
 * wall time the standard error is about sqrt(PACE_ERROR_NS / w) of the device (0.2 percent of it after four seconds).
 */
#define PACE_ALL      (UINT32_C(1) << 16)
#define PACE_LEAST    (PACE_ALL / 64)
#define PACE_FIRST    256 /* launches of a new kernel that are all measured; of the next ones fewer and fewer */
#define PACE_ERROR_NS 20000.0
#define PACE_LONG_NS  (UINT64_C(500) * 1000) /* every launch of a kernel this long is measured */

static inline uint32_t pace_rate(uint64_t cost_ns, uint64_t variance, uint32_t launches, uint32_t percent)
{
	const double bound = (double)cost_ns * PACE_ERROR_NS * 100 / percent;
	const double spread = (double)variance / ((double)variance + bound + 1);
	const double length = (double)cost_ns / (double)PACE_LONG_NS;
	const double novelty = launches == 0 ? 1 : (double)PACE_FIRST / launches;
	const double more = spread > length ? spread : length;
	const double rate = (novelty > more ? novelty : more) * PACE_ALL;

	return rate >= PACE_ALL ? PACE_ALL : rate <= PACE_LEAST ? PACE_LEAST : (uint32_t)rate;
}

#endif
