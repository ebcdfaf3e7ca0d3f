/* Reservations and slots, on a region in shared memory, with processes that stop at any step. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "attach.h"
#include "check.h"
#include "reserve.h"
#include "table.h"

static struct region *new_region(void)
{
	struct region *region = mmap(NULL, sizeof(*region), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	CHECK(region != MAP_FAILED);
	atomic_store(&region->slot_high_water, 8);
	return region;
}

static void room_is_taken_and_given_back_exactly(void)
{
	struct region *region = new_region();

	CHECK(reserve_take(region, 0, 1, 600, 0, 1000));
	CHECK(!reserve_take(region, 0, 2, 401, 0, 1000));
	CHECK(reserve_take(region, 0, 2, 400, 0, 1000));
	CHECK_EQUAL(reserve_total(region, 0), 1000);
	reserve_give(region, 0, 1, 600);
	CHECK_EQUAL(reserve_total(region, 0), 400);
	reserve_give(region, 0, 2, 500); /* more than it has: never below nothing */
	CHECK_EQUAL(reserve_total(region, 0), 0);
}

static void the_drivers_overhead_counts_as_used(void)
{
	struct region *region = new_region();

	CHECK(!reserve_take(region, 0, 1, 600, 401, 1000));
	CHECK(reserve_take(region, 0, 1, 600, 400, 1000));
	CHECK(!reserve_take(region, 0, 1, 1, UINT64_MAX, 1000));
}

static void devices_do_not_share_room(void)
{
	struct region *region = new_region();

	CHECK(reserve_take(region, 0, 1, 1000, 0, 1000));
	CHECK(reserve_take(region, 1, 1, 1000, 0, 1000));
}

static void a_winner_that_stops_before_settling_is_counted(void)
{
	struct region *region = new_region();
	struct region_use *use = &region->slots[1].use[0];

	/* What reserve_take does up to its compare-and-swap, and nothing after it. */
	atomic_store(&use->next, used_changed(0, 600));
	atomic_store(&use->claim, 1);
	atomic_store(&region->devices[0].turn, 1 << 10 | 1);
	CHECK(!reserve_take(region, 0, 2, 500, 0, 1000));
	CHECK(reserve_take(region, 0, 2, 400, 0, 1000));
	CHECK_EQUAL(reserve_total(region, 0), 1000);
}

static void one_that_stops_before_winning_is_not_counted(void)
{
	struct region *region = new_region();

	atomic_store(&region->slots[1].use[0].next, used_changed(0, 600));
	atomic_store(&region->slots[1].use[0].claim, 1);
	CHECK(reserve_take(region, 0, 2, 1000, 0, 1000)); /* takes the very turn that slot 1 tried for */
	CHECK_EQUAL(reserve_total(region, 0), 1000);
}

static void settling_twice_changes_nothing(void)
{
	struct region *region = new_region();
	uint64_t turn;

	CHECK(reserve_take(region, 0, 1, 600, 0, 1000));
	turn = atomic_load(&region->devices[0].turn);
	atomic_store(&region->slots[1].use[0].claim, turn >> 10); /* as if its owner had not cleared it yet */
	reserve_give(region, 0, 1, 100);
	reserve_settle(region, 0, turn);
	CHECK_EQUAL(reserve_total(region, 0), 500);
}

static void what_is_freed_is_taken_again_without_a_turn(void)
{
	struct region *region = new_region();
	struct region_use *use = &region->slots[1].use[0];
	uint64_t turn;

	CHECK(reserve_take(region, 0, 1, 600, 0, 1000));
	CHECK(!reserve_take_spare(use, 1)); /* nothing is kept before anything is freed */
	turn = atomic_load(&region->devices[0].turn);
	CHECK(reserve_give(region, 0, 1, 200));
	CHECK(reserve_give(region, 0, 1, 100));
	CHECK_EQUAL(reserve_total(region, 0), 300);
	CHECK(!reserve_take_spare(use, 301));
	CHECK(reserve_take_spare(use, 250));
	CHECK_EQUAL(reserve_total(region, 0), 550);
	CHECK_EQUAL(atomic_load(&region->devices[0].turn), turn);
	CHECK(reserve_take(region, 0, 1, 450, 0, 1000)); /* its own spare is room for it */
	CHECK_EQUAL(reserve_total(region, 0), 1000);
}

