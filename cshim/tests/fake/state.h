/* state.h: the fake cards of a machine: a file that every process using them maps, as the real driver's kernel module
 * is one for all. Written for tests and rigs: plain, one lock, no speed. It shares no code with the library that it
 * tests but the interface's declarations and the hash table.
 *
 *   FAKE_GPU_CONFIG  text, one card a line: uuid=GPU-... memory_mib=81920 [name=...] [util=40] [context_mib=0]
 *   FAKE_GPU_STATE   the file; default is the configuration's path and ".state"; without either, cards of one's own
 *   NVIDIA_VISIBLE_DEVICES, CUDA_VISIBLE_DEVICES   as with the real ones
 */
#ifndef FAKE_STATE_H
#define FAKE_STATE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

enum {
	FAKE_DEVICES = 16,
	FAKE_PROCESSES = 1024,
};

struct fake_device {
	char uuid[64];
	char name[64];
	uint64_t total_bytes;
	uint64_t context_bytes;
	int util; /* percent, below 0: none given */
	_Atomic uint64_t busy_until_ns;
	_Atomic uint64_t busy_ns;
};

struct fake_process {
	pid_t pid;
	uint64_t started; /* the process's start time, 0 where there is no /proc */
	uint64_t used_bytes[FAKE_DEVICES];
	uint64_t busy_ns[FAKE_DEVICES];
};

struct fake_state {
	_Atomic uint32_t ready;
	pthread_mutex_t lock;
	int device_count;
	struct fake_device devices[FAKE_DEVICES];
	struct fake_process processes[FAKE_PROCESSES];
};

/* The machine's cards; the process ends with a message when its configuration cannot be read. */
struct fake_state *fake_state(void);

void fake_lock(struct fake_state *state);
void fake_unlock(struct fake_state *state);

/* This process's entry. Called with the lock held; entries of the dead are dropped. */
struct fake_process *fake_self(struct fake_state *state);

/* Take room on a card, all or nothing. */
bool fake_take(int device, uint64_t bytes);
void fake_give(int device, uint64_t bytes);
uint64_t fake_used(int device);

/* Cards that this process may see, as NVIDIA_VISIBLE_DEVICES (and with `cuda`, CUDA_VISIBLE_DEVICES) say; returns how
 * many. */
int fake_visible(bool cuda, int devices[FAKE_DEVICES]);

/* Run for `ns` on a card no earlier than `from_ns`; returns when it ends. */
uint64_t fake_run(int device, uint64_t from_ns, uint64_t ns);

uint64_t fake_now_ns(void);

#endif
