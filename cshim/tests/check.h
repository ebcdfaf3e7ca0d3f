/* check.h: a test program is a table of functions; each runs in a process and a temporary directory of its own. */
#ifndef TEST_CHECK_H
#define TEST_CHECK_H

#include <dirent.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(condition)                                                                                               \
	do {                                                                                                           \
		if (!(condition)) {                                                                                    \
			fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);                                \
			_exit(1);                                                                                      \
		}                                                                                                      \
	} while (0)

#define CHECK_EQUAL(got, wanted)                                                                                       \
	do {                                                                                                           \
		const long long got_ = (long long)(got), wanted_ = (long long)(wanted);                                \
		if (got_ != wanted_) {                                                                                 \
			fprintf(stderr, "%s:%d: %s is %lld, wanted %s = %lld\n", __FILE__, __LINE__, #got, got_,       \
				#wanted, wanted_);                                                                     \
			_exit(1);                                                                                      \
		}                                                                                                      \
	} while (0)

struct test {
	const char *name;
	void (*run)(void);
};

#define TEST(function) {#function, function}

enum { TEST_SECONDS = 100 };

static inline void remove_directory(const char *path)
{
	DIR *directory = opendir(path);
	struct dirent *entry;

	while (directory != NULL && (entry = readdir(directory)) != NULL)
		if (entry->d_name[0] != '.' && unlinkat(dirfd(directory), entry->d_name, 0) != 0) {
			char below[PATH_MAX];

			snprintf(below, sizeof(below), "%s/%s", path, entry->d_name);
			remove_directory(below);
		}
	if (directory != NULL)
		closedir(directory);
	(void)rmdir(path);
}

static inline int run_test(const struct test *test)
{
	char directory[] = "/tmp/vgpu-test-XXXXXX";
	int status = 0;
	pid_t child;

	if (mkdtemp(directory) == NULL)
		return 1;
	child = fork();
	if (child == 0) {
		if (chdir(directory) != 0)
			_exit(1);
		alarm(TEST_SECONDS);
		test->run();
		exit(0);
	}
	waitpid(child, &status, 0);
	remove_directory(directory);
	if (status == 0)
		return 0;
	fprintf(stderr, "FAILED %s (%s %d)\n", test->name, WIFSIGNALED(status) ? "signal" : "status",
		WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
	return 1;
}

/* Run all, or those whose names are given; returns the exit status. */
static inline int run_tests(const struct test *tests, size_t count, int argc, char **argv)
{
	int failed = 0, ran = 0;

	for (size_t i = 0; i < count; i++) {
		int wanted = argc < 2;

		for (int argument = 1; argument < argc; argument++)
			wanted |= strcmp(argv[argument], tests[i].name) == 0;
		if (!wanted)
			continue;
		failed += run_test(&tests[i]);
		ran++;
	}
	printf("%d passed, %d failed\n", ran - failed, failed);
	return failed != 0 || ran == 0;
}

#define RUN_TESTS(tests, argc, argv) run_tests(tests, sizeof(tests) / sizeof((tests)[0]), argc, argv)

#endif
