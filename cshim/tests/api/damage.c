/* What a tenant can do to the region, to the driver's files and to the clocks: limits hold all the same, or the process
 * stops with a message. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <time.h>

#include "log.h"
#include "process.h"
#include "rig.h"

#ifndef CLONE_NEWTIME
#define CLONE_NEWTIME 0x00000080
#endif

static CUresult allocate(uint64_t bytes)
{
	CUdeviceptr a;

	return cuMemAlloc_v2(&a, bytes);
}

/* A share whose region the agent has made. */
static void begin_with_agents_region(uint64_t limit_bytes, uint32_t sm_percent)
{
	struct grant grant = rig_grant(1, limit_bytes, sm_percent);
	struct region head = {.size = REGION_BYTES};
	char path[PATH_MAX];
	int fd;

	rig_cards(1, 8 * GIB);
	grant.flags = GRANT_REGION_MADE;
	rig_write(&grant);
	rig_path(path, "region");
	atomic_store(&head.identity, REGION_MAGIC);
	atomic_store(&head.version, REGION_VERSION);
	fd = open(path, O_RDWR | O_CREAT | O_EXCL, 0666);
	CHECK(fd >= 0 && write(fd, &head, 128) == 128);
	CHECK_EQUAL(ftruncate(fd, REGION_BYTES), 0);
	close(fd);
}

/* What a process of its own gets; above 100 its exit status. */
static int result_elsewhere(uint64_t bytes)
{
	int status;

	fflush(NULL);
	if (fork() == 0) {
		if (freopen("/dev/null", "w", stderr) == NULL)
			_exit(1);
		if (cuInit(0) != CUDA_SUCCESS)
			_exit(1);
		rig_context(0);
		_exit(100 + (int)allocate(bytes));
	}
	wait(&status);
	CHECK(WIFEXITED(status));
	return WEXITSTATUS(status) >= 100 ? WEXITSTATUS(status) - 100 : 100 + WEXITSTATUS(status);
}

static void overwrite(size_t offset, const void *bytes, size_t length)
{
	int fd = open("region", O_WRONLY);

	CHECK(fd >= 0 && pwrite(fd, bytes, length, (off_t)offset) == (ssize_t)length);
	close(fd);
}

