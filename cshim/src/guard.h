/* guard.h: a region whose file is cut short while processes have it mapped. */
#ifndef VGPU_GUARD_H
#define VGPU_GUARD_H

#include <stdbool.h>

#include "region.h"

/* From now on an access to `region` beyond the end of its file, which is `path`, makes the file whole again; where that
 * cannot be, the process ends with a message. A program that handles SIGBUS itself keeps its own handler, and gets the
 * signal. */
void guard_region(const struct region *region, const char *path);

#endif