static void what_one_keeps_is_room_for_another(void)
{
	struct region *region = new_region();
	struct region_use *use = &region->slots[1].use[0];

	CHECK(reserve_take(region, 0, 1, 1000, 0, 1000));
	CHECK(reserve_give(region, 0, 1, 600));
	CHECK(!reserve_take(region, 0, 2, 601, 0, 1000));
	CHECK(reserve_take(region, 0, 2, 600, 0, 1000));
	CHECK_EQUAL(reserve_total(region, 0), 1000);
	CHECK(!reserve_take_spare(use, 1)); /* it is not its own any more */
	CHECK(!reserve_take(region, 0, 1, 1, 0, 1000));
	CHECK(!reserve_give(region, 0, 1, 100)); /* a shut spare is not filled: the bytes are free at once */
	CHECK(reserve_take(region, 0, 2, 100, 0, 1000));
	CHECK_EQUAL(reserve_total(region, 0), 1000);
	CHECK(reserve_give(region, 0, 1, 100)); /* a new one */
	CHECK(reserve_take_spare(use, 100));
	CHECK_EQUAL(reserve_total(region, 0), 1000);
}

static void no_more_than_a_bound_is_kept(void)
{
	struct region *region = new_region();

	CHECK(reserve_take(region, 0, 1, 4 * RESERVE_SPARE_MOST, 0, UINT64_MAX));
	CHECK(!reserve_give(region, 0, 1, RESERVE_SPARE_MOST + 1));
	CHECK(!reserve_take_spare(&region->slots[1].use[0], 1));
	CHECK(reserve_give(region, 0, 1, RESERVE_SPARE_MOST));
	CHECK(!reserve_give(region, 0, 1, 1)); /* all goes back */
	CHECK(!reserve_take_spare(&region->slots[1].use[0], 1));
	CHECK_EQUAL(reserve_total(region, 0), 2 * RESERVE_SPARE_MOST - 2);
}

enum { RACERS = 4, ROUNDS = 20000 };

/* Every change of `used` gives it another tag of 20 bits: what was freed long ago stays counted once they repeat. */
static void a_spare_of_long_ago_stays_ended(void)
{
	struct region *region = new_region();
	const uint64_t small = RESERVE_SPARE_MOST, large = 2 * RESERVE_SPARE_MOST;

	CHECK(reserve_take(region, 0, 1, 100 + small, 0, UINT64_MAX));
	CHECK(reserve_give(region, 0, 1, small));
	for (int changes = 0; changes < (1 << 20) + 2; changes += 2) {
		CHECK(reserve_take(region, 0, 1, large, 0, UINT64_MAX));
		CHECK_EQUAL(reserve_total(region, 0), 100 + large);
		CHECK(!reserve_give(region, 0, 1, large));
		CHECK_EQUAL(reserve_total(region, 0), 100);
	}
}

static void many_processes_never_exceed_the_limit(void)
{
	struct region *region = new_region();
	_Atomic uint64_t *worst = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	for (unsigned racer = 0; racer < RACERS; racer++) {
		if (fork() != 0)
			continue;
		for (int round = 0; round < ROUNDS; round++) {
			const uint64_t bytes = 100 + (unsigned)round % 300;
			uint64_t turn, sum;

			if (!reserve_take_spare(&region->slots[racer].use[0], bytes) &&
				!reserve_take(region, 0, racer, bytes, 0, 1000))
				continue;
			turn = atomic_load(&region->devices[0].turn);
			sum = reserve_total(region, 0); /* of one moment, if nobody won meanwhile */
			if (sum > 1000 && atomic_load(&region->devices[0].turn) == turn)
				atomic_fetch_add(worst, 1);
			reserve_give(region, 0, racer, bytes);
		}
		_exit(0);
	}
	while (wait(NULL) > 0)
		;
	CHECK_EQUAL(atomic_load(worst), 0);
	CHECK_EQUAL(reserve_total(region, 0), 0);
}

/* Two have changing parts of the limit and never more, by spare or by turn: there is room at every try, and what the
 * other kept from when its part was larger must give way while it goes on working. */
static void what_is_free_is_never_refused_while_another_comes_and_goes(void)
{
	struct region *region = new_region();
	_Atomic unsigned *shared = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	_Atomic unsigned *arrived = shared, *refused = shared + 16;

	for (unsigned racer = 0; racer < 2; racer++) {
		struct region_use *use = &region->slots[racer].use[0];

		if (fork() != 0)
			continue;
		for (unsigned round = 0; round < 2000; round++) {
			const unsigned pieces = (round + racer) % 2 == 0 ? 14 : 6;

			atomic_fetch_add(arrived, 1);
			while (atomic_load(arrived) < 2 * round + 2)
				sched_yield();
			for (unsigned times = 0; times < 10; times++) {
				for (unsigned piece = 0; piece < pieces; piece++)
					if (!reserve_take_spare(use, 50) &&
						!reserve_take(region, 0, racer, 50, 0, 1000))
						atomic_fetch_add(refused, 1);
				for (unsigned piece = 0; piece < pieces; piece += 2)
					reserve_give(region, 0, racer, 100);
			}
		}
		_exit(0);
	}
	while (wait(NULL) > 0)
		;
	CHECK_EQUAL(atomic_load(refused), 0);
	CHECK_EQUAL(reserve_total(region, 0), 0);
}

