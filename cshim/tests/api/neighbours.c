/* Two containers on one card. The test's first process plays the node agent: at each look it compares what the driver
 * counts for each container with what that was charged, and writes into the grants how much of a kernel's least time is
 * charged (`charge_permille`), as hami_node_agent/fairness.py does. */
#define _GNU_SOURCE
#include <sys/stat.h>

#include "share.h"

enum { CONTAINERS = 2, LOOKS = 12, SETTLED = 6 };

#define LOOK_NS  (5 * SECOND_NS)
#define LEASE_NS (12 * SECOND_NS)
#define ALWAYS   (LOOKS * LOOK_NS)

/* What a container does: kernels of `kernel_ns`, or by chance of `other_ns`, from `starts_ns` on. */
struct container {
	uint32_t percent;
	uint64_t kernel_ns;
	uint64_t other_ns; /* 0: all are of `kernel_ns` */
	uint64_t starts_ns;
};

/* What the agent knows of one. */
struct watched {
	struct grant grant;
	const struct region *region;
	uint64_t ran_ns;
	uint64_t charged_ns;
	uint32_t permille;
	bool shared;
	bool active;
	double ran_percent;
	double charged_percent;
};

static _Atomic uint64_t *ran; /* device time of each container, by the driver's count */

/* Go into a container's directory, where its grant and its region lie. */
static void enter(int number)
{
	static char base[PATH_MAX - 8];
	char path[PATH_MAX];

	if (base[0] == '\0')
		CHECK(getcwd(base, sizeof(base)) != NULL);
	snprintf(path, sizeof(path), "%s/c%d", base, number);
	(void)mkdir(path, 0755);
	CHECK_EQUAL(chdir(path), 0);
}

static void launch_all_the_time(int number, const struct container *does)
{
	uint64_t random = 88172645463325252u + (uint64_t)number, started;
	CUfunction kernel;

	clock_member = number;
	clock_sleep(does->starts_ns);
	rig_context(0);
	kernel = rig_kernel("k");
	started = clock_now();
	while (clock_now() - started < ALWAYS - does->starts_ns) {
		uint64_t ns = does->kernel_ns;

		random ^= random << 13, random ^= random >> 7, random ^= random << 17;
		if (does->other_ns != 0 && random >> 40 & 1)
			ns = does->other_ns;
		fakeRunFor(kernel, ns);
		CHECK_EQUAL(rig_launch(kernel), CUDA_SUCCESS);
		atomic_fetch_add(&ran[number], ns);
		clock_sleep(HOST_NS);
	}
	clock_leave();
	_exit(0);
}

/* As fairness.charge_permille. */
static uint32_t corrected(uint32_t before, double ran_percent, double charged, uint32_t share)
{
	const bool saturated = charged >= 0.9 * share;
	const double apart = ran_percent + 0.5 - (charged > share ? share : charged);
	double ratio = (ran_percent + 0.5) / (charged > share ? share : charged < 1 ? 1 : charged);

	if ((!saturated && ran_percent + 0.5 <= share + 2) || (apart > -2 && apart < 1))
		return before;
	ratio = ratio < 0.25 ? 0.25 : ratio > 4 ? 4 : ratio;
	return before * ratio < 250 ? 250 : before * ratio > 65535 ? 65535 : (uint32_t)(before * ratio);
}

static void look(struct watched *watched, int number)
{
	const uint64_t ran_ns = atomic_load(&ran[number]);
	const uint64_t charged_ns = atomic_load(&watched->region->slots[0].use[0].busy_ns);

	watched->ran_percent = (double)(100 * (ran_ns - watched->ran_ns) / LOOK_NS); /* whole ones, as NVML's */
	watched->charged_percent = 100.0 * (double)(charged_ns - watched->charged_ns) / LOOK_NS;
	watched->active = ran_ns != watched->ran_ns;
	watched->ran_ns = ran_ns;
	watched->charged_ns = charged_ns;
}

static void follow(struct watched *watched, int number, bool shared)
{
	if (watched->shared)
		watched->permille = corrected(watched->permille, watched->ran_percent, watched->charged_percent,
			watched->grant.devices[0].sm_percent);
	watched->shared = shared;
	watched->grant.charge_permille[0] = (uint16_t)watched->permille;
	watched->grant.shared_until_ns = shared ? clock_now() + LEASE_NS : 0;
	enter(number);
	rig_write(&watched->grant);
}

static const struct region *region_of(void)
{
	int fd = open("region", O_RDWR | O_CREAT | O_CLOEXEC, 0666);
	const struct region *region;

	CHECK(fd >= 0);
	CHECK_EQUAL(ftruncate(fd, sizeof(*region)), 0);
	region = mmap(NULL, sizeof(*region), PROT_READ, MAP_SHARED, fd, 0);
	CHECK(region != MAP_FAILED);
	close(fd);
	return region;
}

