/* The arithmetic of the compute limit: what is paid, what is owed, who is next, what is learned. */
#include <stdlib.h>
#include <sys/mman.h>

#include "check.h"
#include "pace.h"

#define MS_NS UINT64_C(1000000)

enum { START_NS = 1000 * 1000 * 1000, CHARGES = 1000 };

static _Atomic uint64_t own_payments; /* what the process itself has paid; of each test's own */

static struct region_device device_paid_until(uint64_t ns)
{
	atomic_store(&own_payments, 0);
	struct region_device device = {.virtual_ns = 0};

	atomic_store(&device.paid_until_ns, ns);
	return device;
}

static uint64_t paid(const struct region_device *device)
{
	return atomic_load(&device->paid_until_ns);
}

static void what_is_paid_moves_by_the_share(void)
{
	struct region_device device = device_paid_until(START_NS);

	CHECK_EQUAL(pace_pay(&device, &own_payments, START_NS, 3 * MS_NS, 30), 0);
	CHECK_EQUAL(paid(&device), START_NS + 10 * MS_NS);
	CHECK_EQUAL(pace_pay(&device, &own_payments, START_NS + 4 * MS_NS, 3 * MS_NS, 30), 6 * MS_NS); /* not yet */
	CHECK_EQUAL(paid(&device), START_NS + 10 * MS_NS);
	CHECK_EQUAL(pace_pay(&device, &own_payments, START_NS + 10 * MS_NS, 3 * MS_NS, 30), 0);
	CHECK_EQUAL(paid(&device), START_NS + 20 * MS_NS);
}

static void nobody_catches_up_on_more_than_a_burst(void)
{
	struct region_device device = device_paid_until(0);

	CHECK_EQUAL(pace_pay(&device, &own_payments, START_NS, 5 * MS_NS, 50), 0);
	CHECK_EQUAL(paid(&device), START_NS - PACE_BURST_NS + 10 * MS_NS);
	CHECK_EQUAL(pace_pay(&device, &own_payments, START_NS, 5 * MS_NS, 50), 0); /* some of it is left */
	CHECK_EQUAL(paid(&device), START_NS);
}

/* What has run already is counted from when it was launched, and no debt is forgotten for a newer one. */
static void what_is_owed_adds_up(void)
{
	struct region_device device = device_paid_until(START_NS);

	for (uint64_t i = 1; i <= CHARGES; i++) {
		pace_owe(&device, &own_payments, START_NS + 1, START_NS + 1, MS_NS, 50);
		CHECK_EQUAL(paid(&device), START_NS + 2 * i * MS_NS);
	}
}

static void a_debt_a_little_behind_the_clock_is_kept(void)
{
	struct region_device device = device_paid_until(START_NS - 5 * MS_NS);

	pace_owe(&device, &own_payments, START_NS, START_NS + MS_NS, MS_NS, 100);
	CHECK_EQUAL(paid(&device), START_NS - 4 * MS_NS);
}

/* However it is charged, in the long run nobody has more than his share, and who always asks has all of it. */
static void any_mixture_of_charges_comes_to_the_share(void)
{
	unsigned seed = 1;

	for (uint32_t percent = 1; percent < 100; percent += 7) {
		struct region_device device = device_paid_until(START_NS);
		uint64_t now = START_NS, used = 0;

		for (int i = 0; i < CHARGES; i++) {
			const uint64_t cost = 1 + (uint64_t)rand_r(&seed) % (3 * MS_NS);
			const bool priced = rand_r(&seed) % 2;
			uint64_t wait;

			while ((wait = pace_pay(&device, &own_payments, now, priced ? cost : 0, percent)) != 0)
				now += wait;
			if (!priced)
				pace_owe(&device, &own_payments, now, now, cost, percent);
			used += cost;
		}
		now = paid(&device); /* when the last of it has been earned */
		CHECK(used * 100 <= (now - START_NS) * percent + CHARGES * 100);
		CHECK(used * 100 + CHARGES * 100 >= (now - START_NS) * percent);
	}
}

