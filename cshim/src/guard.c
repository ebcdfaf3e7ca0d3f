/* guard.c: the kernel answers an access beyond a file's end with SIGBUS, which ends a process without a word. The
 * region is a file that its tenant may cut short. Then it is grown again, and each process puts back what it has in use
 * at its next change: what was cut off reads as zeros, like a region that was written over.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "guard.h"
#include "log.h"

/* Not in pages that fork wipes: a child has the mapping too. */
static struct {
	const char *_Atomic region;
	char path[512];
	dev_t device;
	ino_t inode;
} guarded;

/* Calls that may be made in a signal handler, and no others. */
static bool grow_again(void)
{
	const int fd = open(guarded.path, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
	struct stat status;
	bool whole;

	if (fd < 0)
		return false;
	whole = fstat(fd, &status) == 0 && status.st_dev == guarded.device && status.st_ino == guarded.inode &&
		(status.st_size >= (off_t)REGION_BYTES || ftruncate(fd, (off_t)REGION_BYTES) == 0) &&
		(fallocate(fd, 0, 0, (off_t)REGION_BYTES) == 0 || (errno != ENOSPC && errno != EDQUOT));
	close(fd);
	return whole;
}

static void on_bus_error(int number, siginfo_t *info, void *context)
{
	const char *const region = atomic_load(&guarded.region), *const at = info->si_addr;
	const int error = errno;

	(void)context;
	if (info->si_code <= 0 || at < region || at >= region + REGION_BYTES) { /* nothing of ours: as without us */
		(void)signal(number, SIG_DFL);
		(void)raise(number);
		return;
	}
	if (!grow_again())
		log_stop("the region %s was cut short, and cannot be made whole again: what is in use is not known. "
			 "Restart the container",
			guarded.path);
	log_line(LOG_ERROR, "the region %s was cut short, and is put right", guarded.path);
	errno = error;
}

void guard_region(const struct region *region, const char *path)
{
	struct sigaction action = {.sa_sigaction = on_bus_error, .sa_flags = SA_SIGINFO | SA_ONSTACK}, before;
	struct stat status;

	if (strlen(path) >= sizeof(guarded.path) || stat(path, &status) != 0)
		return;
	strcpy(guarded.path, path);
	guarded.device = status.st_dev;
	guarded.inode = status.st_ino;
	atomic_store(&guarded.region, (const char *)region);
	if (sigaction(SIGBUS, NULL, &before) == 0 && !(before.sa_flags & SA_SIGINFO) && before.sa_handler == SIG_DFL)
		(void)sigaction(SIGBUS, &action, NULL);
}
