/* driver.h: what the parts of the fake libcuda.so.1 share. */
#ifndef FAKE_DRIVER_H
#define FAKE_DRIVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#pragma GCC visibility push(default)
#include "cuda_abi.h"

/* Make the next `count` calls of `function` fail with `result`. For tests, which find it by dlsym. */
void fakeFail(const char *function, CUresult result, int count);

/* Bytes in use on a card by all processes, as the card itself knows. */
uint64_t fakeUsedBytes(int device);

/* Bytes in use on a device of this process's by itself, its contexts apart. */
uint64_t fakeOwnBytes(int device);

/* Device time that a card has worked, by all processes. */
uint64_t fakeBusyNanoseconds(int device);

/* From its next launch on a kernel runs for `ns`, whatever its name says. */
void fakeRunFor(CUfunction function, uint64_t ns);

/* What cuGetProcAddress was asked for, by whomever in this process, from the first on; returns how often. */
struct fake_lookup {
	char name[64];
	int version;
	cuuint64_t flags;
};
unsigned fakeLookups(const struct fake_lookup **first);

/* The symbol that stands behind a look-up; NULL where this driver has none. */
const char *fakeSymbol(const char *name, int version, cuuint64_t flags);
#pragma GCC visibility pop

#include "state.h"

/* Returns from the caller when a test asked for it, or when it was not initialised. */
#define ENTER()                                                                                                        \
	do {                                                                                                           \
		CUresult injected_ = fake_enter(__func__);                                                             \
		if (injected_ != CUDA_SUCCESS)                                                                         \
			return injected_;                                                                              \
	} while (0)

CUresult fake_enter(const char *function);

enum { FAKE_LOOKUPS = 4096 };

enum { FAKE_LIMITS = 4 };

struct CUctx_st {
	uint64_t limits[FAKE_LIMITS]; /* what cuCtxSetLimit has set */
	int device;                   /* of the machine's cards */
	CUdevice ordinal;
	uint64_t id;
	bool primary;
};

/* The machine's card behind an ordinal, -1 when there is none; the current context, NULL when there is none. */
int fake_card(CUdevice ordinal);
struct CUctx_st *fake_context(void);

#define NEED_CONTEXT(context)                                                                                          \
	struct CUctx_st *context = fake_context();                                                                     \
	if (context == NULL)                                                                                           \
	return CUDA_ERROR_INVALID_CONTEXT

/* Streams: NULL is the context's own. In a capture, what is launched becomes a node. */
struct CUgraph_st;
struct CUstream_st {
	_Atomic uint64_t free_at_ns;
	struct CUgraph_st *capture;
	CUstreamCaptureMode mode;
	struct CUctx_st
		*context; /* in which it was created; NULL for the default streams, which are the current one's */
	unsigned spoiled; /* how many captures had been spoiled when this one began */
};
struct CUstream_st *fake_stream(CUstream stream, bool per_thread);

struct CUctx_st *fake_stream_context(const struct CUstream_st *stream);

struct CUfunc_st {
	char name[64];
	uint64_t ns;
};

/* What may not be done while others capture, unless this thread has said that it knows: refused, and captures are
 * spoiled. */
#define NOT_IN_A_CAPTURE()                                                                                             \
	do {                                                                                                           \
		if (fake_spoils_captures())                                                                            \
			return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;                                                  \
	} while (0)

bool fake_spoils_captures(void);

/* Run for `ns` in the order of a stream, or record that in its capture. */
CUresult fake_launch(struct CUstream_st *stream, uint64_t ns);

struct CUgraph_st *fake_graph_new(void);
void fake_graph_add_kernel(struct CUgraph_st *graph, uint64_t ns);
CUdeviceptr fake_graph_add_alloc(struct CUgraph_st *graph, uint64_t bytes, const CUmemLocation *location);

/* Memory of a card for a graph, in use from now on or only ready; and not in use any more. A trim ends all use. */
CUresult fake_graph_memory(int device, uint64_t bytes, bool use);
void fake_graph_unused(int device, uint64_t bytes);
unsigned fake_graph_trims(void);

/* Whether `pointer` is memory of a launched graph, which is freed with that. */
bool fake_graph_free(CUdeviceptr pointer);

/* Device addresses for `bytes`; below 4 GiB for the oldest functions. What was given back last is given out first, as
 * real drivers do. */
CUdeviceptr fake_address(uint64_t bytes, bool low);
void fake_address_free(CUdeviceptr address, uint64_t bytes);

/* The card of a location, -1 for the host; `known` false where the driver refuses it. */
enum { FAKE_NEWER_LOCATION = 77 };
int fake_location_card(const CUmemLocation *location, bool *known);

/* What was mapped into an array is not mapped any more. */
void fake_unmap_array(uint64_t array);
void fake_forget_arrays(uint64_t context);
void fake_look_at_exports(void);

/* Memory that goes with a context. */
void fake_forget_context(uint64_t id);

/* Pools give back to the card what they may at a synchronisation. */
void fake_pools_trim(void);

#endif
