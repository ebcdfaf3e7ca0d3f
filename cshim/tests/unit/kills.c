/* Sixteen processes reserve and give back as fast as they can, and are killed at random: after each kill what is
 * charged is exactly what the living hold. VGPU_ROUNDS says how often (default 100). */
#define _GNU_SOURCE
#include <signal.h>
#include <sys/mman.h>
#include <time.h>

#include "attach.h"
#include "check.h"
#include "reserve.h"

enum { WORKERS = 16, LIMIT = 100000, HANG_TRIES = 50000 };

struct board {
	_Atomic int pause; /* the workers stop where nothing is under way, and say so */
	struct {
		_Atomic int paused;
		_Atomic uint64_t held;
		_Atomic uint64_t done;
		pid_t pid;
	} workers[WORKERS];
	_Atomic uint64_t over; /* times that a worker saw more than the limit */
};

static struct board *board;
static struct region *region;

static int rounds_wanted(void)
{
	const char *text = getenv("VGPU_ROUNDS");

	return text != NULL ? atoi(text) : 100;
}

/* A sum is of one moment only if nobody won a reservation while it was added up. */
static bool is_over(void)
{
	const uint64_t turn = atomic_load(&region->devices[0].turn);
	const uint64_t sum = reserve_total(region, 0);

	return sum > LIMIT && atomic_load(&region->devices[0].turn) == turn;
}

static void work(int number)
{
	unsigned seed = (unsigned)getpid();
	const struct process_self self = process_self();
	unsigned slot;
	int fd;

	region = attach_map("region", REGION_BY_ANYBODY, &fd);
	CHECK(region != NULL);
	slot = attach_take_slot(region, &self, "region", fd);
	CHECK(slot != NO_SLOT);
	for (uint64_t held = 0;; atomic_fetch_add(&board->workers[number].done, 1)) {
		const uint64_t bytes = 1 + (unsigned)rand_r(&seed) % 20000;

		if (rand_r(&seed) % 64 == 0)
			usleep(50); /* or sixteen of them leave the machine no room for anything else */
		if (atomic_load(&board->pause)) {
			atomic_store(&board->workers[number].held, held);
			atomic_store(&board->workers[number].paused, 1);
			while (atomic_load(&board->pause))
				usleep(100);
			atomic_store(&board->workers[number].paused, 0);
		}
		if (held < 3 * (uint64_t)LIMIT / WORKERS && (reserve_take_spare(&region->slots[slot].use[0], bytes) ||
								    reserve_take(region, 0, slot, bytes, 0, LIMIT))) {
			held += bytes;
			if (is_over())
				atomic_fetch_add(&board->over, 1);
		} else if (held > 0) {
			const uint64_t back = bytes < held ? bytes : held;

			reserve_give(region, 0, slot, back);
			held -= back;
		} else {
			(void)attach_reap(region, &self, "region");
		}
	}
}

static void start(int number)
{
	pid_t child;

	atomic_store(&board->workers[number].paused, 0);
	child = fork();
	if (child == 0)
		work(number);
	CHECK(child > 0);
	board->workers[number].pid = child; /* the board is shared: only the parent writes it */
}

static void pause_all(void)
{
	atomic_store(&board->pause, 1);
	for (int i = 0; i < WORKERS; i++) {
		int tries = 0;

		while (!atomic_load(&board->workers[i].paused)) {
			CHECK(tries++ < HANG_TRIES); /* nobody waits for the dead */
			usleep(100);
		}
	}
}

static void resume_all(void)
{
	atomic_store(&board->pause, 0);
	for (int i = 0; i < WORKERS; i++)
		while (atomic_load(&board->workers[i].paused))
			usleep(100);
}

static void check_exact(const struct process_self *self)
{
	uint64_t held = 0;

	(void)attach_reap(region, self, "region");
	for (int i = 0; i < WORKERS; i++)
		held += atomic_load(&board->workers[i].held);
	CHECK_EQUAL(reserve_total(region, 0), held);
	CHECK_EQUAL(atomic_load(&board->over), 0);
}

static void begin(void)
{
	int fd;

	board = mmap(NULL, sizeof(*board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	region = attach_map("region", REGION_BY_ANYBODY, &fd);
	CHECK(region != NULL);
	for (int i = 0; i < WORKERS; i++)
		start(i);
}

static void end(void)
{
	for (int i = 0; i < WORKERS; i++)
		kill(board->workers[i].pid, SIGKILL);
	while (wait(NULL) > 0)
		;
}

static void usage_is_exact_after_every_kill(void)
{
	const struct process_self self = process_self();
	unsigned seed = 7;

	begin();
	for (int round = rounds_wanted(); round > 0; round--) {
		const struct timespec moment = {.tv_nsec = (long)((unsigned)rand_r(&seed) % 300000)};
		const int victim = (int)((unsigned)rand_r(&seed) % WORKERS);

		alarm(TEST_SECONDS);
		nanosleep(&moment, NULL);
		kill(board->workers[victim].pid, SIGKILL);
		waitpid(board->workers[victim].pid, NULL, 0);
		start(victim);
		pause_all();
		check_exact(&self);
		resume_all();
	}
	end();
}

static void a_stopped_process_holds_nobody_up(void)
{
	unsigned seed = 8;

	begin();
	for (int round = rounds_wanted() / 10; round > 0; round--) {
		const int stopped = (int)((unsigned)rand_r(&seed) % WORKERS), other = (stopped + 1) % WORKERS;
		uint64_t before;

		alarm(TEST_SECONDS);
		kill(board->workers[stopped].pid, SIGSTOP);
		before = atomic_load(&board->workers[other].done);
		for (int tries = 0; atomic_load(&board->workers[other].done) < before + 20; tries++) {
			CHECK(tries < HANG_TRIES);
			usleep(100);
		}
		kill(board->workers[stopped].pid, SIGCONT);
	}
	end();
}

int main(int argc, char **argv)
{
	static const struct test tests[] = {
		TEST(usage_is_exact_after_every_kill),
		TEST(a_stopped_process_holds_nobody_up),
	};
	return RUN_TESTS(tests, argc, argv);
}