static void damage_is_forgotten(void)
{
	struct region_device device = device_paid_until(UINT64_MAX - 5);

	CHECK_EQUAL(pace_pay(&device, &own_payments, START_NS, MS_NS, 50), 0);
	CHECK_EQUAL(paid(&device), START_NS - PACE_BURST_NS + 2 * MS_NS);
	atomic_store(&device.paid_until_ns, UINT64_MAX - 5);
	pace_owe(&device, &own_payments, START_NS, START_NS, MS_NS, 50);
	CHECK_EQUAL(paid(&device), START_NS - PACE_BURST_NS + 2 * MS_NS);
}

/* Debt has a bound, below which it is never taken for damage. */
static void a_kernel_of_minutes_is_paid_for(void)
{
	struct region_device device = device_paid_until(START_NS);

	CHECK_EQUAL(pace_pay(&device, &own_payments, START_NS, 10000 * MS_NS, 1), 0);
	CHECK_EQUAL(pace_pay(&device, &own_payments, START_NS + 1, MS_NS, 1), PACE_HORIZON_NS - 1);
	pace_owe(&device, &own_payments, START_NS + 1, START_NS + 1, UINT64_MAX, 1);
	CHECK_EQUAL(pace_pay(&device, &own_payments, START_NS + 2, MS_NS, 1), PACE_HORIZON_NS - 1);
}

/* One that was launched so long ago takes nothing away from what others owe since. */
static void a_kernel_that_ran_for_an_hour_leaves_debts_as_they_are(void)
{
	const uint64_t hour_ns = UINT64_C(3600) * 1000 * MS_NS;
	struct region_device device = device_paid_until(START_NS + hour_ns + 50 * MS_NS);

	pace_owe(&device, &own_payments, START_NS, START_NS + hour_ns, MS_NS, 50);
	CHECK_EQUAL(paid(&device), START_NS + hour_ns + 52 * MS_NS);
}

