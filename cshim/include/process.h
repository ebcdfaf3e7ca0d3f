/* process.h: which process is it, and is it alive? Pure parsing here; process.c reads /proc.
 *
 * A process is (pid, start time): a reused pid has another start time. `image` is the address of the initial stack,
 * which the kernel chooses anew at exec, so that what a process held before exec is not taken for what it holds now.
 */
#ifndef VGPU_PROCESS_H
#define VGPU_PROCESS_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "region.h"

struct process_stat {
	char state;
	uint64_t threads;
	uint64_t start_ticks;
	uint64_t image; /* 0: this reader may not know */
};

static inline bool process_next_number(const char **at, uint64_t *value)
{
	const char *c = *at;

	while (*c == ' ')
		c++;
	if (*c == '-') /* signed fields are never the ones we want */
		c++;
	if (*c < '0' || *c > '9')
		return false;
	for (*value = 0; *c >= '0' && *c <= '9'; c++)
		*value = *value * 10 + (uint64_t)(*c - '0');
	*at = c;
	return true;
}

/* Read a line of /proc/<pid>/stat. The name in it is the process's own choice: fields count from its last ')'. */
static inline bool process_parse_stat(const char *line, struct process_stat *stat)
{
	const char *at = strrchr(line, ')');
	uint64_t value;

	if (at == NULL || at[1] != ' ' || at[2] == '\0')
		return false;
	stat->state = at[2];
	at += 3;
	for (int field = 4; field <= 28; field++) {
		if (!process_next_number(&at, &value))
			return false;
		if (field == 20)
			stat->threads = value;
		else if (field == 22)
			stat->start_ticks = value;
		else if (field == 28)
			stat->image = value > 1 ? value : 0; /* hidden from other users as 0 or 1 */
	}
	return true;
}

static inline uint64_t process_owner_word(uint32_t pid, uint64_t start_ticks)
{
	return (pid & REGION_PID_MASK) | start_ticks << REGION_PID_BITS;
}

static inline uint32_t process_owner_pid(uint64_t owner)
{
	return (uint32_t)(owner & REGION_PID_MASK);
}

/* Whether the process that `stat` describes is the one that claimed `owner` from the program image `image`. A leader
 * that has exited while its threads go on is a zombie with threads: alive. An owner without a start time had no /proc.
 */
static inline bool process_is_same(const struct process_stat *stat, uint64_t owner, uint64_t image)
{
	if ((stat->state == 'Z' && stat->threads < 2) || stat->state == 'X' || stat->state == 'x')
		return false;
	if (owner >> REGION_PID_BITS != 0 && process_owner_word(process_owner_pid(owner), stat->start_ticks) != owner)
		return false;
	return image == 0 || stat->image == 0 || stat->image == image;
}

struct process_self {
	uint64_t owner;
	uint64_t image;
	uint64_t namespace;
	uint64_t time_namespace;
};

/* How far this process's clocks of its time namespace are ahead of the machine's, in nanoseconds: region and grant have
 * the machine's time. 0 where there are no such namespaces. */
int64_t process_clock_ahead_ns(void);

/* This process, as it stands in a slot. Without /proc the start time is 0 and only the pid identifies it. */
struct process_self process_self(void);

/* Whether the owner of a slot, in this process's own pid namespace, is gone. In doubt it is not. */
bool process_is_gone(uint64_t owner, uint64_t image);

/* Whether this process may ask after others at all: a filter of system calls may refuse it. */
bool process_may_ask(void);

/* Whether /proc shows a process with the owner's pid. */
bool process_is_shown(uint64_t owner);

#endif
