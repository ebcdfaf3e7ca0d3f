/* cost.c: what kernels cost. A pair of events is recorded around the first launches of each kernel, around every launch
 * of a long one, and around one in 64 of a short one.
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
	MEASURED_FIRST = 4,  /* launches of a new kernel that are all measured */
	MEASURED_EVERY = 64, /* one in so many short ones afterwards */
	WAYS = 4,            /* places of the table that a kernel may have */
	LEARN_SLICE_NS = 50 * 1000,
	LEARN_PATIENCE_NS = 200 * 1000 * 1000,
	ASSUMED_NS = 1000 * 1000,       /* taken for a kernel that could not be measured */
	UNPRICED_MOST_NS = 1000 * 1000, /* device time that may be under way at no known price */
	LONG_KERNEL_NS = 500 * 1000,
	QUEUED_MOST = 2, /* measurements of one kernel that may be under way */
};

static unsigned home_of(uint64_t key)
{
	return (unsigned)(key * 0x9e3779b97f4a7c15ull >> 54);
}
_Static_assert(COSTS == 1 << 10, "a kernel's home is the top ten bits of a hash");

/* The kernel's place, NULL when it has none. */
static struct cost *cost_find(struct shim *shim, uint64_t key)
{
	const unsigned home = home_of(key);

	for (unsigned way = 0; way < WAYS; way++)
		if (atomic_load_explicit(&shim->costs[(home + way) % COSTS].key, memory_order_relaxed) == key)
			return &shim->costs[(home + way) % COSTS];
	return NULL;
}

/* A place for a kernel that has none: a free one, else another's, which is learned anew when it comes again. */
static struct cost *cost_new(struct shim *shim, uint64_t key)
{
	struct cost *cost = &shim->costs[(home_of(key) + key / COSTS % WAYS) % COSTS];

	for (unsigned way = 0; way < WAYS; way++) {
		struct cost *other = &shim->costs[(home_of(key) + way) % COSTS];

		if (atomic_load_explicit(&other->key, memory_order_relaxed) == 0)
			cost = other;
	}
	atomic_store_explicit(&cost->launches, 0, memory_order_relaxed);
	atomic_store_explicit(&cost->nanoseconds, 0, memory_order_relaxed);
	atomic_store_explicit(&cost->assumed, false, memory_order_relaxed);
	atomic_store_explicit(&cost->key, key, memory_order_relaxed);
	return cost;
}

void cost_forget(struct shim *shim, uint64_t key)
{
	struct cost *cost = cost_find(shim, key);

	if (cost == NULL)
		return;
	atomic_store_explicit(&cost->key, 0, memory_order_relaxed);
	spin_take(&shim->sample_lock);
	for (int i = 0; i < shim->samples_open; i++)
		if (shim->samples[i].key == key)
			shim->samples[i].key = 0; /* it is still paid for, and teaches nothing */
	spin_give(&shim->sample_lock);
}

/* Have this thread look at events although others capture. Where that was done, `mode` is what it was before. */
static bool relax(const struct shim *shim, CUstreamCaptureMode *mode)
{
	*mode = CU_STREAM_CAPTURE_MODE_RELAXED;
	return atomic_load(&shim->captures) != 0 && driver.cuThreadExchangeStreamCaptureMode != NULL &&
	       driver.cuThreadExchangeStreamCaptureMode(mode) == CUDA_SUCCESS;
}

static void restore(bool relaxed, CUstreamCaptureMode mode)
{
	if (relaxed)
		(void)driver.cuThreadExchangeStreamCaptureMode(&mode);
}

