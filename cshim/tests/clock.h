/* clock.h: a virtual clock for the processes of a test. It stands still while any of them works, and jumps to the next
 * wake-up when all of them sleep. The program defines clock_gettime and nanosleep, so that the shim and the fake driver
 * in it live on this clock too, unchanged. */
#ifndef TEST_CLOCK_H
#define TEST_CLOCK_H

#include <errno.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { CLOCK_SLEEPERS = 8 };

struct virtual_clock {
	_Atomic uint64_t now_ns;
	_Atomic int lock;
	_Atomic int members;
	_Atomic uint64_t wake_ns[CLOCK_SLEEPERS]; /* 0: awake */
};

static struct virtual_clock *virtual_clock;
static int clock_member;
static int clock_interrupts; /* as if a signal came in the middle of each pause */

static inline void clock_start(int members)
{
	virtual_clock = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	atomic_store(&virtual_clock->now_ns, UINT64_C(1000) * 1000000000);
	atomic_store(&virtual_clock->members, members);
}

static inline uint64_t clock_now(void)
{
	return atomic_load(&virtual_clock->now_ns);
}

/* Let the clock go on when every member sleeps. */
static inline void clock_jump(void)
{
	uint64_t next = UINT64_MAX;
	int sleepers = 0;

	if (atomic_exchange(&virtual_clock->lock, 1) != 0)
		return;
	for (int i = 0; i < CLOCK_SLEEPERS; i++) {
		const uint64_t wake = atomic_load(&virtual_clock->wake_ns[i]);

		sleepers += wake != 0;
		next = wake != 0 && wake < next ? wake : next;
	}
	if (sleepers == atomic_load(&virtual_clock->members) && next > clock_now())
		atomic_store(&virtual_clock->now_ns, next);
	atomic_store(&virtual_clock->lock, 0);
}

static inline void clock_sleep(uint64_t ns)
{
	const uint64_t wake = clock_now() + (ns == 0 ? 1 : ns);

	atomic_store(&virtual_clock->wake_ns[clock_member], wake);
	while (clock_now() < wake) {
		clock_jump();
		if (clock_now() < wake)
			sched_yield();
	}
	atomic_store(&virtual_clock->wake_ns[clock_member], 0);
}

/* This process takes no more part. */
static inline void clock_leave(void)
{
	while (atomic_exchange(&virtual_clock->lock, 1) != 0)
		sched_yield();
	atomic_fetch_sub(&virtual_clock->members, 1);
	atomic_store(&virtual_clock->lock, 0);
}

#define FOR_ALL __attribute__((visibility("default")))

FOR_ALL int clock_gettime(clockid_t id, struct timespec *time)
{
	if (virtual_clock == NULL || id != CLOCK_MONOTONIC)
		return (int)syscall(SYS_clock_gettime, id, time);
	time->tv_sec = (time_t)(clock_now() / 1000000000u);
	time->tv_nsec = (long)(clock_now() % 1000000000u);
	return 0;
}

FOR_ALL int nanosleep(const struct timespec *pause, struct timespec *left)
{
	if (virtual_clock == NULL)
		return (int)syscall(SYS_nanosleep, pause, left);
	if (clock_interrupts) {
		clock_sleep(((uint64_t)pause->tv_sec * 1000000000u + (uint64_t)pause->tv_nsec) / 2);
		errno = EINTR;
		return -1;
	}
	clock_sleep((uint64_t)pause->tv_sec * 1000000000u + (uint64_t)pause->tv_nsec);
	return 0;
}

#endif
