/* One kernel whose cost varies: whatever the pattern, it is held to its share, and gets it. */
#define _GNU_SOURCE
#include "share.h"

/* What launch `n` costs, in nanoseconds; `at_ns` is the time since the first. */
typedef uint64_t pattern(uint64_t n, uint64_t at_ns);

#define US UINT64_C(1000)

static uint64_t seed;

/* A number of the test's own, which the library cannot know. */
static uint64_t chance(uint64_t below)
{
	seed = seed * 6364136223846793005u + 1442695040888963407u;
	return (seed >> 33) % below;
}

static double share_of(pattern *cost, uint32_t percent, bool wait)
{
	uint64_t started, busy;
	CUfunction kernel;

	share_begin(percent);
	seed = percent;
	kernel = rig_kernel("varies");
	started = clock_now();
	busy = fakeBusyNanoseconds(0);
	for (uint64_t n = 0; clock_now() - started < 4 * SECOND_NS; n++) {
		fakeRunFor(kernel, cost(n, clock_now() - started));
		CHECK_EQUAL(rig_launch(kernel), CUDA_SUCCESS);
		if (wait)
			CHECK_EQUAL(cuStreamSynchronize(NULL), CUDA_SUCCESS);
		clock_sleep(HOST_NS);
	}
	CHECK_EQUAL(cuStreamSynchronize(NULL), CUDA_SUCCESS);
	return share_since(started, busy);
}

/* Within two points of its share, and no less than nine tenths of it, after four seconds. */
static void holds(pattern *cost)
{
	static const uint32_t percents[] = {10, 50};

	for (int run = 0; run < 3; run++) {
		const uint32_t percent = percents[run % 2];
		int status;

		if (fork() == 0) {
			const double share = share_of(cost, percent, run >= 2);

			CHECK_SHARE(share, percent, 2);
			CHECK(share > 0.9 * percent);
			exit(0);
		}
		wait(&status);
		CHECK_EQUAL(status, 0);
		unlink("region");
		unlink("cards.state");
	}
}

#define PATTERN(name, expression)                                                                                      \
	static uint64_t cost_of_##name(uint64_t n, uint64_t at_ns)                                                     \
	{                                                                                                              \
		(void)n, (void)at_ns;                                                                                  \
		return (expression);                                                                                   \
	}                                                                                                              \
                                                                                                                       \
	static void name(void)                                                                                         \
	{                                                                                                              \
		holds(cost_of_##name);                                                                                 \
	}

PATTERN(constant_and_short, 5 * US)
PATTERN(constant, 225 * US)
PATTERN(constant_and_long, 3000 * US)
PATTERN(one_of_two_by_chance, chance(2) ? 450 * US : 50 * US)
PATTERN(by_chance_about_the_threshold, chance(2) ? 900 * US : 300 * US)
PATTERN(any_length_by_chance, (1 + chance(800)) * US)
PATTERN(alternating, n % 2 ? 350 * US : 100 * US)
PATTERN(alternating_the_other_way, n % 2 ? 100 * US : 350 * US)
PATTERN(alternating_and_short, n % 2 ? 3 * US : 30 * US)
PATTERN(of_period_3, (n % 3 == 0 ? 100 : n % 3 == 1 ? 350 : 225) * US)
PATTERN(mostly_dear_of_period_4, n % 4 ? 450 * US : 50 * US)
PATTERN(mostly_cheap_of_period_4, n % 4 ? 50 * US : 450 * US)
PATTERN(of_period_48, (5 + n % 48 * 10) * US)
PATTERN(dear_once_in_64, n % 64 == 0 ? 400 * US : 5 * US)
PATTERN(dear_once_in_64_elsewhere, n % 64 == 37 ? 400 * US : 5 * US)
PATTERN(cheap_once_in_64, n % 64 == 0 || n < 4 ? 5 * US : 400 * US)
PATTERN(cheap_once_in_64_elsewhere, n % 64 == 1 ? 5 * US : 400 * US)
PATTERN(of_period_256, (n % 256 < 128 ? 10 : 300) * US)
PATTERN(dear_once_in_256, n % 256 == 255 ? 2000 * US : 10 * US)
PATTERN(cheap_at_first, n < 500 ? 2 * US : 300 * US)
PATTERN(dear_at_first, n < 20 ? 2000 * US : 20 * US)
PATTERN(growing_slowly, (10 + at_ns / 8000000) * US)
PATTERN(shrinking_slowly, (510 - at_ns / 8000000) * US)
PATTERN(in_phases, at_ns / 200000000 % 2 ? 400 * US : 20 * US)
PATTERN(rarely_long, chance(400) == 0 ? 1000 * US : 20 * US)

/* Kernels side by side: none pays for another. */

static double share_of_two(
	int cheap_ones, CUfunction cheap, CUfunction dear, unsigned cheap_threads, unsigned dear_threads)
{
	const uint64_t started = clock_now(), busy = fakeBusyNanoseconds(0);

	fakeRunFor(cheap, 5 * US);
	fakeRunFor(dear, 400 * US);
	while (clock_now() - started < 4 * SECOND_NS) {
		for (int i = 0; i < cheap_ones; i++) {
			CHECK_EQUAL(
				cuLaunchKernel(cheap, 1, 1, 1, cheap_threads, 1, 1, 0, NULL, NULL, NULL), CUDA_SUCCESS);
			clock_sleep(HOST_NS);
		}
		CHECK_EQUAL(cuLaunchKernel(dear, 1, 1, 1, dear_threads, 1, 1, 0, NULL, NULL, NULL), CUDA_SUCCESS);
		clock_sleep(HOST_NS);
	}
	CHECK_EQUAL(cuStreamSynchronize(NULL), CUDA_SUCCESS);
	return share_since(started, busy);
}

static void kernels_whose_handles_lie_close_together(void)
{
	static _Alignas(4096) char handles[4096];

	share_begin(10);
	CHECK_SHARE(
		share_of_two(8, (CUfunction)(void *)handles, (CUfunction)(void *)(handles + 0x300), 256, 128), 10, 1);
}

int main(int argc, char **argv)
{
	static const struct test tests[] = {
		TEST(constant_and_short),
		TEST(constant),
		TEST(constant_and_long),
		TEST(one_of_two_by_chance),
		TEST(by_chance_about_the_threshold),
		TEST(any_length_by_chance),
		TEST(alternating),
		TEST(alternating_the_other_way),
		TEST(alternating_and_short),
		TEST(of_period_3),
		TEST(mostly_dear_of_period_4),
		TEST(mostly_cheap_of_period_4),
		TEST(of_period_48),
		TEST(dear_once_in_64),
		TEST(dear_once_in_64_elsewhere),
		TEST(cheap_once_in_64),
		TEST(cheap_once_in_64_elsewhere),
		TEST(of_period_256),
		TEST(dear_once_in_256),
		TEST(cheap_at_first),
		TEST(dear_at_first),
		TEST(growing_slowly),
		TEST(shrinking_slowly),
		TEST(in_phases),
		TEST(rarely_long),
		TEST(kernels_whose_handles_lie_close_together),
	};
	return RUN_TESTS(tests, argc, argv);
}
