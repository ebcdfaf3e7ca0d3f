/* vgpu-alloc: allocate device memory as a program would, say what came of it as JSON, hold it, and go. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <getopt.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cuda_abi.h"

static const char usage[] =
	"Usage: vgpu-alloc [options]\n"
	"Allocate device memory through the CUDA driver, print one line of JSON, hold it, and free it.\n"
	"\n"
	"  --mib N            MiB to allocate in one piece (default 0: none)\n"
	"  --step-mib N       allocate in pieces of N MiB instead, until --mib is reached or one is refused\n"
	"  --device N         CUDA ordinal of the device (default 0)\n"
	"  --hold-seconds S   keep it for S seconds, or for ever with -1 (default 0)\n"
	"  --kernel NAME      meanwhile launch this kernel again and again; on the fake driver a name such as\n"
	"                     spin_100us says how long it runs\n"
	"  --help             this text\n"
	"\n"
	"The line has: pid, device, asked_mib, allocated_mib, result (CUDA's number for the first call that failed, 0 for\n"
	"none), call (its name), free_mib and total_mib as cuMemGetInfo shows them afterwards. With --kernel a second line\n"
	"follows at the end: launches, seconds.\n"
	"Exit status: 0 when all was allocated, 2 when memory was refused, 1 when there is no driver or another call failed.\n";

static struct {
	__typeof__(cuInit) *init;
	__typeof__(cuDevicePrimaryCtxRetain) *retain;
	__typeof__(cuCtxSetCurrent) *set_current;
	__typeof__(cuMemAlloc_v2) *alloc;
	__typeof__(cuMemFree_v2) *release;
	__typeof__(cuMemGetInfo_v2) *info;
	__typeof__(cuModuleLoadData) *load;
	__typeof__(cuModuleGetFunction) *function;
	__typeof__(cuLaunchKernel) *launch;
	__typeof__(cuCtxSynchronize) *synchronize;
} cuda;

static volatile sig_atomic_t stopped;

static void stop(int signal_number)
{
	(void)signal_number;
	stopped = 1;
}

static void *find(void *library, const char *name)
{
	void *address = dlsym(library, name);

	if (address == NULL) {
		fprintf(stderr, "vgpu-alloc: the driver has no %s\n", name);
		exit(1);
	}
	return address;
}

static void load_driver(void)
{
	void *library = dlopen("libcuda.so.1", RTLD_NOW);

	if (library == NULL) {
		fprintf(stderr, "vgpu-alloc: no CUDA driver: %s\n", dlerror());
		exit(1);
	}
	cuda.init = (__typeof__(cuInit) *)find(library, "cuInit");
	cuda.retain = (__typeof__(cuDevicePrimaryCtxRetain) *)find(library, "cuDevicePrimaryCtxRetain");
	cuda.set_current = (__typeof__(cuCtxSetCurrent) *)find(library, "cuCtxSetCurrent");
	cuda.alloc = (__typeof__(cuMemAlloc_v2) *)find(library, "cuMemAlloc_v2");
	cuda.release = (__typeof__(cuMemFree_v2) *)find(library, "cuMemFree_v2");
	cuda.info = (__typeof__(cuMemGetInfo_v2) *)find(library, "cuMemGetInfo_v2");
	cuda.load = (__typeof__(cuModuleLoadData) *)find(library, "cuModuleLoadData");
	cuda.function = (__typeof__(cuModuleGetFunction) *)find(library, "cuModuleGetFunction");
	cuda.launch = (__typeof__(cuLaunchKernel) *)find(library, "cuLaunchKernel");
	cuda.synchronize = (__typeof__(cuCtxSynchronize) *)find(library, "cuCtxSynchronize");
}

struct options {
	long mib;
	long step_mib;
	int device;
	double hold_seconds;
	const char *kernel;
};

struct outcome {
	CUresult result;
	const char *call;
	long allocated_mib;
};

/* A whole number from 0 to `most`; anything else ends the program. */
static long number(const char *option, const char *text, long most)
{
	char *end;
	long value;

	errno = 0;
	value = strtol(text, &end, 10);
	if (errno != 0 || end == text || *end != '\0' || value < 0 || value > most) {
		fprintf(stderr, "vgpu-alloc: --%s: %s given, a whole number from 0 to %ld is accepted\n", option, text,
			most);
		exit(1);
	}
	return value;
}

