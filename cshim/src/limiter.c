/* limiter.c: waiting for one's share, and paying for it. Short kernels are paid for a millisecond at a time, so most
 * launches only subtract from the process's own credit: no clock, no shared word. One whose cost is not known waits in
 * line like any other, and is paid for when it has been measured (cost.h).
 */
#include <time.h>

#include "cost.h"
#include "legacy.h"
#include "limiter.h"
#include "pace.h"

enum {
	WAIT_SLICE_NS = 10 * 1000 * 1000, /* how late a changed limit or a block may be noticed */
	LINE_SLICE_NS = 200 * 1000,
	LINE_PATIENCE = 50, /* slices for which somebody ahead in the line may not move: he may be dead */
};

static void pause_ns(uint64_t nanoseconds)
{
	const struct timespec pause = {
		.tv_sec = (time_t)(nanoseconds / 1000000000u), .tv_nsec = (long)(nanoseconds % 1000000000u)};

	nanosleep(&pause, NULL);
}

static void wait_while_blocked(struct shim *shim)
{
	for (;;) {
		const uint64_t until = __atomic_load_n(&shim->grant->blocked_until_ns, __ATOMIC_RELAXED);
		const uint64_t now = until == 0 ? 0 : shim_now_ns(shim);

		if (until <= now)
			return;
		pause_ns(until - now < WAIT_SLICE_NS ? until - now : WAIT_SLICE_NS);
	}
}

/* Wait in line for `device_ns` and pay for them. */
static void wait_and_pay(struct shim *shim, int row, uint64_t device_ns)
{
	struct region_device *device = &shim->region->devices[row];
	struct region_use *use = shim_use(shim, row);
	const uint64_t mine = pace_join(device, atomic_load(&shim->served_ns[row]));
	unsigned passed_over = 0;

	atomic_store(&use->waiting, mine);
	for (;;) {
		const uint32_t percent = shim_sm_percent(shim, row);
		uint64_t wait;

		if (percent == 100)
			break;
		wait_while_blocked(shim);
		if (!pace_is_next(shim->region, (unsigned)row, shim->slot, mine) && passed_over < LINE_PATIENCE) {
			const uint64_t now = shim_now_ns(shim), paid = atomic_load(&device->paid_until_ns);

			passed_over += paid <= now; /* those ahead could have gone */
			wait = paid > now ? paid - now : LINE_SLICE_NS;
		} else {
			wait = pace_pay(device, &shim->paid_until_ns[row], shim_now_ns(shim), device_ns, percent);
			if (wait == 0)
				break;
		}
		pause_ns(wait < WAIT_SLICE_NS ? wait : WAIT_SLICE_NS);
	}
	if (device_ns > 0) {
		const uint64_t now = shim_now_ns(shim);

		pace_busy(&device->busy_until_ns, now, device_ns);
		pace_busy(&shim->busy_until_ns[row], now, device_ns);
	}
	atomic_store(&use->waiting, 0);
	pace_served(device, mine);
	atomic_store(&shim->served_ns[row], mine + device_ns);
	atomic_fetch_add_explicit(&use->busy_ns, device_ns, memory_order_relaxed);
}

/* Returns whether more was paid for than this launch.
 *
 * Threads may lose a launch or a millisecond to each other here, a few times in a million: that is less than what a
 * kernel's cost is uncertain by, and a locked subtraction would be a third of what a launch costs. */
static bool pay(struct shim *shim, int row, uint64_t cost_ns)
{
	const int64_t price = (int64_t)cost_ns;
	const int64_t credit = atomic_load_explicit(&shim->credit_ns[row], memory_order_relaxed);
	uint64_t take;

	if (credit >= price) {
		atomic_store_explicit(&shim->credit_ns[row], credit - price, memory_order_relaxed);
		return false;
	}
	cost_catch_up(shim, row);
	take = cost_ns > PACE_CHUNK_NS ? cost_ns : PACE_CHUNK_NS;
	wait_and_pay(shim, row, take);
	atomic_fetch_add_explicit(&shim->credit_ns[row], (int64_t)take - price, memory_order_relaxed);
	atomic_fetch_add_explicit(&shim->payments[row], 1, memory_order_relaxed);
	return true;
}

void limiter_enter(struct launch *launch, struct work work, CUstream stream, bool per_thread)
{
	struct shim *shim = shim_get();
	uint64_t price;
	bool measure;

	/* What is read of a launch that is not measured; the rest is set where it is. */
	launch->shim = NULL;
	launch->key = work.key == 0 ? 1 : work.key;
	launch->shape = work.shape;
	launch->stream = stream;
	launch->per_thread = per_thread;
	launch->unpriced = launch->sampled = false;
	launch->row = shim != NULL ? launch_row(shim, stream) : ROW_NONE;
	if (launch->row < 0)
		return;
	launch->shim = shim;
	if (shim_is_capturing(shim, stream, per_thread)) /* it does not run now, but with its graph */
		return;
	if (__atomic_load_n(&shim->grant->blocked_until_ns, __ATOMIC_RELAXED) != 0)
		wait_while_blocked(shim);
	if (shim->legacy != NULL)
		legacy_launch(shim);
	if (shim_sm_percent(shim, launch->row) == 100)
		return;
	price = cost_of(launch, &measure);
	if (launch->unpriced) {
		wait_and_pay(shim, launch->row, 0);
	} else if (pay(shim, launch->row, price)) {
		measure = true; /* the first one of each payment, so that it is known when the others come to run */
		launch->rate = PACE_ALL;
	}
	launch->payment = atomic_load_explicit(&shim->payments[launch->row], memory_order_relaxed);
	if (measure)
		cost_measure(launch);
}

CUresult limiter_leave(struct launch *launch, CUresult result)
{
	if (launch->sampled || launch->unpriced)
		cost_measured(launch, result);
	return result;
}