static void a_region_that_was_removed_or_emptied_lets_no_process_start(void)
{
	begin_with_agents_region(GIB, 100);
	rig_context(0);
	CHECK_EQUAL(allocate(700 * MIB), CUDA_SUCCESS);
	CHECK_EQUAL(result_elsewhere(400 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
	CHECK_EQUAL(rename("region", "elsewhere"), 0);
	CHECK_EQUAL(result_elsewhere(400 * MIB), 100 + STOP_STATUS);
	CHECK_EQUAL(mkdir("region", 0777), 0);
	CHECK_EQUAL(result_elsewhere(400 * MIB), 100 + STOP_STATUS);
	CHECK_EQUAL(rmdir("region"), 0);
	CHECK_EQUAL(close(open("region", O_CREAT | O_WRONLY, 0666)), 0);
	CHECK_EQUAL(result_elsewhere(400 * MIB), 100 + STOP_STATUS);
	CHECK_EQUAL(rename("elsewhere", "region"), 0);
	CHECK_EQUAL(result_elsewhere(400 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
	CHECK_EQUAL(result_elsewhere(300 * MIB), CUDA_SUCCESS);
}

static void a_damaged_header_is_put_right(void)
{
	begin_with_agents_region(GIB, 100);
	rig_context(0);
	CHECK_EQUAL(allocate(700 * MIB), CUDA_SUCCESS);
	overwrite(0, "X", 1);
	CHECK_EQUAL(result_elsewhere(400 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
	overwrite(8, "XXXXXXXX", 8); /* version and size */
	CHECK_EQUAL(result_elsewhere(400 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
	CHECK_EQUAL(result_elsewhere(300 * MIB), CUDA_SUCCESS);
}

/* The holder's next call puts back what it has. */
static void zeros_over_the_region_are_put_right(void)
{
	static const struct region zeros;

	begin_with_agents_region(GIB, 100);
	rig_context(0);
	CHECK_EQUAL(allocate(700 * MIB), CUDA_SUCCESS);
	overwrite(0, &zeros, sizeof(zeros));
	CHECK_EQUAL(result_elsewhere(400 * MIB), 100 + STOP_STATUS); /* nobody knows what is in use */
	setenv("LIBCUDA_LOG_LEVEL", "0", 1);
	CHECK_EQUAL(allocate(400 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
	rig_exact(700 * MIB);
	CHECK_EQUAL(result_elsewhere(400 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
	CHECK_EQUAL(allocate(300 * MIB), CUDA_SUCCESS);
	rig_exact(1000 * MIB);
}

static void figures_that_were_written_over_are_put_right(void)
{
	CUdeviceptr a;

	begin_with_agents_region(GIB, 100);
	rig_context(0);
	CHECK_EQUAL(cuMemAlloc_v2(&a, 700 * MIB), CUDA_SUCCESS);
	atomic_store(&rig_region()->slots[0].use[0].used, 1);
	CHECK_EQUAL(allocate(400 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
	atomic_store(&rig_region()->slots[0].use[0].used, 900 * MIB);
	CHECK_EQUAL(allocate(200 * MIB), CUDA_SUCCESS);
	atomic_store(&rig_region()->slots[9].use[0].used, 900 * MIB); /* nobody's */
	atomic_store(&rig_region()->slot_high_water, 20);
	CHECK_EQUAL(allocate(100 * MIB), CUDA_SUCCESS);
	CHECK_EQUAL(cuMemFree_v2(a), CUDA_SUCCESS);
	rig_exact(300 * MIB);
}

/* Random bytes and zeros over the header, the devices and the first slots, without end. */
static void scribble(void)
{
	const int fd = open("region", O_RDWR);
	unsigned char *bytes = mmap(NULL, REGION_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	uint64_t random = 88172645463325252u;

	alarm(60);
	for (;;) {
		random ^= random << 13, random ^= random >> 7, random ^= random << 17;
		__atomic_store_n(
			&bytes[random % 8192], (unsigned char)(random >> 60 & 1 ? 0 : random >> 40), __ATOMIC_RELAXED);
		if ((random >> 50 & 255) == 0)
			usleep(20);
	}
}

static void take_all_that_is_given(void)
{
	uint64_t taken = 0;

	if (freopen("/dev/null", "w", stderr) == NULL)
		_exit(1);
	rig_context(0);
	for (int i = 0; i < 2000; i++)
		taken += allocate(64 * MIB) == CUDA_SUCCESS ? 64 * MIB : 0;
	_exit(taken > GIB);
}

static void no_process_takes_more_than_the_share_whatever_is_written_meanwhile(void)
{
	enum { PROCESSES = 30 };
	pid_t writer, processes[PROCESSES];
	int status;

	begin_with_agents_region(GIB, 100);
	fflush(NULL);
	writer = fork();
	if (writer == 0)
		scribble();
	for (int i = 0; i < PROCESSES; i++) {
		processes[i] = fork();
		if (processes[i] == 0)
			take_all_that_is_given();
	}
	for (int i = 0; i < PROCESSES; i++) {
		CHECK_EQUAL(waitpid(processes[i], &status, 0), processes[i]);
		CHECK(WIFEXITED(status) && (WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == STOP_STATUS));
	}
	kill(writer, SIGKILL);
	wait(&status);
}

/* Somebody writes zeros over what was paid; the process knows what it has paid itself. */
static void compute_that_was_paid_stays_paid(void)
{
	const uint64_t second = 1000000000;
	uint64_t started, busy;
	struct timespec now;
	CUfunction kernel;

	begin_with_agents_region(GIB, 20);
	rig_context(0);
	kernel = rig_kernel("k_5ms");
	clock_gettime(CLOCK_MONOTONIC, &now);
	started = (uint64_t)now.tv_sec * second + (uint64_t)now.tv_nsec;
	busy = fakeBusyNanoseconds(0);
	for (int i = 0; i < 20; i++) {
		CHECK_EQUAL(rig_launch(kernel), CUDA_SUCCESS);
		atomic_store(&rig_region()->devices[0].paid_until_ns, 0);
	}
	clock_gettime(CLOCK_MONOTONIC, &now);
	busy = fakeBusyNanoseconds(0) - busy;
	CHECK(busy * 100 < 30 * ((uint64_t)now.tv_sec * second + (uint64_t)now.tv_nsec - started));
}

/* As who may make namespaces, in a user namespace of his own where he may not. */
static int enter_namespaces(int kinds)
{
	return unshare(kinds) == 0 || unshare(CLONE_NEWUSER | kinds) == 0;
}

static void a_full_file_system_kills_nobody(void)
{
	if (!enter_namespaces(CLONE_NEWNS) || mkdir("small", 0777) != 0 ||
		mount("none", "small", "tmpfs", 0, "size=64k") != 0)
		return; /* not permitted here */
	rig_cards(1, 8 * GIB);
	{
		struct grant grant = rig_grant(1, GIB, 100);
		char path[PATH_MAX];

		rig_path(path, "small/region");
		snprintf(grant.region_path, sizeof(grant.region_path), "%.400s", path);
		rig_write(&grant);
	}
	CHECK(freopen("/dev/null", "w", stderr) != NULL);
	rig_context(0);
	CHECK_EQUAL(allocate(700 * MIB), CUDA_SUCCESS);
	CHECK_EQUAL(allocate(400 * MIB), CUDA_ERROR_OUT_OF_MEMORY); /* its own limit */
}

/* Its start time is another there, and so is the monotonic clock. */
static void a_process_in_a_time_namespace_is_held_and_counted(void)
{
	int fd, up[2], status;
	char byte;
	pid_t child;

	(void)rig_one(GIB, 50);
	CHECK_EQUAL(pipe(up), 0);
	child = fork();
	if (child == 0) {
		if (!enter_namespaces(CLONE_NEWTIME))
			_exit(77);
		fd = open("/proc/self/timens_offsets", O_WRONLY);
		if (fd < 0 || write(fd, "monotonic 100000 0\nboottime 100000 0\n", 37) != 37)
			_exit(77);
		close(fd);
		if (fork() == 0) { /* in it */
			rig_context(0);
			CHECK_EQUAL(allocate(700 * MIB), CUDA_SUCCESS);
			for (int i = 0; i < 5; i++)
				CHECK_EQUAL(rig_launch(rig_kernel("k_5ms")), CUDA_SUCCESS);
			CHECK(write(up[1], "x", 1) == 1);
			pause();
		}
		wait(NULL);
		_exit(0);
	}
	close(up[1]);
	if (read(up[0], &byte, 1) == 1) {
		struct timespec now;
		uint64_t now_ns;

		rig_context(0);
		CHECK_EQUAL(allocate(400 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
		CHECK_EQUAL(allocate(300 * MIB), CUDA_SUCCESS);
		clock_gettime(CLOCK_MONOTONIC, &now);
		now_ns = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
		CHECK(atomic_load(&rig_region()->devices[0].paid_until_ns) < now_ns + UINT64_C(60) * 1000000000);
		kill((pid_t)process_owner_pid(atomic_load(&rig_region()->slots[0].owner)), SIGKILL);
	}
	wait(&status);
	(void)child;
}

static void a_second_copy_of_the_driver_is_held(void)
{
	CUresult (*alloc)(CUdeviceptr *, size_t);
	CUdeviceptr a;
	char command[PATH_MAX + 64];
	void *copy;

	rig_begin(GIB);
	snprintf(command, sizeof(command), "LD_PRELOAD= cp %s/fake/libcuda.so.1 ./other.so", getenv("VGPU_BUILD"));
	CHECK_EQUAL(system(command), 0);
	copy = dlopen("./other.so", RTLD_NOW | RTLD_LOCAL);
	CHECK(copy != NULL);
	*(void **)&alloc = dlsym(copy, "cuMemAlloc_v2");
	CHECK(alloc != NULL);
	CHECK_EQUAL(alloc(&a, 4 * GIB), CUDA_ERROR_OUT_OF_MEMORY);
	CHECK(atomic_load(&rig_region()->slots[0].unknown) > 0);
}

static void a_newer_form_of_a_function_is_counted(void)
{
	CUdriverProcAddressQueryResult status;
	void *known, *newer;

	setenv("FAKE_NEWER_FORMS", "1", 1);
	rig_begin(GIB);
	CHECK_EQUAL(cuGetProcAddress_v2("cuMemAlloc", &known, 13000, 0, &status), CUDA_SUCCESS);
	CHECK_EQUAL(cuGetProcAddress_v2("cuMemGetAddressRange", &newer, 13000, 0, &status), CUDA_ERROR_NOT_FOUND);
	CHECK_EQUAL(atomic_load(&rig_region()->slots[0].unknown), 0);
	CHECK_EQUAL(cuGetProcAddress_v2("cuMemAlloc", &newer, 14000, 0, &status), CUDA_SUCCESS);
	CHECK(newer != known);
	CHECK_EQUAL(atomic_load(&rig_region()->slots[0].unknown), 1);
}

/* A container that once had many processes does not pay for them for ever. */
static void the_mark_of_slots_falls_again(void)
{
	enum { MANY = 40 };
	int go[2], status;
	char byte;

	rig_begin(GIB);
	CHECK_EQUAL(pipe(go), 0);
	for (int i = 0; i < MANY; i++)
		if (fork() == 0) {
			close(go[1]);
			rig_context(0);
			_exit(read(go[0], &byte, 1) != 0);
		}
	while (atomic_load(&rig_region()->slot_high_water) <= MANY)
		usleep(1000);
	close(go[1]);
	while (wait(&status) > 0)
		CHECK_EQUAL(status, 0);
	CHECK_EQUAL(allocate(2 * GIB), CUDA_ERROR_OUT_OF_MEMORY); /* looks for dead ones first */
	CHECK_EQUAL(atomic_load(&rig_region()->slot_high_water), 1);
	CHECK_EQUAL(result_elsewhere(GIB), CUDA_SUCCESS);
}

/* What is cut off is grown again, whatever touches it first, and what this process has is put back. */
static void a_region_that_was_cut_short_is_put_right(void)
{
	static const off_t lengths[] = {0, 1, 4096, 128 * 1024};
	CUfunction kernel;

	(void)signal(SIGBUS, SIG_DFL); /* a sanitizer's own handler comes before ours */
	begin_with_agents_region(GIB, 50);
	rig_context(0);
	setenv("LIBCUDA_LOG_LEVEL", "0", 1);
	kernel = rig_kernel("k_10us");
	CHECK_EQUAL(allocate(700 * MIB), CUDA_SUCCESS);
	for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
		CHECK_EQUAL(truncate("region", lengths[i]), 0);
		CHECK_EQUAL(allocate(400 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
		CHECK_EQUAL(truncate("region", lengths[i]), 0);
		CHECK_EQUAL(rig_launch(kernel), CUDA_SUCCESS);
		CHECK_EQUAL(truncate("region", lengths[i]), 0);
		(void)rig_free();
		CHECK_EQUAL(truncate("region", REGION_BYTES), 0); /* for this test's own mapping */
		CHECK_EQUAL(allocate(400 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
		rig_exact(700 * MIB);
	}
	CHECK_EQUAL(result_elsewhere(400 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
	CHECK_EQUAL(result_elsewhere(300 * MIB), CUDA_SUCCESS);
}

static int status_of(void (*act)(void))
{
	int status;

	fflush(NULL);
	if (fork() == 0) {
		if (freopen("/dev/null", "w", stderr) == NULL)
			_exit(1);
		(void)signal(SIGBUS, SIG_DFL);
		rig_context(0);
		act();
		_exit(0);
	}
	wait(&status);
	return status;
}

static void cut_and_remove(void)
{
	CHECK_EQUAL(truncate("region", 0), 0);
	CHECK_EQUAL(rename("region", "elsewhere"), 0);
	(void)allocate(MIB);
}

static void touch_a_file_of_its_own(void)
{
	const int fd = open("file", O_RDWR | O_CREAT, 0600);
	volatile char *at = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	*at = 1;
}

static void be_sent_a_signal(void)
{
	(void)kill(getpid(), SIGBUS);
}

static void note(int number)
{
	_exit(number);
}

static void handle_it_itself(void)
{
	(void)signal(SIGBUS, note);
	touch_a_file_of_its_own();
}

static void a_region_that_cannot_be_put_right_stops_the_process_with_a_message(void)
{
	int status;

	begin_with_agents_region(GIB, 100);
	status = status_of(cut_and_remove);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == STOP_STATUS);
}

static void bus_errors_of_the_program_are_its_own(void)
{
	int status;

	begin_with_agents_region(GIB, 100);
	status = status_of(touch_a_file_of_its_own);
	CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGBUS);
	status = status_of(be_sent_a_signal);
	CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGBUS);
	status = status_of(handle_it_itself);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == SIGBUS);
}

int main(int argc, char **argv)
{
	static const struct test tests[] = {
		TEST(a_region_that_was_removed_or_emptied_lets_no_process_start),
		TEST(a_damaged_header_is_put_right),
		TEST(zeros_over_the_region_are_put_right),
		TEST(a_region_that_was_cut_short_is_put_right),
		TEST(a_region_that_cannot_be_put_right_stops_the_process_with_a_message),
		TEST(bus_errors_of_the_program_are_its_own),
		TEST(figures_that_were_written_over_are_put_right),
		TEST(no_process_takes_more_than_the_share_whatever_is_written_meanwhile),
		TEST(compute_that_was_paid_stays_paid),
		TEST(a_full_file_system_kills_nobody),
		TEST(a_process_in_a_time_namespace_is_held_and_counted),
		TEST(a_second_copy_of_the_driver_is_held),
		TEST(a_newer_form_of_a_function_is_counted),
		TEST(the_mark_of_slots_falls_again),
	};
	return RUN_TESTS(tests, argc, argv);
}