static void the_least_served_goes_first(void)
{
	struct region *region = mmap(NULL, REGION_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	CHECK(region != MAP_FAILED);
	atomic_store(&region->slot_high_water, 3);
	atomic_store(&region->slots[0].use[0].waiting, 50);
	atomic_store(&region->slots[1].use[0].waiting, 40);
	CHECK(!pace_is_next(region, 0, 0, 50));
	CHECK(pace_is_next(region, 0, 1, 40));
	CHECK(pace_is_next(region, 1, 0, 50)); /* on another device nobody waits */
	atomic_store(&region->slots[1].use[0].waiting, 50);
	CHECK(pace_is_next(region, 0, 0, 50)); /* of two alike, the first */
	CHECK(!pace_is_next(region, 0, 1, 50));
}

static void who_was_idle_does_not_make_up_for_it(void)
{
	struct region_device device = device_paid_until(0);

	pace_served(&device, 500);
	pace_served(&device, 300); /* never back */
	CHECK_EQUAL(pace_join(&device, 10), 501);
	CHECK_EQUAL(pace_join(&device, 900), 900);
}

static void a_price_is_the_mean_of_what_was_measured(void)
{
	uint64_t price = 80;

	CHECK_EQUAL(pace_learn(80, 40, 2), 60); /* of two */
	CHECK_EQUAL(pace_learn(60, 90, 3), 70); /* of three */
	CHECK_EQUAL(pace_learn(80, 160, 100), 90);
	CHECK_EQUAL(pace_learn(80, 0, 100), 70); /* as much downwards as upwards */
	for (int i = 0; i < 1000; i++)
		price = pace_learn(price, i % 2 ? 2000 : 1000, 8 + (uint32_t)i);
	CHECK(price > 1400 && price < 1600);
}

static void steady_kernels_are_measured_rarely_and_others_often(void)
{
	CHECK_EQUAL(pace_rate(5000, 10000, 100000, 10), PACE_LEAST);
	CHECK_EQUAL(pace_rate(10000, 0, PACE_FIRST, 10), PACE_ALL);
	CHECK_EQUAL(pace_rate(10000, 0, 4 * PACE_FIRST, 10), PACE_ALL / 4);
	CHECK_EQUAL(pace_rate(PACE_LONG_NS, 0, 100000, 10), PACE_ALL);
	CHECK(pace_rate(10000, UINT64_C(100000) * 100000, 100000, 10) > PACE_ALL / 2);
	CHECK(pace_rate(10000, UINT64_C(100000) * 100000, 100000, 50) >
		pace_rate(10000, UINT64_C(100000) * 100000, 100000, 10));
	CHECK_EQUAL(pace_rate(UINT64_MAX, UINT64_MAX, 100000, 1), PACE_ALL);
	CHECK_EQUAL(pace_spread(0, 100, 300), 10000);
	CHECK_EQUAL(pace_spread(51200, 100, 100), 51100);
	CHECK(pace_spread(0, 0, UINT64_MAX) <= UINT64_MAX / 4 + 1);
}

static void what_others_of_the_container_run_is_not_ones_own(void)
{
	struct region_device device = {0};

	pace_busy(&device.busy_until_ns, 1000, 500);
	pace_busy(&device.busy_until_ns, 1200, 100); /* behind the first */
	CHECK_EQUAL(device.busy_until_ns, 1600);
	CHECK_EQUAL(pace_others_ns(&device, 0, 1300), 300);
	CHECK_EQUAL(pace_others_ns(&device, 1500, 1300), 100); /* some of it is one's own */
	CHECK_EQUAL(pace_others_ns(&device, 0, 1700), 0);
	CHECK_EQUAL(pace_others_ns(&device, 0, 1), 1599);
	atomic_store(&device.busy_until_ns, UINT64_MAX); /* damage */
	CHECK_EQUAL(pace_others_ns(&device, 0, 1300), 0);
	CHECK_EQUAL(pace_own_ns(100, 350, 200), 150);
	CHECK_EQUAL(pace_own_ns(100, 250, 200), 100); /* never below the price, */
	CHECK_EQUAL(pace_own_ns(100, 50, 200), 50);   /* unless it was measured so */
}

static void beside_others_a_part_of_the_least_is_charged(void)
{
	CHECK_EQUAL(pace_beside_others_ns(2000, 1000), 2000);
	CHECK_EQUAL(pace_beside_others_ns(2000, 0), 2000);
	CHECK_EQUAL(pace_beside_others_ns(2000, 250), 500);
	CHECK_EQUAL(pace_beside_others_ns(2000, UINT16_MAX), 131070);
	CHECK_EQUAL(pace_beside_others_ns(UINT64_MAX, UINT16_MAX), PACE_HORIZON_NS / 1000 * UINT16_MAX);
}

int main(int argc, char **argv)
{
	static const struct test tests[] = {
		TEST(what_is_paid_moves_by_the_share),
		TEST(nobody_catches_up_on_more_than_a_burst),
		TEST(what_is_owed_adds_up),
		TEST(a_debt_a_little_behind_the_clock_is_kept),
		TEST(any_mixture_of_charges_comes_to_the_share),
		TEST(damage_is_forgotten),
		TEST(a_kernel_of_minutes_is_paid_for),
		TEST(a_kernel_that_ran_for_an_hour_leaves_debts_as_they_are),
		TEST(the_least_served_goes_first),
		TEST(who_was_idle_does_not_make_up_for_it),
		TEST(a_price_is_the_mean_of_what_was_measured),
		TEST(steady_kernels_are_measured_rarely_and_others_often),
		TEST(beside_others_a_part_of_the_least_is_charged),
		TEST(what_others_of_the_container_run_is_not_ones_own),
	};
	return RUN_TESTS(tests, argc, argv);
}
