/* Where programs run: filters of system calls, nothing to write to, no environment, other images and other containers.
 * A container's runtime decides all of these, and none may cost a limit or a program. */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include "rig.h"

#if defined(__x86_64__)
#define OUR_ARCHITECTURE AUDIT_ARCH_X86_64
#else
#define OUR_ARCHITECTURE AUDIT_ARCH_AARCH64
#endif

#define LOAD(member)         BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, member))
#define IF_EQUAL(value)      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (value), 0, 1)
#define ANSWER(answer)       BPF_STMT(BPF_RET | BPF_K, (answer))
#define REFUSE(number)       IF_EQUAL(SYS_##number), ANSWER(SECCOMP_RET_ERRNO | EPERM)
#define ALLOW(number)        IF_EQUAL(SYS_##number), ANSWER(SECCOMP_RET_ALLOW)
#define FOR_OUR_CALLS        LOAD(arch), IF_EQUAL(OUR_ARCHITECTURE), LOAD(nr)
#define FILTER(instructions) filter((instructions), sizeof(instructions) / sizeof((instructions)[0]))

static void filter(struct sock_filter *instructions, size_t count)
{
	const struct sock_fprog program = {.len = (unsigned short)count, .filter = instructions};

	CHECK_EQUAL(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
	CHECK_EQUAL(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program), 0);
}

static CUresult allocate(uint64_t bytes)
{
	CUdeviceptr a;

	return cuMemAlloc_v2(&a, bytes);
}

