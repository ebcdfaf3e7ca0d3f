/* The compute limit among the processes and the threads of a container. */
#define _GNU_SOURCE
#include <pthread.h>

#include "share.h"

/* `count` processes of one container, each with its own kernel; returns their device time through `busy`. */
static void run_together(
	int count, const char *const *kernels, const uint64_t *kernel_ns, uint64_t window, uint64_t *busy)
{
	_Atomic uint64_t *shared = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	for (int i = 0; i < count; i++) {
		if (fork() != 0)
			continue;
		clock_member = i;
		rig_context(0);
		CUfunction kernel = rig_kernel(kernels[i]);
		const uint64_t started = clock_now();

		while (clock_now() - started < window) {
			CHECK_EQUAL(rig_launch(kernel), CUDA_SUCCESS);
			atomic_fetch_add(&shared[i], kernel_ns[i]);
			clock_sleep(HOST_NS);
		}
		clock_leave();
		_exit(0);
	}
	for (int status; wait(&status) > 0;)
		CHECK_EQUAL(status, 0);
	for (int i = 0; i < count; i++)
		busy[i] = atomic_load(&shared[i]);
}

static void processes_share_by_time_and_not_by_count(void)
{
	static const char *const kernels[] = {"short_100us", "long_10ms"};
	static const uint64_t kernel_ns[] = {100000, 10000000};
	uint64_t busy[2];

	clock_start(2);
	(void)rig_one(GIB, 50);
	run_together(2, kernels, kernel_ns, 4 * SECOND_NS, busy);
	CHECK_SHARE(100.0 * (double)busy[0] / (4.0 * SECOND_NS), 25, 3);
	CHECK_SHARE(100.0 * (double)busy[1] / (4.0 * SECOND_NS), 25, 3);
}

static void many_processes_together_keep_to_the_containers_share(void)
{
	static const char *const kernels[] = {"a_200us", "b_200us", "c_1ms", "d_2ms"};
	static const uint64_t kernel_ns[] = {200000, 200000, 1000000, 2000000};
	uint64_t busy[4];

	clock_start(4);
	(void)rig_one(GIB, 40);
	run_together(4, kernels, kernel_ns, 2 * SECOND_NS, busy);
	CHECK_SHARE(100.0 * (double)(busy[0] + busy[1] + busy[2] + busy[3]) / (2.0 * SECOND_NS), 40, 3);
	for (int i = 0; i < 4; i++)
		CHECK_SHARE(100.0 * (double)busy[i] / (2.0 * SECOND_NS), 10, 3);
}

enum { LAUNCHERS = 4, LAUNCHES = 150 };

static void *launch_many_kernels(void *unused)
{
	CUfunction kernel;

	rig_context(0);
	kernel = rig_kernel("k_10us");
	for (unsigned i = 0; i < LAUNCHES; i++)
		CHECK_EQUAL(cuLaunchKernel(kernel, 1 + i % 16, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL), CUDA_SUCCESS);
	return unused;
}

static void threads_launch_beside_each_other(void)
{
	pthread_t threads[LAUNCHERS];

	(void)rig_one(GIB, 50); /* on the real clock: what is looked for is what a sanitizer finds */
	rig_context(0);
	for (int i = 0; i < LAUNCHERS; i++)
		CHECK_EQUAL(pthread_create(&threads[i], NULL, launch_many_kernels, NULL), 0);
	for (int i = 0; i < LAUNCHERS; i++)
		CHECK_EQUAL(pthread_join(threads[i], NULL), 0);
	CHECK_EQUAL(fakeBusyNanoseconds(0), UINT64_C(10000) * LAUNCHERS * LAUNCHES);
	CHECK(atomic_load(&rig_region()->slots[0].use[0].busy_ns) > 0);
}

int main(int argc, char **argv)
{
	static const struct test tests[] = {
		TEST(processes_share_by_time_and_not_by_count),
		TEST(many_processes_together_keep_to_the_containers_share),
		TEST(threads_launch_beside_each_other),
	};
	return RUN_TESTS(tests, argc, argv);
}
