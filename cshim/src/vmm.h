/* vmm.h: memory without an address, and what of it is mapped into arrays. */
#ifndef VGPU_VMM_H
#define VGPU_VMM_H

#include "shim.h"

/* An array has ended: what was mapped into it is not mapped any more. */
void vmm_drop_array(struct shim *shim, uint64_t array);

#endif
