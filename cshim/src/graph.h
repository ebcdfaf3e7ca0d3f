/* graph.h: what of graphs others need to know. */
#ifndef VGPU_GRAPH_H
#define VGPU_GRAPH_H

#include "shim.h"

/* `pointer` was freed: if a graph allocated it, that has its memory no more. */
void graph_freed(struct shim *shim, CUdeviceptr pointer);

#endif
