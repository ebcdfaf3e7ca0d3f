/* limits.c: the grant file, else the environment.
 *
 * The file at the fixed path always wins: HAMI_GRANT_FILE is looked at only where nothing is there, which is a rig or a
 * test, since whoever can take a mount away does not need the variable. Beside a grant the environment can only lower.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "limits.h"
#include "log.h"
#include "quantity.h"

enum {
	SETTLE_TRIES = 200, /* of 10 ms: how long a grant may be half written when a process starts */
};

static const char *grant_path(void)
{
	struct stat status;

	/* In any doubt (no permission, a link, a directory) the fixed path is what counts, and fails later with its
	 * reason. */
	if (lstat(GRANT_FIXED_PATH, &status) == 0 || (errno != ENOENT && errno != ENOTDIR))
		return GRANT_FIXED_PATH;
	return getenv("HAMI_GRANT_FILE");
}

static enum grant_fault grant_read(int fd, struct grant *copy)
{
	const ssize_t length = pread(fd, copy, sizeof(*copy), 0);

	return grant_judge(copy, length < 0 ? 0 : (size_t)length);
}

static struct grant *grant_map(const char *path)
{
	const struct timespec pause = {.tv_nsec = 10 * 1000 * 1000};
	enum grant_fault fault = GRANT_TOO_SHORT;
	struct grant copy, *grant;
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);

	if (fd < 0)
		log_stop(
			"the grant file %s cannot be opened (%s): limits were promised, so this process does not start. "
			"Restart the pod; if that does not help, look at the node agent's log",
			path, strerror(errno));
	for (int i = 0; i < SETTLE_TRIES; i++) {
		fault = grant_read(fd, &copy);
		if (fault != GRANT_BEING_WRITTEN && fault != GRANT_BAD_CHECKSUM)
			break;
		nanosleep(&pause, NULL);
	}
	if (fault != GRANT_OK)
		log_stop("the grant file %s %s: limits were promised, so this process does not start. Restart the node "
			 "agent, which writes it again, then the pod",
			path, grant_fault_text(fault));
	grant = mmap(NULL, sizeof(*grant), PROT_READ, MAP_SHARED, fd, 0);
	close(fd);
	if (grant == MAP_FAILED)
		log_stop("the grant file %s cannot be mapped (%s)", path, strerror(errno));
	return grant;
}

static uint64_t memory_variable(const char *name, uint64_t fallback)
{
	const char *text = getenv(name);
	uint64_t bytes;

	if (text == NULL)
		return fallback;
	if (!quantity_memory(text, &bytes))
		log_stop(
			"%s=\"%.40s\" is not a memory limit: give a whole number with m, g, Mi or Gi, as 4096m or 4Gi, or the "
			"word none",
			name, text);
	return bytes;
}

static uint32_t percent_variable(const char *name, uint32_t fallback)
{
	const char *text = getenv(name);
	uint32_t percent;

	if (text == NULL)
		return fallback;
	if (!quantity_percent(text, &percent))
		log_stop("%s=\"%.40s\" is not a compute limit: give a whole number from 0 to 100", name, text);
	return percent == 0 ? 100 : percent;
}

/* Returns whether the environment promises any limit. */
static bool read_environment(struct shim *shim)
{
	bool any;

	shim->fallback.memory_bytes = memory_variable("CUDA_DEVICE_MEMORY_LIMIT", UINT64_MAX);
	shim->fallback.sm_percent = percent_variable("CUDA_DEVICE_SM_LIMIT", 100);
	any = getenv("CUDA_DEVICE_MEMORY_LIMIT") != NULL || getenv("CUDA_DEVICE_SM_LIMIT") != NULL;
	for (unsigned i = 0; i < GRANT_DEVICES; i++) {
		char name[48];

		snprintf(name, sizeof(name), "CUDA_DEVICE_MEMORY_LIMIT_%u", i);
		any |= getenv(name) != NULL;
		shim->ceilings[i].memory_bytes = memory_variable(name, shim->fallback.memory_bytes);
		snprintf(name, sizeof(name), "CUDA_DEVICE_SM_LIMIT_%u", i);
		any |= getenv(name) != NULL;
		shim->ceilings[i].sm_percent = percent_variable(name, shim->fallback.sm_percent);
	}
	return any;
}

static uint32_t policy_variable(uint32_t granted, bool has_grant)
{
	const char *text = getenv("GPU_CORE_UTILIZATION_POLICY");

	if (text == NULL)
		return granted;
	if (strcasecmp(text, "force") == 0)
		return GRANT_CORE_FORCE;
	if (strcasecmp(text, "disable") == 0 && !has_grant) /* beside a grant, the environment can only tighten */
		return GRANT_CORE_DISABLE;
	return granted;
}

/* The values that the agent itself put into the environment say nothing new, also after a resize. The compute share has
 * one variable for all devices, which has the first device's value. */
static void ignore_agents_values(struct shim *shim)
{
	const struct grant_device *devices = shim->grant->devices;

	for (unsigned i = 0; i < shim->grant->device_count; i++) {
		const uint32_t started = devices[i].started_with_percent == 0 ? 100 : devices[i].started_with_percent;
		struct ceiling *ceiling = &shim->ceilings[i];

		if (ceiling->memory_bytes >= devices[i].started_with_bytes)
			ceiling->memory_bytes = UINT64_MAX;
		if (ceiling->sm_percent >= started || ceiling->sm_percent == devices[0].started_with_percent)
			ceiling->sm_percent = 100;
	}
}

bool limits_read(struct shim *shim)
{
	const char *path = grant_path();
	const bool has_grant = path != NULL;
	const bool has_environment = read_environment(shim);

	if (!has_grant && !has_environment)
		return false;
	shim->from_environment = !has_grant;
	if (has_grant) {
		shim->grant = grant_map(path);
		ignore_agents_values(shim);
	} else {
		shim->grant =
			mmap(NULL, sizeof(*shim->grant), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (shim->grant == MAP_FAILED)
			log_stop("no memory for the limits");
		shim->grant->core_switch = 1;
	}
	shim->core_policy = policy_variable(shim->grant->core_policy, has_grant);
	shim->oversubscribe = shim->grant->flags & GRANT_OVERSUBSCRIBE ||
			      (!has_grant && quantity_switch(getenv("CUDA_OVERSUBSCRIBE")));
	shim->oom_killer = shim->grant->flags & GRANT_OOM_KILLER || quantity_switch(getenv("ACTIVE_OOM_KILLER"));
	return true;
}

void limits_fill_devices(struct shim *shim, const char (*uuids)[GRANT_UUID_BYTES], int count)
{
	for (int i = 0; i < count && i < (int)GRANT_DEVICES; i++) {
		struct grant_device *device = &shim->grant->devices[i];

		memcpy(device->uuid, uuids[i], sizeof(device->uuid));
		device->uuid[sizeof(device->uuid) - 1] = '\0';
	}
	shim->grant->device_count = (uint32_t)(count < (int)GRANT_DEVICES ? count : (int)GRANT_DEVICES);
}

const char *limits_region_path(const struct shim *shim)
{
	static char path[sizeof(GRANT_DIRECTORY) + GRANT_PATH_BYTES];
	const char *name = getenv("CUDA_DEVICE_MEMORY_SHARED_CACHE");

	if (shim->grant->region_path[0] != '\0')
		name = shim->grant->region_path;
	if (name == NULL || name[0] == '\0')
		return "/tmp/cudevshr.cache";
	if (strchr(name, '/') != NULL)
		return name;
	snprintf(path, sizeof(path), "%s%s", GRANT_DIRECTORY, name);
	return path;
}
