/* process.c: processes as /proc shows them. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "process.h"

enum { STAT_BYTES = 1024 };

static bool read_stat(const char *path, struct process_stat *stat)
{
	char line[STAT_BYTES];
	ssize_t length;
	int fd = open(path, O_RDONLY | O_CLOEXEC);

	if (fd < 0)
		return false;
	length = read(fd, line, sizeof(line) - 1);
	close(fd);
	if (length <= 0)
		return false;
	line[length] = '\0';
	return process_parse_stat(line, stat);
}

struct process_self process_self(void)
{
	struct process_stat stat = {0};
	struct process_self self = {0};
	struct stat namespace;

	(void)read_stat("/proc/self/stat", &stat);
	self.owner = process_owner_word((uint32_t)getpid(), stat.start_ticks);
	self.image = stat.image;
	if (fstatat(AT_FDCWD, "/proc/self/ns/pid", &namespace, 0) == 0)
		self.namespace = namespace.st_ino;
	if (fstatat(AT_FDCWD, "/proc/self/ns/time", &namespace, 0) == 0)
		self.time_namespace = namespace.st_ino;
	return self;
}

int64_t process_clock_ahead_ns(void)
{
	char text[256];
	long long seconds, nanoseconds;
	const char *line;
	ssize_t length;
	int fd = open("/proc/self/timens_offsets", O_RDONLY | O_CLOEXEC);

	if (fd < 0)
		return 0;
	length = read(fd, text, sizeof(text) - 1);
	close(fd);
	if (length <= 0)
		return 0;
	text[length] = '\0';
	line = strstr(text, "monotonic");
	if (line == NULL || sscanf(line, "monotonic %lld %lld", &seconds, &nanoseconds) != 2)
		return 0;
	return (int64_t)(seconds * 1000000000 + nanoseconds);
}

bool process_may_ask(void)
{
	return kill(getpid(), 0) == 0;
}

bool process_is_shown(uint64_t owner)
{
	char path[32];

	snprintf(path, sizeof(path), "/proc/%u", process_owner_pid(owner));
	return access(path, F_OK) == 0;
}

bool process_is_gone(uint64_t owner, uint64_t image)
{
	const uint32_t pid = process_owner_pid(owner);
	struct process_stat stat;
	char path[32];

	if (pid == 0 ||
		(kill((pid_t)pid, 0) != 0 && errno == ESRCH)) /* no process has the pid 0: somebody wrote nonsense */
		return true;
	snprintf(path, sizeof(path), "/proc/%u/stat", pid);
	if (!read_stat(path, &stat))
		return kill((pid_t)pid, 0) != 0 && errno == ESRCH;
	return !process_is_same(&stat, owner, image);
}