static void of_two_that_race_for_room_for_one_exactly_one_wins(void)
{
	struct region *region = new_region();
	_Atomic unsigned *shared = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	_Atomic unsigned *arrived = shared, *won = shared + 16;

	for (unsigned racer = 0; racer < 2; racer++) {
		if (fork() != 0)
			continue;
		for (unsigned round = 0; round < 1000; round++) {
			bool mine;

			atomic_fetch_add(arrived, 1);
			while (atomic_load(arrived) < 4 * round + 2)
				sched_yield();
			mine = reserve_take(region, 0, racer, 600, 0, 1000);
			if (mine)
				atomic_fetch_add(&won[round], 1);
			atomic_fetch_add(arrived, 1);
			while (atomic_load(arrived) < 4 * round + 4)
				sched_yield();
			if (mine)
				reserve_give(region, 0, racer, 600);
			/* the give must be done before the next round: the other waits for both to arrive */
		}
		_exit(0);
	}
	while (wait(NULL) > 0)
		;
	for (unsigned round = 0; round < 900; round++)
		CHECK_EQUAL(atomic_load(&won[round]), 1);
}

static struct region *open_region(int *fd)
{
	struct region *region = attach_map("region", REGION_BY_ANYBODY, fd);

	CHECK(region != NULL);
	return region;
}

static void a_new_file_is_a_valid_region(void)
{
	struct stat status;
	int fd;
	struct region *region = open_region(&fd);

	CHECK_EQUAL(atomic_load(&region->identity), REGION_MAGIC);
	CHECK(stat("region", &status) == 0 && (uint64_t)status.st_size == REGION_BYTES);
	CHECK(open_region(&fd) != region);
}

static void a_foreign_file_or_a_link_is_not_used(void)
{
	int fd = open("region", O_RDWR | O_CREAT, 0666);

	CHECK(write(fd, "not a region", 12) == 12);
	close(fd);
	CHECK(attach_map("region", REGION_BY_ANYBODY, &fd) == NULL && errno == EPROTO);
	CHECK(symlink("elsewhere", "link") == 0);
	CHECK(attach_map("link", REGION_BY_ANYBODY, &fd) == NULL);
	CHECK(access("elsewhere", F_OK) != 0);
}

static void a_dead_process_is_cleared_by_the_next(void)
{
	const struct process_self self = process_self();
	int fd, status;
	struct region *region = open_region(&fd);
	pid_t child = fork();

	if (child == 0) {
		const struct process_self other = process_self();
		unsigned slot = attach_take_slot(region, &other, "region", fd);

		CHECK(reserve_take(region, 3, slot, 700, 0, 1000));
		kill(getpid(), SIGKILL);
	}
	waitpid(child, &status, 0);
	CHECK_EQUAL(reserve_total(region, 3), 700);
	CHECK(attach_take_slot(region, &self, "region", fd) != NO_SLOT);
	CHECK_EQUAL(reserve_total(region, 3), 0);
}

static void a_live_process_is_left_alone(void)
{
	const struct process_self self = process_self();
	int fd, ready[2];
	struct region *region = open_region(&fd);
	pid_t child;
	char byte;

	CHECK(pipe(ready) == 0);
	child = fork();
	if (child == 0) {
		const struct process_self other = process_self();
		unsigned slot = attach_take_slot(region, &other, "region", fd);

		CHECK(reserve_take(region, 0, slot, 700, 0, 1000));
		CHECK(write(ready[1], "x", 1) == 1);
		pause();
	}
	CHECK(read(ready[0], &byte, 1) == 1);
	(void)attach_take_slot(region, &self, "region", fd);
	CHECK_EQUAL(attach_reap(region, &self, "region"), 0);
	CHECK_EQUAL(reserve_total(region, 0), 700);
	kill(child, SIGKILL);
	waitpid(child, NULL, 0);
	CHECK_EQUAL(attach_reap(region, &self, "region"), 1);
	CHECK_EQUAL(reserve_total(region, 0), 0);
}

