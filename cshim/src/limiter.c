/* limiter.c: what kernels cost, and waiting for one's share.
 *
 * Costs are learned: a pair of events around the first launches of each kernel, around every launch of a long one, and
 * around one in 64 of a short one. The second launch of a kernel waits until the first has been measured, or 200 ms, so
 * that no queue of unknown length builds up. Short kernels are paid for a millisecond at a time, so most launches only
 * subtract from the process's own credit: no clock, no shared word.
 *
 * While any stream is being captured nothing is measured: the events would be recorded into a graph, and a query from
 * another thread may invalidate the capture.
 */
#include <time.h>

#include "legacy.h"
#include "limiter.h"
#include "pace.h"

enum {
	MEASURED_FIRST = 4,               /* launches of a new kernel that are all measured */
	MEASURED_EVERY = 64,              /* one in so many short ones afterwards */
	WAIT_SLICE_NS = 10 * 1000 * 1000, /* how late a changed limit or a block may be noticed */
	LINE_SLICE_NS = 200 * 1000,
	LINE_PATIENCE = 50, /* slices for which somebody ahead in the line may not move: he may be dead */
	LEARN_SLICE_NS = 50 * 1000,
	LEARN_PATIENCE_NS = 200 * 1000 * 1000,
	UNKNOWN_COST_NS = 1000 * 1000, /* taken for a kernel that could not be measured */
	LONG_KERNEL_NS = 500 * 1000,
};

static uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void pause_ns(uint64_t nanoseconds)
{
	const struct timespec pause = {
		.tv_sec = (time_t)(nanoseconds / 1000000000u), .tv_nsec = (long)(nanoseconds % 1000000000u)};

	nanosleep(&pause, NULL);
}

/* The place of a kernel in the table of costs. A kernel that falls on another's place takes it over and is learned
 * anew. */
static unsigned cost_place(struct shim *shim, uint64_t key)
{
	const unsigned place = (unsigned)((key * 0x9e3779b97f4a7c15ull) >> 54) % COSTS;
	struct cost *cost = &shim->costs[place];

	if (atomic_load_explicit(&cost->key, memory_order_relaxed) != key) {
		atomic_store_explicit(&cost->measured, 0, memory_order_relaxed);
		atomic_store_explicit(&cost->launches, 0, memory_order_relaxed);
		atomic_store_explicit(&cost->nanoseconds, 0, memory_order_relaxed);
		atomic_store_explicit(&cost->key, key, memory_order_relaxed);
	}
	return place;
}

static bool is_capturing(const struct launch *launch)
{
	CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
	CUresult result = CUDA_ERROR_NOT_FOUND;

	if (atomic_load_explicit(&launch->shim->captures, memory_order_relaxed) == 0)
		return false;
	if (launch->per_thread && driver.cuStreamIsCapturing_ptsz != NULL)
		result = driver.cuStreamIsCapturing_ptsz(launch->stream, &status);
	else if (driver.cuStreamIsCapturing != NULL)
		result = driver.cuStreamIsCapturing(launch->stream, &status);
	return result == CUDA_SUCCESS && status != CU_STREAM_CAPTURE_STATUS_NONE;
}

static CUresult record(const struct launch *launch, CUevent event)
{
	if (launch->per_thread && driver.cuEventRecord_ptsz != NULL)
		return driver.cuEventRecord_ptsz(event, launch->stream);
	return driver.cuEventRecord(event, launch->stream);
}

static void events_drop(CUevent start, CUevent end)
{
	if (start != NULL)
		(void)driver.cuEventDestroy_v2(start);
	if (end != NULL)
		(void)driver.cuEventDestroy_v2(end);
}