/* Run both, and look as the agent does; each one's share of the card once all has settled. */
static void run(const struct container *containers, double *shares)
{
	struct watched watched[CONTAINERS] = {0};
	uint64_t settled[CONTAINERS] = {0};

	clock_start(CONTAINERS + 1);
	rig_cards(1, 8 * GIB);
	ran = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	for (int i = 0; i < CONTAINERS; i++) {
		enter(i);
		watched[i].permille = 1000;
		watched[i].grant = rig_grant(1, GIB, containers[i].percent);
		rig_write(&watched[i].grant);
		watched[i].region = region_of();
		if (fork() == 0)
			launch_all_the_time(i, &containers[i]);
	}
	clock_member = CONTAINERS;
	for (int looks = 1; looks <= LOOKS; looks++) {
		clock_sleep(LOOK_NS);
		for (int i = 0; i < CONTAINERS; i++)
			look(&watched[i], i);
		for (int i = 0; i < CONTAINERS; i++)
			follow(&watched[i], i, watched[1 - i].active);
		for (int i = 0; looks == SETTLED && i < CONTAINERS; i++)
			settled[i] = watched[i].ran_ns;
	}
	for (int i = 0; i < CONTAINERS; i++)
		shares[i] = 100.0 * (double)(watched[i].ran_ns - settled[i]) / ((LOOKS - SETTLED) * LOOK_NS);
	clock_leave();
	for (int status; wait(&status) > 0;)
		CHECK_EQUAL(status, 0);
}

static void both_get_their_shares(struct container one, struct container two)
{
	const struct container containers[CONTAINERS] = {one, two};
	double shares[CONTAINERS];

	run(containers, shares);
	CHECK_SHARE(shares[0], one.percent, 2);
	CHECK_SHARE(shares[1], two.percent, 2);
}

#define US UINT64_C(1000)
#define MS UINT64_C(1000000)

static void halves_of_a_card(void)
{
	both_get_their_shares((struct container){50, 2 * MS, 0, 0}, (struct container){50, 2 * MS, 0, 0});
}

static void halves_with_kernels_of_other_lengths(void)
{
	both_get_their_shares((struct container){50, 10 * MS, 0, 0}, (struct container){50, 400 * US, 0, 0});
}

static void shares_of_30_and_70(void)
{
	both_get_their_shares((struct container){30, 2 * MS, 0, 0}, (struct container){70, 2 * MS, 0, 0});
}

static void shares_of_30_and_70_with_kernels_of_other_lengths(void)
{
	both_get_their_shares((struct container){30, 5 * MS, 0, 0}, (struct container){70, 1 * MS, 0, 0});
}

static void shares_that_leave_room(void)
{
	both_get_their_shares((struct container){20, 1 * MS, 0, 0}, (struct container){40, 3 * MS, 0, 0});
}

static void short_kernels(void)
{
	both_get_their_shares((struct container){40, 300 * US, 0, 0}, (struct container){60, 700 * US, 0, 0});
}

static void kernels_that_vary(void)
{
	both_get_their_shares((struct container){30, 200 * US, 1800 * US, 0}, (struct container){50, 2 * MS, 0, 0});
}

static void one_that_varies_a_lot_beside_its_like(void)
{
	both_get_their_shares((struct container){40, 100 * US, 3 * MS, 0}, (struct container){40, 3 * MS, 100 * US, 0});
}

static void one_that_comes_later(void)
{
	both_get_their_shares((struct container){50, 2 * MS, 0, 0}, (struct container){50, 1 * MS, 0, 12 * SECOND_NS});
}

static void one_alone_keeps_its_share(void)
{
	const struct container containers[] = {{30, 200 * US, 1800 * US, 0}, {50, 2 * MS, 0, ALWAYS}};
	double shares[CONTAINERS];

	run(containers, shares);
	CHECK_SHARE(shares[0], 30, 2);
	CHECK_SHARE(shares[1], 0, 0);
}

static double share_with(uint16_t permille, uint64_t lease_ns)
{
	struct grant grant;

	clock_start(1);
	grant = rig_one(GIB, 30);
	grant.charge_permille[0] = permille;
	grant.shared_until_ns = clock_now() + lease_ns;
	rig_write(&grant);
	rig_context(0);
	return share_run(rig_kernel("k_2ms"), 2 * SECOND_NS, false);
}

static void the_agents_factor_holds_as_long_as_its_lease(void)
{
	CHECK_SHARE(share_with(500, 10 * SECOND_NS), 60, 3);
}

static void a_factor_of_nothing_is_no_factor(void)
{
	CHECK_SHARE(share_with(0, 10 * SECOND_NS), 30, 2);
}

static void a_lease_that_is_over_changes_nothing(void)
{
	CHECK_SHARE(share_with(250, 0), 30, 2);
}

int main(int argc, char **argv)
{
	static const struct test tests[] = {
		TEST(halves_of_a_card),
		TEST(halves_with_kernels_of_other_lengths),
		TEST(shares_of_30_and_70),
		TEST(shares_of_30_and_70_with_kernels_of_other_lengths),
		TEST(shares_that_leave_room),
		TEST(short_kernels),
		TEST(kernels_that_vary),
		TEST(one_that_varies_a_lot_beside_its_like),
		TEST(one_that_comes_later),
		TEST(one_alone_keeps_its_share),
		TEST(the_agents_factor_holds_as_long_as_its_lease),
		TEST(a_factor_of_nothing_is_no_factor),
		TEST(a_lease_that_is_over_changes_nothing),
	};
	return RUN_TESTS(tests, argc, argv);
}
