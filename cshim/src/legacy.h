/* legacy.h: writing the reference's region beside our own, where HAMI_LEGACY_REGION says so. */
#ifndef VGPU_LEGACY_H
#define VGPU_LEGACY_H

#include "legacy_region.h"
#include "shim.h"

/* Map and fill it at CUDA_DEVICE_MEMORY_SHARED_CACHE, if it is asked for and our own region lies elsewhere. */
void legacy_open(struct shim *shim);

/* Show what this process has in use on a row now. */
void legacy_show(struct shim *shim, int row);

/* Free the places of processes that have left ours. */
void legacy_sweep(struct shim *shim);

/* A launch: wait while the monitor blocks, then say that the container is active. */
void legacy_launch(struct shim *shim);

#endif