static void sample_begin(struct launch *launch)
{
	launch->start = launch->end = NULL;
	launch->sampled = driver.cuEventCreate != NULL && driver.cuEventRecord != NULL && driver.cuEventQuery != NULL &&
			  driver.cuEventElapsedTime != NULL && driver.cuEventDestroy_v2 != NULL &&
			  driver.cuEventCreate(&launch->start, CU_EVENT_DEFAULT) == CUDA_SUCCESS &&
			  driver.cuEventCreate(&launch->end, CU_EVENT_DEFAULT) == CUDA_SUCCESS &&
			  record(launch, launch->start) == CUDA_SUCCESS;
	if (!launch->sampled && driver.cuEventDestroy_v2 != NULL)
		events_drop(launch->start, launch->end);
}

static void learned(struct shim *shim, int row, struct cost *cost, uint64_t measured_ns)
{
	const uint32_t before = atomic_fetch_add(&cost->measured, 1);
	const uint64_t known = atomic_load(&cost->nanoseconds);

	atomic_store(&cost->nanoseconds, pace_learn(known, measured_ns, before == 0));
	if (before == 0) { /* it ran before its price was known */
		const uint32_t percent = shim_sm_percent(shim, row);

		atomic_fetch_add_explicit(&shim_use(shim, row)->busy_ns, measured_ns, memory_order_relaxed);
		if (percent < 100)
			pace_owe(&shim->region->devices[row], now_ns(), measured_ns, percent);
	}
}

/* Take one sample out of the ring, or none. */
static bool sample_take(struct shim *shim, unsigned place, struct sample *sample)
{
	spin_take(&shim->sample_lock);
	*sample = shim->samples[place];
	shim->samples[place].end = NULL;
	spin_give(&shim->sample_lock);
	return sample->end != NULL;
}

static bool sample_put(struct shim *shim, const struct sample *sample)
{
	bool put = false;

	spin_take(&shim->sample_lock);
	for (unsigned i = 0; i < SAMPLES && !put; i++) {
		put = shim->samples[i].end == NULL;
		if (put)
			shim->samples[i] = *sample;
	}
	spin_give(&shim->sample_lock);
	if (put)
		atomic_fetch_add(&shim->samples_open, 1);
	return put;
}

/* Look at every open measurement once. */
static void samples_collect(struct shim *shim)
{
	if (atomic_load(&shim->samples_open) == 0 || atomic_load(&shim->captures) != 0)
		return;
	for (unsigned i = 0; i < SAMPLES; i++) {
		struct sample sample;
		float milliseconds = 0;
		CUresult result;

		if (shim->samples[i].end == NULL || !sample_take(shim, i, &sample))
			continue;
		atomic_fetch_sub(&shim->samples_open, 1);
		result = driver.cuEventQuery(sample.end);
		if (result == CUDA_ERROR_NOT_READY && sample_put(shim, &sample))
			continue;
		if (result == CUDA_SUCCESS &&
			driver.cuEventElapsedTime(&milliseconds, sample.start, sample.end) == CUDA_SUCCESS &&
			milliseconds >= 0)
			learned(shim, sample.row, &shim->costs[sample.cost], (uint64_t)(milliseconds * 1e6f));
		else if (result != CUDA_ERROR_NOT_READY)
			atomic_fetch_add(
				&shim->costs[sample.cost].measured, 1); /* its context is gone: do not wait for it */
		events_drop(sample.start, sample.end);
	}
}

/* Before a kernel runs again, know what it costs. */
static void wait_for_price(struct shim *shim, struct cost *cost)
{
	uint64_t waited = 0;

	while (atomic_load(&cost->measured) == 0 && atomic_load(&shim->captures) == 0) {
		samples_collect(shim);
		if (atomic_load(&cost->measured) != 0)
			return;
		if (waited >= LEARN_PATIENCE_NS || atomic_load(&shim->samples_open) == 0) {
			atomic_store(&cost->nanoseconds,
				UNKNOWN_COST_NS); /* it may wait for something that comes after it */
			atomic_store(&cost->measured, 1);
			return;
		}
		pause_ns(LEARN_SLICE_NS);
		waited += LEARN_SLICE_NS;
	}
}

