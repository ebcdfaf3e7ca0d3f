/* bench: one figure of the shim, in nanoseconds, to standard output. Run by benchmarks/shim.py, with and without the
 * shim.
 *
 *   bench alloc LIVE PROCESSES   a pair of allocate and free with LIVE allocations live, in each of PROCESSES at once
 *   bench wall LIVE PROCESSES    the same by the clock on the wall, waiting for a processor included
 *   bench launch                 a kernel launch
 *   bench info                   cuMemGetInfo
 *   bench start                  cuInit and the first allocation
 */
#define _GNU_SOURCE
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "cuda_abi.h"

static double clock_ns(clockid_t id)
{
	struct timespec now;

	clock_gettime(id, &now);
	return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

/* Processor time, so that what else runs on the machine is not in the figure. */
static double now_ns(void)
{
	return clock_ns(CLOCK_THREAD_CPUTIME_ID);
}

static double wall_ns(void)
{
	return clock_ns(CLOCK_MONOTONIC);
}

static void must(CUresult result)
{
	if (result == CUDA_SUCCESS)
		return;
	fprintf(stderr, "bench: a call failed with %d\n", (int)result);
	_exit(1);
}

static double alloc_pairs(long live, long rounds)
{
	CUdeviceptr *pointers = calloc((size_t)live + 1, sizeof(*pointers));
	double started;

	for (long i = 0; i < live; i++)
		must(cuMemAlloc_v2(&pointers[i], 4096));
	started = now_ns();
	for (long i = 0; i < rounds; i++) {
		CUdeviceptr pointer;

		must(cuMemAlloc_v2(&pointer, 4096));
		if (live > 0) { /* free an old one and keep the new: the worst order for a list */
			CUdeviceptr old = pointers[i % live];

			pointers[i % live] = pointer;
			pointer = old;
		}
		must(cuMemFree_v2(pointer));
	}
	return (now_ns() - started) / (double)rounds;
}

/* By the wall's clock: from when all are ready to when the last is done, for the pairs of one. What else runs on the
 * machine would be in that, so they go before it where that is allowed. */
static double alloc_together(long live, int processes, long rounds, bool wall)
{
	double *figures = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	_Atomic int *arrived = (_Atomic int *)(figures + 64);
	double sum = 0;

	for (int i = 0; i < processes; i++) {
		if (fork() != 0)
			continue;
		must(cuInit(0));
		atomic_fetch_add(arrived, 1);
		while (atomic_load(arrived) < processes)
			sched_yield();
		if (wall) {
			(void)sched_setscheduler(0, SCHED_RR, &(struct sched_param){.sched_priority = 1});
			figures[i] = wall_ns();
		}
		figures[i + processes] = alloc_pairs(live, rounds);
		if (wall)
			figures[i + processes] = wall_ns();
		_exit(0);
	}
	while (wait(NULL) > 0)
		;
	if (wall) {
		double first = figures[0], last = figures[processes];

		for (int i = 1; i < processes; i++) {
			first = figures[i] < first ? figures[i] : first;
			last = figures[i + processes] > last ? figures[i + processes] : last;
		}
		return (last - first) / (double)rounds;
	}
	for (int i = 0; i < processes; i++)
		sum += figures[i + processes];
	return sum / processes;
}

static double launches(long rounds)
{
	CUfunction function = (CUfunction)(uintptr_t)0x1000;
	double started;

	for (int i = 0; i < 100; i++)
		must(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
	started = now_ns();
	for (long i = 0; i < rounds; i++)
		must(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
	return (now_ns() - started) / (double)rounds;
}

static double infos(long rounds)
{
	size_t free_bytes, total_bytes;
	double started = now_ns();

	for (long i = 0; i < rounds; i++)
		must(cuMemGetInfo_v2(&free_bytes, &total_bytes));
	return (now_ns() - started) / (double)rounds;
}

int main(int argc, char **argv)
{
	const char *what = argc > 1 ? argv[1] : "";
	const double started = now_ns();
	CUdeviceptr pointer;
	double figure;

	if ((strcmp(what, "alloc") == 0 || strcmp(what, "wall") == 0) && argc == 4 && atoi(argv[3]) > 1) {
		figure = alloc_together(atol(argv[2]), atoi(argv[3]), 300000, strcmp(what, "wall") == 0);
	} else {
		must(cuInit(0));
		must(cuMemAlloc_v2(&pointer, 4096));
		if (strcmp(what, "alloc") == 0 && argc == 4)
			figure = alloc_pairs(atol(argv[2]), 300000);
		else if (strcmp(what, "launch") == 0)
			figure = launches(5000000);
		else if (strcmp(what, "info") == 0)
			figure = infos(1000000);
		else if (strcmp(what, "start") == 0)
			figure = now_ns() - started;
		else
			return 1;
	}
	printf("%.2f\n", figure);
	return 0;
}
