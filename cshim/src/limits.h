/* limits.h: where the limits of this process come from: the grant file, or the environment where there is none. */
#ifndef VGPU_LIMITS_H
#define VGPU_LIMITS_H

#include "shim.h"

/* Fill grant, ceilings, policy and switches of `shim`. False: no limit was promised. A limit that was promised and
 * cannot be read ends the process. */
bool limits_read(struct shim *shim);

/* Fill the private grant's devices, in the order of the container's devices, for limits from the environment. */
void limits_fill_devices(struct shim *shim, const char (*uuids)[GRANT_UUID_BYTES], int count);

/* Where the region is. */
const char *limits_region_path(const struct shim *shim);

#endif