static void the_limit_of_one_gib_holds(void)
{
	rig_context(0);
	CHECK_EQUAL(allocate(600 * MIB), CUDA_SUCCESS);
	CHECK_EQUAL(allocate(600 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
	CHECK_EQUAL(rig_free(), 424 * MIB);
}

static int status_of_child(pid_t child)
{
	int status = -1;

	CHECK(child > 0);
	CHECK_EQUAL(waitpid(child, &status, 0), child);
	return status;
}

static void calls_that_a_filter_refuses_are_done_without(void)
{
	struct sock_filter instructions[] = {FOR_OUR_CALLS, REFUSE(madvise), REFUSE(fcntl), REFUSE(fchmod),
		REFUSE(sched_yield), ANSWER(SECCOMP_RET_ALLOW)};
	pid_t child;

	(void)rig_one(GIB, 50);
	FILTER(instructions);
	the_limit_of_one_gib_holds();
	CHECK_EQUAL(rig_launch(rig_kernel("k_10us")), CUDA_SUCCESS);
	child = fork(); /* without the kernel to wipe pages, libc's handler does it */
	if (child == 0) {
		rig_context(0);
		CHECK_EQUAL(allocate(500 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
		CHECK_EQUAL(allocate(400 * MIB), CUDA_SUCCESS);
		_exit(0);
	}
	CHECK_EQUAL(status_of_child(child), 0);
	CHECK_EQUAL(allocate(424 * MIB), CUDA_SUCCESS); /* what the child had is free */
}

static void where_nobody_may_ask_after_a_process_the_dead_make_room_all_the_same(void)
{
	struct sock_filter instructions[] = {FOR_OUR_CALLS, REFUSE(kill), ANSWER(SECCOMP_RET_ALLOW)};
	int ready[2], gone[2];
	pid_t child;
	char byte;

	(void)rig_one(GIB, 50);
	CHECK(pipe(ready) == 0 && pipe(gone) == 0);
	child = fork();
	if (child == 0) {
		rig_context(0);
		CHECK_EQUAL(allocate(900 * MIB), CUDA_SUCCESS);
		CHECK(write(ready[1], "x", 1) == 1);
		CHECK(read(gone[0], &byte, 1) == 1);
		_exit(0);
	}
	CHECK(read(ready[0], &byte, 1) == 1);
	FILTER(instructions);
	rig_context(0);
	CHECK_EQUAL(allocate(600 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
	CHECK(write(gone[1], "x", 1) == 1);
	CHECK_EQUAL(status_of_child(child), 0);
	CHECK_EQUAL(allocate(600 * MIB), CUDA_SUCCESS);
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) /* which make calls of their own */
/* Nothing but what any program's start and memory need, and /proc: this is all that the library asks of a kernel. The
 * fake driver and this test need no more either. */
static void few_calls_are_enough(void)
{
	struct sock_filter instructions[] = {FOR_OUR_CALLS,
#if defined(__x86_64__)
		ALLOW(open), ALLOW(stat), ALLOW(lstat),
#endif
		ALLOW(openat), ALLOW(close), ALLOW(read), ALLOW(pread64), ALLOW(write), ALLOW(fstat), ALLOW(newfstatat),
		ALLOW(ftruncate), REFUSE(fallocate), ALLOW(fchmod), ALLOW(fcntl), ALLOW(flock), ALLOW(mmap),
		ALLOW(munmap), ALLOW(mprotect), ALLOW(madvise), ALLOW(brk), ALLOW(getpid), ALLOW(kill), ALLOW(futex),
		ALLOW(sched_yield), ALLOW(clock_gettime), ALLOW(nanosleep), ALLOW(clock_nanosleep), ALLOW(getrandom),
		ALLOW(rt_sigaction), ALLOW(exit_group), ANSWER(SECCOMP_RET_KILL_PROCESS)};

	(void)rig_one(GIB, 50);
	FILTER(instructions);
	the_limit_of_one_gib_holds();
	for (int i = 0; i < 100; i++)
		CHECK_EQUAL(rig_launch(rig_kernel("k_10us")), CUDA_SUCCESS);
}
#endif

static void where_nothing_can_be_written_the_process_keeps_its_own_limit(void)
{
	struct sock_filter instructions[] = {FOR_OUR_CALLS, BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_openat, 0, 3),
		LOAD(args[2]), BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, O_WRONLY | O_RDWR | O_CREAT, 0, 1),
		ANSWER(SECCOMP_RET_ERRNO | EROFS), ANSWER(SECCOMP_RET_ALLOW)};

	(void)rig_one(GIB, 50);
	CHECK_EQUAL(fakeUsedBytes(0), 0); /* the cards have their state now; it is the machine's, not the container's */
	FILTER(instructions);
	the_limit_of_one_gib_holds();
	CHECK(access("region", F_OK) != 0);
}

static void an_empty_environment_changes_nothing(void)
{
	char grant[PATH_MAX], cards[PATH_MAX];

	(void)rig_one(GIB, 100);
	rig_path(grant, "grant");
	rig_path(cards, "cards");
	CHECK_EQUAL(clearenv(), 0); /* no HOME, no PATH, no TMPDIR */
	setenv("HAMI_GRANT_FILE", grant, 1);
	setenv("FAKE_GPU_CONFIG", cards, 1);
	the_limit_of_one_gib_holds();
	CHECK_EQUAL(rig_charged(0), 600 * MIB);
}

static pid_t start(bool borrow, const char *first, const char *second)
{
	char *const arguments[] = {(char *)first, (char *)second, (char *)"--mib", (char *)"500", NULL};
	pid_t child = borrow ? vfork() : fork();

	if (child == 0) {
		execv(first, second != NULL ? arguments : (char *const[]){(char *)first, NULL});
		_exit(100);
	}
	return child;
}

static const char *built(const char *program)
{
	static char paths[2][PATH_MAX];
	static int next;
	char *path = paths[next++ % 2];

	snprintf(path, PATH_MAX, "%s/%s", getenv("VGPU_BUILD"), program);
	return path;
}

static int code_of(pid_t child)
{
	const int status = status_of_child(child);

	return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

enum { REFUSED_MEMORY = 2 }; /* vgpu-alloc's status */

static void a_child_that_borrows_its_parents_memory_harms_nobody(void)
{
	(void)rig_one(GIB, 100);
	the_limit_of_one_gib_holds();
	CHECK_EQUAL(code_of(start(true, built("vgpu-alloc"), "--mib=500")), REFUSED_MEMORY);
	CHECK_EQUAL(allocate(424 * MIB), CUDA_SUCCESS);
	CHECK_EQUAL(rig_charged(0), 1024 * MIB);
}

static void a_static_program_runs_and_those_that_it_starts_are_held(void)
{
	(void)rig_one(400 * MIB, 100);
	CHECK_EQUAL(code_of(start(false, built("static-start"), NULL)), 9); /* nothing to start */
	CHECK_EQUAL(code_of(start(false, built("static-start"), built("vgpu-alloc"))), REFUSED_MEMORY);
}

static void a_container_of_a_pod_does_not_feel_the_others(void)
{
	for (int container = 0; container < 3; container++) {
		const pid_t child = fork();
		char name[16];

		if (child != 0) {
			CHECK_EQUAL(status_of_child(child), 0);
			continue;
		}
		snprintf(name, sizeof(name), "c%d", container);
		CHECK(mkdir(name, 0700) == 0 && chdir(name) == 0);
		(void)rig_one(GIB, 100); /* a grant and a region of its own */
		setenv("FAKE_GPU_CONFIG", "../cards", 1);
		setenv("FAKE_GPU_STATE", "../state", 1);
		if (container == 0)
			CHECK_EQUAL(rename("cards", "../cards"), 0);
		the_limit_of_one_gib_holds();
		if (fork() == 0) { /* it stays, with what it has */
			rig_context(0);
			CHECK_EQUAL(allocate(400 * MIB), CUDA_SUCCESS);
			CHECK(rig_charged(0) >= 400 * MIB);
			_exit(0);
		}
		CHECK(wait(NULL) > 0);
		_exit(0);
	}
}

static void a_program_without_cuda_runs_whatever_its_grant_is(void)
{
	(void)rig_one(GIB, 100);
	CHECK_EQUAL(truncate("grant", 10), 0);
	CHECK_EQUAL(code_of(start(false, "/bin/true", NULL)), 0);
	CHECK_EQUAL(unlink("grant"), 0);
	CHECK_EQUAL(code_of(start(false, "/bin/true", NULL)), 0);
	CHECK(access("region", F_OK) != 0);
}

int main(int argc, char **argv)
{
	static const struct test tests[] = {
		TEST(calls_that_a_filter_refuses_are_done_without),
		TEST(where_nobody_may_ask_after_a_process_the_dead_make_room_all_the_same),
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
		TEST(few_calls_are_enough),
#endif
		TEST(where_nothing_can_be_written_the_process_keeps_its_own_limit),
		TEST(an_empty_environment_changes_nothing),
		TEST(a_child_that_borrows_its_parents_memory_harms_nobody),
		TEST(a_static_program_runs_and_those_that_it_starts_are_held),
		TEST(a_container_of_a_pod_does_not_feel_the_others),
		TEST(a_program_without_cuda_runs_whatever_its_grant_is),
	};
	return RUN_TESTS(tests, argc, argv);
}
