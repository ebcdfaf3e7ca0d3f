/* attach.h: how a process comes into its container's region, and clears after those that have gone. */
#ifndef VGPU_ATTACH_H
#define VGPU_ATTACH_H

#include <stdbool.h>

#include "process.h"
#include "region.h"

enum { NO_SLOT = REGION_SLOTS };

/* Map the region at `path`, creating it if need be. NULL, with errno, when it cannot be used. The descriptor is closed,
 * but for the lock described at attach_take_slot. */
struct region *attach_map(const char *path, int *fd);

/* A region of this process's own: limits hold within the process, others are not seen. */
struct region *attach_map_private(void);

/* Take a slot for `self`: its own from before an exec, a free one, or one of the dead. NO_SLOT when there is none.
 * With `fd` >= 0 the slot's byte of the file is locked too, which is how a process in another pid namespace is told
 * from a dead one. */
unsigned attach_take_slot(struct region *region, const struct process_self *self, int fd);

/* Free the slots of dead processes; returns how many. `fd` as above, or -1. */
unsigned attach_reap(struct region *region, const struct process_self *self, int fd);

#endif
