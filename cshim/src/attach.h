/* attach.h: how a process comes into its container's region, and clears after those that have gone. */
#ifndef VGPU_ATTACH_H
#define VGPU_ATTACH_H

#include <stdbool.h>

#include "process.h"
#include "region.h"

enum { NO_SLOT = REGION_SLOTS };

enum region_maker {
	REGION_BY_ANYBODY, /* the first process makes it */
	REGION_BY_AGENT,   /* the agent did, and set its identity: where it is missing or empty somebody was at it */
};

/* Map the region at `path`, and put a damaged header right. NULL, with errno, when it cannot be used. `*fd` is for the
 * caller to close, once it has a slot. */
struct region *attach_map(const char *path, enum region_maker maker, int *fd);

/* Put the header right. */
void attach_mend_header(struct region *region);

/* Take one's own slot back where its owner was wiped out; false when another process has it now. */
bool attach_keep_slot(struct region *region, unsigned slot, const struct process_self *self);

/* A region of this process's own: limits hold within the process, others are not seen. */
struct region *attach_map_private(void);

/* Take a slot for `self`: its own from before an exec, a free one, or one of the dead. NO_SLOT when there is none.
 * The slot's byte of the file is locked through `fd` (if it is not -1), for as long as the mapping lives: that is how a
 * process in another pid namespace is told from a dead one. */
unsigned attach_take_slot(struct region *region, const struct process_self *self, const char *path, int fd);

/* Free the slots of dead processes; returns how many. `path` NULL: a private region. */
unsigned attach_reap(struct region *region, const struct process_self *self, const char *path);

#endif
