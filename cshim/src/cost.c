/* cost.c: what kernels cost. A pair of events is recorded around some launches of each kernel: all of a long one or of
 * one that is new, otherwise a part that is chosen at random (pace_rate). Each launch is paid for at the kernel's
 * price, its mean so far. One that was measured is charged, or given back, its difference from the price, times how
 * many launches it stands for. So what is charged is right on average, however a kernel's cost varies, and no launch
 * can be told to be one that is not measured.
 *
 * A launch whose cost nobody knows is paid for once it has been measured. So that no queue of unknown length builds up,
 * the second launch of a kernel waits for the first to be measured, and one of another unknown kernel waits while those
 * under way are likely to take more than a millisecond. Nobody waits for longer than 200 ms: a kernel may wait for
 * something that comes after it. What cannot be measured costs a millisecond.
 *
 * While a stream is being captured, a look at an event may spoil the capture, even from another thread. A thread can
 * say that it knows what it does (cuThreadExchangeStreamCaptureMode), and that is done around each look. With a driver
 * that does not have it nothing is measured during a capture.
 */
#include <time.h>

#include "cost.h"
#include "pace.h"

enum {
	WAYS = 4, /* places of the table that a kernel may have */
	LEARN_SLICE_NS = 50 * 1000,
	LEARN_PATIENCE_NS = 200 * 1000 * 1000,
	ASSUMED_NS = 1000 * 1000,       /* taken for a kernel that could not be measured */
	UNPRICED_MOST_NS = 1000 * 1000, /* device time that may be under way at no known price */
	QUEUED_LEAST = 2,               /* measurements of one kernel that may be under way */
	QUEUED_MOST_NS = 1000 * 1000,   /* and more of a short one, up to this much */
};

static unsigned home_of(uint64_t key, uint64_t shape)
{
	return (unsigned)((key ^ shape * 0xff51afd7ed558ccdull) * 0x9e3779b97f4a7c15ull >> 54);
}
_Static_assert(COSTS == 1 << 10, "a kernel's home is the top ten bits of a hash");

/* The kernel's place, NULL when it has none. */
static struct cost *cost_find(struct shim *shim, uint64_t key, uint64_t shape)
{
	const unsigned home = home_of(key, shape);

	for (unsigned way = 0; way < WAYS; way++) {
		struct cost *cost = &shim->costs[(home + way) % COSTS];

		if (atomic_load_explicit(&cost->key, memory_order_relaxed) == key &&
			atomic_load_explicit(&cost->shape, memory_order_relaxed) == shape)
			return cost;
	}
	return NULL;
}

/* A place for a kernel that has none: a free one, else another's, which is learned anew when it comes again. */
static struct cost *cost_new(struct shim *shim, uint64_t key, uint64_t shape)
{
	const unsigned home = home_of(key, shape);
	struct cost *cost = &shim->costs[(home + shape % WAYS) % COSTS];

	for (unsigned way = 0; way < WAYS; way++) {
		struct cost *other = &shim->costs[(home + way) % COSTS];

		if (atomic_load_explicit(&other->key, memory_order_relaxed) == 0)
			cost = other;
	}
	atomic_store_explicit(&cost->key, 0, memory_order_relaxed);
	atomic_store_explicit(&cost->shape, shape, memory_order_relaxed);
	atomic_store_explicit(&cost->launches, 0, memory_order_relaxed);
	atomic_store_explicit(&cost->measured, 0, memory_order_relaxed);
	atomic_store_explicit(&cost->nanoseconds, 0, memory_order_relaxed);
	atomic_store_explicit(&cost->low_ns, 0, memory_order_relaxed);
	atomic_store_explicit(&cost->next_low_ns, 0, memory_order_relaxed);
	atomic_store_explicit(&cost->variance, 0, memory_order_relaxed);
	atomic_store_explicit(&cost->rate, PACE_ALL, memory_order_relaxed);
	atomic_store_explicit(&cost->assumed, false, memory_order_relaxed);
	atomic_store_explicit(&cost->key, key, memory_order_relaxed);
	return cost;
}