static bool may_measure(const struct shim *shim)
{
	return atomic_load(&shim->captures) == 0 || driver.cuThreadExchangeStreamCaptureMode != NULL;
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

static void owe(struct shim *shim, int row, uint64_t launched_ns, uint64_t device_ns)
{
	const uint32_t percent = shim_sm_percent(shim, row);
	struct timespec now = {0};

	atomic_fetch_add_explicit(&shim_use(shim, row)->busy_ns, device_ns, memory_order_relaxed);
	atomic_fetch_add_explicit(&shim->served_ns[row], device_ns, memory_order_relaxed);
	if (percent == 100)
		return;
	clock_gettime(CLOCK_MONOTONIC, &now);
	pace_owe(&shim->region->devices[row], launched_ns, (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec,
		device_ns, percent);
}

static void learned(struct shim *shim, const struct sample *sample, uint64_t measured_ns)
{
	struct cost *cost = sample->key != 0 ? cost_find(shim, sample->key) : NULL;

	if (cost != NULL) {
		const uint64_t known = atomic_load(&cost->nanoseconds);
		const bool first = atomic_exchange(&cost->assumed, false) || known == 0;
		const uint64_t now_known = pace_learn(known, measured_ns, first);

		atomic_store(&cost->nanoseconds, now_known == 0 ? 1 : now_known);
	}
	if (sample->unpriced) {
		const uint64_t usual = atomic_load(&shim->unpriced_ns);

		atomic_store(&shim->unpriced_ns, measured_ns > usual ? measured_ns : usual - (usual - measured_ns) / 8);
		owe(shim, sample->row, sample->launched_ns, measured_ns);
	}
}

/* It was not paid for, and cannot be measured. */
static void assumed(struct shim *shim, const struct sample *sample)
{
	struct cost *cost = sample->key != 0 ? cost_find(shim, sample->key) : NULL;
	uint64_t unknown = 0;

	if (cost != NULL && atomic_compare_exchange_strong(&cost->nanoseconds, &unknown, ASSUMED_NS))
		atomic_store(&cost->assumed, true);
	owe(shim, sample->row, sample->launched_ns, ASSUMED_NS);
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
	CUstreamCaptureMode mode;
	bool relaxed;

	if (open == 0 || !may_measure(shim))
		return;
	relaxed = relax(shim, &mode);
	while (open-- > 0) { /* one that is put back comes behind those that were looked at */
		struct sample sample;

		if (sample_take(shim, open, &sample))
			sample_look(shim, &sample);
	}
	restore(relaxed, mode);
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

/* Whether one more measurement of a kernel may be begun: not when the price has been wrong for so long that they queue.
 */
static bool may_queue(struct shim *shim, uint64_t key)
{
	unsigned queued = 0;

	spin_take(&shim->sample_lock);
	for (int i = 0; i < shim->samples_open; i++)
		queued += shim->samples[i].key == key && !shim->samples[i].given_up;
	spin_give(&shim->sample_lock);
	return queued < QUEUED_MOST;
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

	if (!may_measure(shim))
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

uint64_t cost_of(struct launch *launch, bool *measure)
{
	struct shim *shim = launch->shim;
	struct cost *cost = cost_find(shim, launch->key);
	uint32_t launches;
	uint64_t price;

	if (__builtin_expect(cost == NULL, 0))
		cost = cost_new(shim, launch->key);
	launches = atomic_load_explicit(&cost->launches, memory_order_relaxed);
	atomic_store_explicit(&cost->launches, launches + 1, memory_order_relaxed);
	price = atomic_load_explicit(&cost->nanoseconds, memory_order_relaxed);
	if (__builtin_expect(price == 0, 0))
		price = price_of_unknown(shim, cost, launches);
	launch->unpriced = price == 0;
	*measure = launches < MEASURED_FIRST || launches % MEASURED_EVERY == 0 || price >= LONG_KERNEL_NS;
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

void cost_measure(struct launch *launch)
{
	uint64_t waited = 0;

	if (!may_measure(launch->shim))
		return;
	cost_collect(launch->shim);
	while (!may_queue(launch->shim, launch->key) && wait_on(launch->shim, &waited))
		;
	launch->sampled = driver.cuEventCreate != NULL && driver.cuEventRecord != NULL && driver.cuEventQuery != NULL &&
			  driver.cuEventElapsedTime != NULL && driver.cuEventDestroy_v2 != NULL && events_begin(launch);
	if (!launch->sampled && driver.cuEventDestroy_v2 != NULL)
		events_drop(launch->start, launch->end);
}

void cost_measured(struct launch *launch, CUresult result)
{
	const struct sample sample = {
		.start = launch->start,
		.end = launch->end,
		.key = launch->key,
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
		cost_forget(launch->shim, launch->key); /* it did not run: the next one is the first */
}