static struct options parse(int argc, char **argv)
{
	static const struct option names[] = {{"mib", required_argument, NULL, 'm'},
		{"step-mib", required_argument, NULL, 's'}, {"device", required_argument, NULL, 'd'},
		{"hold-seconds", required_argument, NULL, 'h'}, {"kernel", required_argument, NULL, 'k'},
		{"help", no_argument, NULL, '?'}, {0}};
	struct options options = {0};

	for (int option; (option = getopt_long(argc, argv, "", names, NULL)) != -1;) {
		if (option == 'm')
			options.mib = number("mib", optarg, 1L << 24);
		else if (option == 's')
			options.step_mib = number("step-mib", optarg, 1L << 24);
		else if (option == 'd')
			options.device = (int)number("device", optarg, 63);
		else if (option == 'h')
			options.hold_seconds = atof(optarg);
		else if (option == 'k')
			options.kernel = optarg;
		else {
			fputs(usage, optopt == 0 ? stdout : stderr);
			exit(optopt == 0 ? 0 : 1);
		}
	}
	return options;
}

static bool called(struct outcome *outcome, const char *call, CUresult result)
{
	if (result == CUDA_SUCCESS)
		return true;
	outcome->result = result;
	outcome->call = call;
	return false;
}

static void allocate(const struct options *options, struct outcome *outcome)
{
	const long step = options->step_mib > 0 ? options->step_mib : options->mib;
	CUcontext context;
	CUdeviceptr pointer;

	if (!called(outcome, "cuInit", cuda.init(0)) ||
		!called(outcome, "cuDevicePrimaryCtxRetain", cuda.retain(&context, options->device)) ||
		!called(outcome, "cuCtxSetCurrent", cuda.set_current(context)))
		return;
	while (outcome->allocated_mib + step <= options->mib && step > 0) {
		if (!called(outcome, "cuMemAlloc", cuda.alloc(&pointer, (size_t)step << 20)))
			return;
		outcome->allocated_mib += step;
	}
}

static double seconds_now(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static void hold(const struct options *options, const struct outcome *outcome)
{
	const double started = seconds_now();
	const struct timespec pause = {.tv_nsec = 20 * 1000 * 1000};
	CUfunction function = NULL;
	CUmodule module;
	unsigned long launches = 0;

	if (options->kernel != NULL && outcome->result == CUDA_SUCCESS &&
		(cuda.load(&module, "") != CUDA_SUCCESS ||
			cuda.function(&function, module, options->kernel) != CUDA_SUCCESS))
		function = NULL;
	while (!stopped && (options->hold_seconds < 0 || seconds_now() - started < options->hold_seconds)) {
		if (function == NULL) {
			nanosleep(&pause, NULL);
			continue;
		}
		if (cuda.launch(function, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL) == CUDA_SUCCESS)
			launches++;
		(void)cuda.synchronize();
	}
	if (function != NULL)
		printf("{\"launches\": %lu, \"seconds\": %.3f}\n", launches, seconds_now() - started);
}

int main(int argc, char **argv)
{
	const struct options options = parse(argc, argv);
	struct outcome outcome = {.call = ""};
	size_t free_bytes = 0, total_bytes = 0;

	signal(SIGTERM, stop);
	signal(SIGINT, stop);
	load_driver();
	allocate(&options, &outcome);
	(void)cuda.info(&free_bytes, &total_bytes);
	printf("{\"pid\": %d, \"device\": %d, \"asked_mib\": %ld, \"allocated_mib\": %ld, \"result\": %d, \"call\": \"%s\", "
	       "\"free_mib\": %zu, \"total_mib\": %zu}\n",
		(int)getpid(), options.device, options.mib, outcome.allocated_mib, (int)outcome.result, outcome.call,
		free_bytes >> 20, total_bytes >> 20);
	fflush(stdout);
	hold(&options, &outcome);
	return outcome.result == CUDA_SUCCESS ? 0 : outcome.result == CUDA_ERROR_OUT_OF_MEMORY ? 2 : 1;
}
