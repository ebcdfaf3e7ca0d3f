#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "state.h"

static void fail(const char *what, const char *subject)
{
	fprintf(stderr, "fake driver: %s: %s\n", what, subject);
	exit(70);
}

uint64_t fake_now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void read_device(struct fake_device *device, char *line)
{
	char *rest = line;

	*device = (struct fake_device){.util = -1, .total_bytes = UINT64_C(80) << 30, .name = "Fake GPU"};
	for (char *word = strtok_r(rest, " \t\n", &rest); word != NULL; word = strtok_r(NULL, " \t\n", &rest)) {
		char *value = strchr(word, '=');

		if (value == NULL)
			fail("a line of the configuration has a word without =", word);
		*value++ = '\0';
		if (strcmp(word, "uuid") == 0)
			snprintf(device->uuid, sizeof(device->uuid), "%s", value);
		else if (strcmp(word, "name") == 0)
			snprintf(device->name, sizeof(device->name), "%s", value);
		else if (strcmp(word, "memory_mib") == 0)
			device->total_bytes = strtoull(value, NULL, 10) << 20;
		else if (strcmp(word, "context_mib") == 0)
			device->context_bytes = strtoull(value, NULL, 10) << 20;
		else if (strcmp(word, "util") == 0)
			device->util = atoi(value);
		else
			fail("a line of the configuration has an unknown word", word);
	}
	if (device->uuid[0] == '\0')
		fail("a card of the configuration has no uuid", device->name);
}

static void read_config(struct fake_state *state, const char *path)
{
	char line[512];
	FILE *file;

	if (path == NULL) {
		snprintf(line, sizeof(line), "uuid=GPU-00000000-0000-4000-8000-000000000000");
		read_device(&state->devices[state->device_count++], line);
		return;
	}
	file = fopen(path, "re");
	if (file == NULL)
		fail("the configuration cannot be read", path);
	while (fgets(line, sizeof(line), file) != NULL && state->device_count < FAKE_DEVICES) {
		if (line[strspn(line, " \t\n")] == '\0' || line[0] == '#')
			continue;
		read_device(&state->devices[state->device_count++], line);
	}
	fclose(file);
	if (state->device_count == 0)
		fail("the configuration has no card", path);
}

static void initialise(struct fake_state *state, const char *config)
{
	pthread_mutexattr_t attributes;

	read_config(state, config);
	pthread_mutexattr_init(&attributes);
	pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
	pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
	pthread_mutex_init(&state->lock, &attributes);
	atomic_store(&state->ready, 1);
}

static struct fake_state *map_state(const char *config)
{
	const char *path = getenv("FAKE_GPU_STATE");
	char beside[4096];
	struct fake_state *state;
	int fd = -1;

	if (path == NULL && config != NULL) {
		snprintf(beside, sizeof(beside), "%s.state", config);
		path = beside;
	}
	if (path != NULL) {
		fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
		if (fd < 0 || flock(fd, LOCK_EX) != 0 || ftruncate(fd, sizeof(*state)) != 0)
			fail("the state cannot be opened", path);
	}
	state = mmap(
		NULL, sizeof(*state), PROT_READ | PROT_WRITE, fd < 0 ? MAP_SHARED | MAP_ANONYMOUS : MAP_SHARED, fd, 0);
	if (state == MAP_FAILED)
		fail("the state cannot be mapped", path != NULL ? path : "anonymous");
	if (atomic_load(&state->ready) == 0)
		initialise(state, config);
	if (fd >= 0) {
		flock(fd, LOCK_UN); /* the mapping keeps the file open, and with it the lock */
		close(fd);
	}
	return state;
}

struct fake_state *fake_state(void)
{
	static struct fake_state *_Atomic mapped;
	struct fake_state *state = atomic_load(&mapped), *none = NULL;

	if (state != NULL)
		return state;
	state = map_state(getenv("FAKE_GPU_CONFIG"));
	if (!atomic_compare_exchange_strong(&mapped, &none, state)) {
		munmap(state, sizeof(*state));
		state = none;
	}
	return state;
}

void fake_lock(struct fake_state *state)
{
	if (pthread_mutex_lock(&state->lock) == EOWNERDEAD)
		pthread_mutex_consistent(&state->lock);
}

void fake_unlock(struct fake_state *state)
{
	pthread_mutex_unlock(&state->lock);
}

static uint64_t started_at(pid_t pid)
{
	char path[32], line[1024];
	char *field;
	size_t length;
	FILE *file;

	snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
	file = fopen(path, "re");
	if (file == NULL)
		return 0;
	length = fread(line, 1, sizeof(line) - 1, file);
	fclose(file);
	line[length] = '\0';
	field = strrchr(line, ')');
	if (field == NULL || field[1] == '\0' || field[2] == 'Z')
		return 0;
	for (int i = 2; i < 22 && field != NULL; i++)
		field = strchr(field + 1, ' ');
	return field != NULL ? strtoull(field, NULL, 10) : 0;
}