static void a_late_reaper_does_not_touch_the_next_owner(void)
{
	/* What a reaper read before it was held up must not be written after the slot has changed hands: each word is
	 * changed only if it still is what it was, tag and all. */
	struct region *region = new_region();
	uint64_t stale;

	CHECK(reserve_take(region, 0, 1, 600, 0, 1000));
	stale = atomic_load(&region->slots[1].use[0].used);
	reserve_give(region, 0, 1, 600);
	CHECK(reserve_take(region, 0, 1, 600, 0, 1000)); /* the same bytes again */
	CHECK(!atomic_compare_exchange_strong(&region->slots[1].use[0].used, &stale, used_changed(stale, 0)));
	CHECK_EQUAL(reserve_total(region, 0), 600);
}

static void a_process_of_another_namespace_lives_while_it_holds_its_lock(void)
{
	const struct process_self self = process_self();
	int fd, ready[2];
	struct region *region = open_region(&fd);
	pid_t child;
	char byte;

	CHECK(pipe(ready) == 0);
	close(fd); /* or the child would share this open file, and its locks with it */
	munmap(region, sizeof(*region));
	child = fork();
	if (child == 0) {
		struct process_self other = process_self();

		region = open_region(&fd);
		other.namespace++;
		CHECK(attach_take_slot(region, &other, "region", fd) != NO_SLOT);
		for (int other_fd = 3; other_fd < 64; other_fd++)
			if (other_fd != ready[1])
				close(other_fd); /* as daemons do: the mapping keeps the lock */
		CHECK(write(ready[1], "x", 1) == 1);
		pause();
	}
	CHECK(read(ready[0], &byte, 1) == 1);
	region = open_region(&fd);
	CHECK_EQUAL(attach_reap(region, &self, "region"), 0);
	kill(child, SIGKILL);
	waitpid(child, NULL, 0);
	CHECK_EQUAL(attach_reap(region, &self, "region"), 1);
}

static void all_slots_taken_is_said(void)
{
	const struct process_self self = process_self();
	int fd;
	struct region *region = open_region(&fd);

	for (unsigned i = 0; i < REGION_SLOTS;
		i++) /* live processes of another namespace, which hold no lock we can see */
		atomic_store(&region->slots[i].owner, process_owner_word(getppid(), 0));
	CHECK_EQUAL(attach_take_slot(region, &self, NULL, -1), NO_SLOT);
}

static void the_table_agrees_with_a_plain_list(void)
{
	static struct table table;
	static struct {
		uint64_t key, bytes;
	} model[512];
	unsigned seed = 3;

	for (int round = 0; round < 200000; round++) {
		const unsigned which = (unsigned)rand_r(&seed) % 512;
		struct table_entry entry = {.key = 0x1000 + which * 512, .bytes = (unsigned)rand_r(&seed)};

		if (rand_r(&seed) % 2) {
			CHECK(table_put(&table, &entry));
			model[which].key = entry.key;
			model[which].bytes = entry.bytes;
		} else {
			const bool known = model[which].key != 0;

			entry.bytes = 4711;

			CHECK_EQUAL(table_take(&table, 0x1000 + which * 512, &entry), known);
			CHECK_EQUAL(entry.bytes, known ? model[which].bytes : 4711); /* or left as it was */
			model[which].key = 0;
		}
	}
}

int main(int argc, char **argv)
{
	static const struct test tests[] = {
		TEST(room_is_taken_and_given_back_exactly),
		TEST(the_drivers_overhead_counts_as_used),
		TEST(devices_do_not_share_room),
		TEST(a_winner_that_stops_before_settling_is_counted),
		TEST(one_that_stops_before_winning_is_not_counted),
		TEST(settling_twice_changes_nothing),
		TEST(what_is_freed_is_taken_again_without_a_turn),
		TEST(what_one_keeps_is_room_for_another),
		TEST(no_more_than_a_bound_is_kept),
		TEST(a_spare_of_long_ago_stays_ended),
		TEST(many_processes_never_exceed_the_limit),
		TEST(what_is_free_is_never_refused_while_another_comes_and_goes),
		TEST(of_two_that_race_for_room_for_one_exactly_one_wins),
		TEST(a_new_file_is_a_valid_region),
		TEST(a_foreign_file_or_a_link_is_not_used),
		TEST(a_dead_process_is_cleared_by_the_next),
		TEST(a_live_process_is_left_alone),
		TEST(a_late_reaper_does_not_touch_the_next_owner),
		TEST(a_process_of_another_namespace_lives_while_it_holds_its_lock),
		TEST(all_slots_taken_is_said),
		TEST(the_table_agrees_with_a_plain_list),
	};
	return RUN_TESTS(tests, argc, argv);
}