void cost_forget(struct shim *shim, uint64_t key, uint64_t shape)
{
	struct cost *cost = cost_find(shim, key, shape);

	if (cost == NULL)
		return;
	atomic_store_explicit(&cost->key, 0, memory_order_relaxed);
	spin_take(&shim->sample_lock);
	for (int i = 0; i < shim->samples_open; i++)
		if (shim->samples[i].key == key && shim->samples[i].shape == shape)
			shim->samples[i].key = 0; /* it is still paid for, and teaches nothing */
	spin_give(&shim->sample_lock);
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

/* Charge what was used beyond what was paid for, since `began_ns`. */
static void owe(struct shim *shim, int row, uint64_t began_ns, uint64_t now, uint64_t device_ns)
{
	const uint32_t percent = shim_sm_percent(shim, row);

	atomic_fetch_add_explicit(&shim_use(shim, row)->busy_ns, device_ns, memory_order_relaxed);
	atomic_fetch_add_explicit(&shim->served_ns[row], device_ns, memory_order_relaxed);
	if (percent < 100)
		pace_owe(&shim->region->devices[row], &shim->paid_until_ns[row], began_ns, now, device_ns, percent);
}

/* Give back what was paid for and not used, as credit: it stays charged, and pays for the next launches. */
static void refund(struct shim *shim, int row, uint64_t device_ns)
{
	atomic_fetch_add_explicit(&shim->credit_ns[row], (int64_t)device_ns, memory_order_relaxed);
}

static uint64_t standing_for(uint64_t device_ns, uint32_t rate)
{
	return (uint64_t)((double)device_ns * PACE_ALL / rate);
}

/* The launch was paid for at a price: settle its difference from that, and that of the launches it stands for. */
static void settle(struct shim *shim, const struct sample *sample, uint64_t measured_ns)
{
	const uint64_t now = measured_ns > sample->paid_ns ? shim_now_ns(shim) : 0;

	if (measured_ns > sample->paid_ns)
		owe(shim, sample->row, now, now, standing_for(measured_ns - sample->paid_ns, sample->rate));
	else if (measured_ns < sample->paid_ns)
		refund(shim, sample->row, standing_for(sample->paid_ns - measured_ns, sample->rate));
}

static void price_learn(struct shim *shim, struct cost *cost, int row, uint64_t measured_ns)
{
	const uint64_t known = atomic_load(&cost->nanoseconds);
	const bool first = atomic_exchange(&cost->assumed, false) || known == 0;
	const uint32_t count = atomic_fetch_add(&cost->measured, 1) + 1;
	const uint64_t variance = first ? 0 : pace_spread(atomic_load(&cost->variance), known, measured_ns);
	const uint64_t price = first ? measured_ns : pace_learn(known, measured_ns, count);

	atomic_store(&cost->nanoseconds, price == 0 ? 1 : price);
	atomic_store(&cost->variance, variance);
	atomic_store(&cost->rate, pace_rate(price, variance, atomic_load(&cost->launches), shim_sm_percent(shim, row)));
}

/* The least that the kernel was measured to take of late, this time included. */
static uint64_t low_ns(struct cost *cost, uint64_t elapsed_ns)
{
	const uint64_t before = atomic_load_explicit(&cost->low_ns, memory_order_relaxed);
	uint64_t low = atomic_load_explicit(&cost->next_low_ns, memory_order_relaxed);

	if (low == 0 || elapsed_ns < low)
		low = elapsed_ns == 0 ? 1 : elapsed_ns;
	if (atomic_load_explicit(&cost->measured, memory_order_relaxed) % PACE_WINDOW == 0) {
		atomic_store_explicit(&cost->low_ns, low, memory_order_relaxed);
		atomic_store_explicit(&cost->next_low_ns, 0, memory_order_relaxed);
	} else {
		atomic_store_explicit(&cost->next_low_ns, low, memory_order_relaxed);
	}
	return before != 0 && before < low ? before : low;
}

/* What of a measurement is the kernel's own, as far as other containers may have kept it waiting. */
static uint64_t own_ns(const struct shim *shim, int row, struct cost *cost, uint64_t elapsed_ns)
{
	const uint64_t low = cost != NULL ? low_ns(cost, elapsed_ns) : elapsed_ns;
	const uint64_t until = __atomic_load_n(&shim->grant->shared_until_ns, __ATOMIC_RELAXED);

	if (until == 0 || until < shim_now_ns(shim))
		return elapsed_ns;
	return pace_beside_others_ns(low, __atomic_load_n(&shim->grant->charge_permille[row], __ATOMIC_RELAXED));
}

static void learned(struct shim *shim, const struct sample *sample, uint64_t elapsed_ns)
{
	struct cost *cost = sample->key != 0 ? cost_find(shim, sample->key, sample->shape) : NULL;
	const uint64_t own = own_ns(shim, sample->row, cost, elapsed_ns);
	const uint64_t measured_ns = sample->unpriced ? own : pace_own_ns(sample->paid_ns, own, sample->others_ns);

	if (cost != NULL)
		price_learn(shim, cost, sample->row, measured_ns);
	if (sample->unpriced) {
		const uint64_t usual = atomic_load(&shim->unpriced_ns);

		atomic_store(&shim->unpriced_ns, measured_ns > usual ? measured_ns : usual - (usual - measured_ns) / 8);
		owe(shim, sample->row, sample->launched_ns, shim_now_ns(shim), measured_ns);
	} else {
		settle(shim, sample, measured_ns);
	}
}

/* It was not paid for, and cannot be measured. */
static void assumed(struct shim *shim, const struct sample *sample)
{
	struct cost *cost = sample->key != 0 ? cost_find(shim, sample->key, sample->shape) : NULL;
	uint64_t unknown = 0;

	if (cost != NULL && atomic_compare_exchange_strong(&cost->nanoseconds, &unknown, ASSUMED_NS))
		atomic_store(&cost->assumed, true);
	owe(shim, sample->row, sample->launched_ns, shim_now_ns(shim), ASSUMED_NS);
}

/* Measurements under way stand in the first `samples_open` places, in no order. */
static bool sample_take(struct shim *shim, int place, struct sample *sample)
{
	bool taken;

	spin_take(&shim->sample_lock);
	taken = place < shim->samples_open;
	if (taken) {
		*sample = shim->samples[place];
		shim->samples[place] = shim->samples[--shim->samples_open];
	}
	spin_give(&shim->sample_lock);
	return taken;
}

static bool sample_put(struct shim *shim, const struct sample *sample)
{
	bool put;

	spin_take(&shim->sample_lock);
	put = shim->samples_open < SAMPLES;
	if (put)
		shim->samples[shim->samples_open++] = *sample;
	spin_give(&shim->sample_lock);
	return put;
}

static void sample_look(struct shim *shim, struct sample *sample)
{
	const CUresult result = driver.cuEventQuery(sample->end);
	float milliseconds = 0;

	if (result == CUDA_ERROR_NOT_READY && sample_put(shim, sample))
		return;
	if (result == CUDA_SUCCESS &&
		driver.cuEventElapsedTime(&milliseconds, sample->start, sample->end) == CUDA_SUCCESS &&
		milliseconds >= 0)
		learned(shim, sample, (uint64_t)(milliseconds * 1e6f));
	else if (sample->unpriced) /* its context is gone, or there is no place for it any more */
		assumed(shim, sample);
	events_drop(sample->start, sample->end);
}

void cost_collect(struct shim *shim)
{
	int open = atomic_load(&shim->samples_open);
	struct relaxed relaxed;

	if (open == 0 || !shim_may_ask(shim))
		return;
	relaxed = shim_relax();
	while (open-- > 0) { /* one that is put back comes behind those that were looked at */
		struct sample sample;

		if (sample_take(shim, open, &sample))
			sample_look(shim, &sample);
	}
	shim_restore(relaxed);
}

/* Whether one more launch may run at no known price: not on top of others that are likely to be long. */
static bool may_run_unpriced(struct shim *shim)
{
	const uint64_t usual = atomic_load(&shim->unpriced_ns);
	unsigned unpriced = 0;
	bool full;

	spin_take(&shim->sample_lock);
	full = shim->samples_open == SAMPLES;
	for (int i = 0; i < shim->samples_open; i++)
		unpriced += shim->samples[i].unpriced && !shim->samples[i].given_up;
	spin_give(&shim->sample_lock);
	return !full && unpriced * (usual == 0 ? ASSUMED_NS : usual) < UNPRICED_MOST_NS;
}

/* Whether one more measurement of a kernel may be begun: there is a place for it, and the price has not been wrong for
 * so long that they queue. */
static bool may_queue(struct shim *shim, const struct launch *launch)
{
	unsigned queued = 0;
	bool full;

	spin_take(&shim->sample_lock);
	full = shim->samples_open == SAMPLES;
	for (int i = 0; i < shim->samples_open; i++)
		queued += shim->samples[i].key == launch->key && shim->samples[i].shape == launch->shape &&
			  !shim->samples[i].given_up;
	spin_give(&shim->sample_lock);
	return !full && (queued < QUEUED_LEAST || queued * launch->paid_ns < QUEUED_MOST_NS);
}

/* Those under way take longer than anybody can wait: they are paid for when they end, and nobody waits for them again.
 */
static void give_up(struct shim *shim)
{
	spin_take(&shim->sample_lock);
	for (int i = 0; i < shim->samples_open; i++)
		shim->samples[i].given_up = true;
	spin_give(&shim->sample_lock);
}

/* Pause until it is worth looking again; false when that has been done for too long. */
static bool wait_on(struct shim *shim, uint64_t *waited)
{
	const struct timespec slice = {.tv_nsec = LEARN_SLICE_NS};

	if (*waited >= LEARN_PATIENCE_NS) {
		give_up(shim);
		return false;
	}
	nanosleep(&slice, NULL);
	*waited += LEARN_SLICE_NS;
	cost_collect(shim);
	return true;
}

/* The price of a kernel that has none yet, after its earlier `launches`; 0 if this one is to run without. */
static uint64_t price_of_unknown(struct shim *shim, struct cost *cost, uint32_t launches)
{
	uint64_t waited = 0, known;

	if (!shim_may_ask(shim))
		return ASSUMED_NS;
	cost_collect(shim);
	do {
		known = atomic_load(&cost->nanoseconds);
		if (known != 0 || (launches == 0 && may_run_unpriced(shim)))
			return known;
	} while (wait_on(shim, &waited));
	if (launches == 0 && may_run_unpriced(shim))
		return 0;
	if (atomic_compare_exchange_strong(&cost->nanoseconds, &known, ASSUMED_NS))
		atomic_store(&cost->assumed, true);
	return ASSUMED_NS;
}

static bool is_behind(struct shim *shim, int row, uint32_t payment)
{
	bool behind = false;

	spin_take(&shim->sample_lock);
	for (int i = 0; i < shim->samples_open && !behind; i++)
		behind = shim->samples[i].row == row && !shim->samples[i].given_up &&
			 (int32_t)(payment - shim->samples[i].payment) > 1;
	spin_give(&shim->sample_lock);
	return behind;
}

void cost_catch_up(struct shim *shim, int row)
{
	const uint32_t payment = atomic_load_explicit(&shim->payments[row], memory_order_relaxed);
	uint64_t waited = 0;

	cost_collect(shim);
	while (atomic_load(&shim->samples_open) != 0 && shim_may_ask(shim) && is_behind(shim, row, payment) &&
		wait_on(shim, &waited))
		;
}

/* Whether this launch is one of those that are measured. Threads may draw the same number: no harm is in that. */
static bool drawn(struct shim *shim, uint32_t rate)
{
	uint64_t random = atomic_load_explicit(&shim->random, memory_order_relaxed);

	random ^= random << 13;
	random ^= random >> 7;
	random ^= random << 17;
	atomic_store_explicit(&shim->random, random, memory_order_relaxed);
	return (uint32_t)(random >> 48) < rate;
}

uint64_t cost_of(struct launch *launch, bool *measure)
{
	struct shim *shim = launch->shim;
	struct cost *cost = cost_find(shim, launch->key, launch->shape);
	uint32_t launches;
	uint64_t price;

	if (__builtin_expect(cost == NULL, 0))
		cost = cost_new(shim, launch->key, launch->shape);
	launches = atomic_load_explicit(&cost->launches, memory_order_relaxed);
	atomic_store_explicit(&cost->launches, launches + 1, memory_order_relaxed);
	price = atomic_load_explicit(&cost->nanoseconds, memory_order_relaxed);
	if (__builtin_expect(price == 0, 0))
		price = price_of_unknown(shim, cost, launches);
	launch->unpriced = price == 0;
	launch->paid_ns = price;
	launch->rate = launch->unpriced ? PACE_ALL : atomic_load_explicit(&cost->rate, memory_order_relaxed);
	*measure = launch->rate >= PACE_ALL || drawn(shim, launch->rate);
	return price;
}

/* Events are of the context in which they are made, and are recorded into streams of the same. */
static bool events_begin(struct launch *launch)
{
	const bool entered = shim_enter_stream(launch->shim, launch->stream);
	const bool made = driver.cuEventCreate(&launch->start, CU_EVENT_DEFAULT) == CUDA_SUCCESS &&
			  driver.cuEventCreate(&launch->end, CU_EVENT_DEFAULT) == CUDA_SUCCESS;

	shim_leave_stream(entered);
	return made && record(launch, launch->start) == CUDA_SUCCESS;
}

/* Whether other processes of the container have paid for work that ends after this one's. */
static bool others_work(const struct shim *shim, int row)
{
	return atomic_load_explicit(&shim->region->devices[row].busy_until_ns, memory_order_relaxed) >
	       atomic_load_explicit(&shim->busy_until_ns[row], memory_order_relaxed);
}

void cost_measure(struct launch *launch)
{
	uint64_t waited = 0;

	launch->start = launch->end = NULL;
	launch->launched_ns = launch->unpriced ? shim_now_ns(launch->shim) : 0;
	launch->others_ns = 0;
	if (!shim_may_ask(launch->shim))
		return;
	cost_collect(launch->shim);
	while (!may_queue(launch->shim, launch) && wait_on(launch->shim, &waited))
		;
	launch->sampled = driver.cuEventCreate != NULL && driver.cuEventRecord != NULL && driver.cuEventQuery != NULL &&
			  driver.cuEventElapsedTime != NULL && driver.cuEventDestroy_v2 != NULL && events_begin(launch);
	if (!launch->sampled && driver.cuEventDestroy_v2 != NULL)
		events_drop(launch->start, launch->end);
	if (launch->unpriced || others_work(launch->shim, launch->row)) {
		launch->launched_ns = shim_now_ns(launch->shim);
		launch->others_ns = pace_others_ns(&launch->shim->region->devices[launch->row],
			atomic_load_explicit(&launch->shim->busy_until_ns[launch->row], memory_order_relaxed),
			launch->launched_ns);
	}
}

void cost_measured(struct launch *launch, CUresult result)
{
	const struct sample sample = {
		.start = launch->start,
		.end = launch->end,
		.key = launch->key,
		.shape = launch->shape,
		.paid_ns = launch->paid_ns,
		.others_ns = launch->others_ns,
		.rate = launch->rate,
		.payment = launch->payment,
		.row = launch->row,
		.launched_ns = launch->launched_ns,
		.unpriced = launch->unpriced,
	};

	if (launch->sampled && result == CUDA_SUCCESS && record(launch, launch->end) == CUDA_SUCCESS &&
		sample_put(launch->shim, &sample))
		return;
	if (launch->sampled)
		events_drop(launch->start, launch->end);
	if (launch->unpriced && result == CUDA_SUCCESS)
		assumed(launch->shim, &sample);
	else if (launch->unpriced)
		cost_forget(launch->shim, launch->key, launch->shape); /* it did not run: the next one is the first */
}