static void drop_dead(struct fake_state *state)
{
	for (int i = 0; i < FAKE_PROCESSES; i++) {
		struct fake_process *process = &state->processes[i];

		if (process->pid != 0 && process->pid != getpid() &&
			(kill(process->pid, 0) != 0 ? errno == ESRCH : started_at(process->pid) != process->started))
			memset(process, 0, sizeof(*process));
	}
}

struct fake_process *fake_self(struct fake_state *state)
{
	static pid_t known_pid;
	static struct fake_process *known;
	const pid_t pid = getpid();

	if (known_pid == pid)
		return known;
	for (int tries = 0; tries < 2; tries++) {
		for (int i = 0; i < FAKE_PROCESSES; i++)
			if (state->processes[i].pid == pid)
				memset(&state->processes[i], 0,
					sizeof(state->processes[i])); /* another image of ours, before exec */
		for (int i = 0; i < FAKE_PROCESSES; i++) {
			struct fake_process *process = &state->processes[i];

			if (process->pid != 0)
				continue;
			*process = (struct fake_process){.pid = pid, .started = started_at(pid)};
			known = process;
			known_pid = pid;
			return process;
		}
		drop_dead(state);
	}
	fail("too many processes", "");
	return NULL;
}

static uint64_t sum_used(struct fake_state *state, int device)
{
	uint64_t used = 0;

	for (int i = 0; i < FAKE_PROCESSES; i++)
		used += state->processes[i].used_bytes[device];
	return used;
}

bool fake_take(int device, uint64_t bytes)
{
	struct fake_state *state = fake_state();
	uint64_t used;
	bool fits;

	fake_lock(state);
	used = sum_used(state, device);
	if (bytes > state->devices[device].total_bytes || used > state->devices[device].total_bytes - bytes) {
		drop_dead(state);
		used = sum_used(state, device);
	}
	fits = bytes <= state->devices[device].total_bytes && used <= state->devices[device].total_bytes - bytes;
	if (fits)
		fake_self(state)->used_bytes[device] += bytes;
	fake_unlock(state);
	return fits;
}

void fake_give(int device, uint64_t bytes)
{
	struct fake_state *state = fake_state();

	fake_lock(state);
	fake_self(state)->used_bytes[device] -= bytes;
	fake_unlock(state);
}

uint64_t fake_used(int device)
{
	struct fake_state *state = fake_state();
	uint64_t used;

	fake_lock(state);
	drop_dead(state);
	used = sum_used(state, device);
	fake_unlock(state);
	return used;
}

/* Keep of `devices` what a list such as "1,0" or "GPU-...,GPU-..." names, in its order. */
static int choose(const char *list, int devices[FAKE_DEVICES], int count)
{
	struct fake_state *state = fake_state();
	int chosen[FAKE_DEVICES], chosen_count = 0;
	char text[4096], *rest = text;

	if (list == NULL || strcmp(list, "all") == 0)
		return count;
	snprintf(text, sizeof(text), "%s", list);
	for (char *word = strtok_r(rest, ",", &rest); word != NULL && chosen_count < FAKE_DEVICES;
		word = strtok_r(NULL, ",", &rest)) {
		char *end;
		long number = strtol(word, &end, 10);
		int found = -1;

		if (end != word && *end == '\0') {
			found = number >= 0 && number < count ? devices[number] : -1;
		} else {
			for (int i = 0; i < count; i++)
				if (strcmp(state->devices[devices[i]].uuid, word) == 0)
					found = devices[i];
		}
		if (found < 0)
			break; /* as the real one: what comes after an unknown name is not visible either */
		chosen[chosen_count++] = found;
	}
	memcpy(devices, chosen, sizeof(int) * (size_t)chosen_count);
	return chosen_count;
}

int fake_visible(bool cuda, int devices[FAKE_DEVICES])
{
	int count = fake_state()->device_count;

	for (int i = 0; i < count; i++)
		devices[i] = i;
	count = choose(getenv("NVIDIA_VISIBLE_DEVICES"), devices, count);
	if (cuda)
		count = choose(getenv("CUDA_VISIBLE_DEVICES"), devices, count);
	return count;
}

uint64_t fake_run(int device, uint64_t from_ns, uint64_t ns)
{
	struct fake_state *state = fake_state();
	struct fake_device *card = &state->devices[device];
	uint64_t until = atomic_load(&card->busy_until_ns), end;

	if (ns == 0)
		return from_ns;
	do
		end = (until > from_ns ? until : from_ns) + ns;
	while (!atomic_compare_exchange_weak(&card->busy_until_ns, &until, end));
	atomic_fetch_add(&card->busy_ns, ns);
	fake_lock(state);
	fake_self(state)->busy_ns[device] += ns;
	fake_unlock(state);
	return end;
}
