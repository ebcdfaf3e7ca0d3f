/* bench: one figure of the shim, in nanoseconds, to standard output. Run by benchmarks/shim.py, with and without the
 * shim.
 *
 *   bench alloc LIVE PROCESSES BYTES   a pair of allocate and free of BYTES with LIVE live, in each of PROCESSES at
 * once bench wall LIVE PROCESSES BYTES    the same by the clock on the wall, waiting for a processor included bench
 * launch ROUNDS                a kernel launch, without what the driver's events cost bench pool | graph | block |
 * array a pair of allocate and free in the order of a stream; a launch of a graph that allocates; a block that is made,
 * mapped, unmapped and released; an array bench info                         cuMemGetInfo bench start cuInit and the
 * first allocation
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

static double alloc_pairs(long live, long rounds, size_t bytes)
{
	CUdeviceptr *pointers = calloc((size_t)live + 1, sizeof(*pointers));
	double started;

	for (long i = 0; i < live; i++)
		must(cuMemAlloc_v2(&pointers[i], bytes));
	started = now_ns();
	for (long i = 0; i < rounds; i++) {
		CUdeviceptr pointer;

		must(cuMemAlloc_v2(&pointer, bytes));
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
static double alloc_together(long live, int processes, long rounds, size_t bytes, bool wall)
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
		figures[i + processes] = alloc_pairs(live, rounds, bytes);
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

extern double nullEventNanoseconds(void);

static double launches(long rounds)
{
	CUfunction function = (CUfunction)(uintptr_t)0x1000;
	double started, events;

	for (int i = 0; i < 2000; i++) /* its price is known after these */
		must(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
	started = now_ns();
	events = nullEventNanoseconds();
	for (long i = 0; i < rounds; i++)
		must(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
	return (now_ns() - started - (nullEventNanoseconds() - events)) / (double)rounds;
}

static double pool_pairs(long rounds)
{
	double started;
	CUdeviceptr pointer;

	must(cuMemAllocAsync(&pointer, 4096, NULL));
	started = now_ns();
	for (long i = 0; i < rounds; i++) {
		must(cuMemAllocAsync(&pointer, 4096, NULL));
		must(cuMemFreeAsync(pointer, NULL));
	}
	return (now_ns() - started) / (double)rounds;
}

static double graph_launches(long rounds)
{
	CUgraphExec exec;
	double started;

	must(cuGraphInstantiateWithFlags(&exec, (CUgraph)(uintptr_t)1, 0));
	must(cuGraphLaunch(exec, NULL));
	started = now_ns();
	for (long i = 0; i < rounds; i++)
		must(cuGraphLaunch(exec, NULL));
	return (now_ns() - started) / (double)rounds;
}

static double blocks(long rounds)
{
	const CUmemAllocationProp prop = {
		.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
	const size_t bytes = 2 << 20;
	const double started = now_ns();

	for (long i = 0; i < rounds; i++) {
		CUmemGenericAllocationHandle handle;

		must(cuMemCreate(&handle, bytes, &prop, 0));
		must(cuMemMap(0x7000000, bytes, 0, handle, 0));
		must(cuMemUnmap(0x7000000, bytes));
		must(cuMemRelease(handle));
	}
	return (now_ns() - started) / (double)rounds;
}

static double arrays(long rounds)
{
	const CUDA_ARRAY_DESCRIPTOR desc = {
		.Width = 512, .Height = 512, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 4};
	const double started = now_ns();

	for (long i = 0; i < rounds; i++) {
		CUarray array;

		must(cuArrayCreate_v2(&array, &desc));
		must(cuArrayDestroy(array));
	}
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

	if ((strcmp(what, "alloc") == 0 || strcmp(what, "wall") == 0) && argc == 5 && atoi(argv[3]) > 1) {
		figure = alloc_together(
			atol(argv[2]), atoi(argv[3]), 300000, strtoull(argv[4], NULL, 10), strcmp(what, "wall") == 0);
	} else {
		must(cuInit(0));
		must(cuMemAlloc_v2(&pointer, 4096));
		if (strcmp(what, "alloc") == 0 && argc == 5)
			figure = alloc_pairs(atol(argv[2]), 300000, strtoull(argv[4], NULL, 10));
		else if (strcmp(what, "launch") == 0 && argc == 3)
			figure = launches(atol(argv[2]));
		else if (strcmp(what, "pool") == 0)
			figure = pool_pairs(500000);
		else if (strcmp(what, "graph") == 0)
			figure = graph_launches(500000);
		else if (strcmp(what, "block") == 0)
			figure = blocks(300000);
		else if (strcmp(what, "array") == 0)
			figure = arrays(500000);
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