static void wait_while_blocked(struct shim *shim)
{
	for (;;) {
		const uint64_t until = __atomic_load_n(&shim->grant->blocked_until_ns, __ATOMIC_RELAXED);
		const uint64_t now = until == 0 ? 0 : now_ns();

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
			const uint64_t now = now_ns(), paid = atomic_load(&device->paid_until_ns);

			passed_over += paid <= now; /* those ahead could have gone */
			wait = paid > now ? paid - now : LINE_SLICE_NS;
		} else {
			wait = pace_pay(device, now_ns(), device_ns, percent);
			if (wait == 0)
				break;
		}
		pause_ns(wait < WAIT_SLICE_NS ? wait : WAIT_SLICE_NS);
	}
	atomic_store(&use->waiting, 0);
	pace_served(device, mine);
	atomic_store(&shim->served_ns[row], mine + device_ns);
	atomic_fetch_add_explicit(&use->busy_ns, device_ns, memory_order_relaxed);
}

/* Threads may lose a launch or a millisecond to each other here, a few times in a million: that is less than what a
 * kernel's cost is uncertain by, and a locked subtraction would be a third of what a launch costs. */
static void pay(struct shim *shim, int row, uint64_t cost_ns)
{
	const int64_t price = (int64_t)cost_ns;
	const int64_t credit = atomic_load_explicit(&shim->credit_ns[row], memory_order_relaxed);
	uint64_t take;

	if (credit >= price) {
		atomic_store_explicit(&shim->credit_ns[row], credit - price, memory_order_relaxed);
		return;
	}
	samples_collect(shim);
	take = cost_ns > PACE_CHUNK_NS ? cost_ns : PACE_CHUNK_NS;
	wait_and_pay(shim, row, take);
	atomic_fetch_add_explicit(&shim->credit_ns[row], (int64_t)take - price, memory_order_relaxed);
}

void limiter_enter(struct launch *launch, uint64_t key, CUstream stream, bool per_thread)
{
	struct shim *shim = shim_get();
	struct cost *cost;
	uint32_t launches;

	*launch = (struct launch){
		.stream = stream, .per_thread = per_thread, .row = shim != NULL ? launch_row(shim) : ROW_NONE};
	if (launch->row < 0)
		return;
	launch->shim = shim;
	if (is_capturing(launch)) /* it does not run now, but with its graph */
		return;
	if (__atomic_load_n(&shim->grant->blocked_until_ns, __ATOMIC_RELAXED) != 0)
		wait_while_blocked(shim);
	if (shim->legacy != NULL)
		legacy_launch(shim);
	if (shim_sm_percent(shim, launch->row) == 100)
		return;
	launch->cost = cost_place(shim, key);
	cost = &shim->costs[launch->cost];
	launches = atomic_load_explicit(&cost->launches, memory_order_relaxed);
	atomic_store_explicit(&cost->launches, launches + 1, memory_order_relaxed);
	if (launches > 0 && atomic_load_explicit(&cost->measured, memory_order_relaxed) == 0)
		wait_for_price(shim, cost);
	pay(shim, launch->row, atomic_load_explicit(&cost->nanoseconds, memory_order_relaxed));
	if (launches >= MEASURED_FIRST && launches % MEASURED_EVERY != 0 &&
		atomic_load_explicit(&cost->nanoseconds, memory_order_relaxed) < LONG_KERNEL_NS)
		return;
	if (atomic_load(&shim->captures) == 0) {
		samples_collect(shim);
		sample_begin(launch);
	}
}

CUresult limiter_leave(struct launch *launch, CUresult result)
{
	const struct sample sample = {
		.start = launch->start, .end = launch->end, .cost = launch->cost, .row = launch->row};

	if (!launch->sampled)
		return result;
	if (result != CUDA_SUCCESS || record(launch, launch->end) != CUDA_SUCCESS || !sample_put(launch->shim, &sample))
		events_drop(launch->start, launch->end);
	return result;
}
