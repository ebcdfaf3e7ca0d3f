/* hooks.h: the driver's own functions, by name, and the tables made from the manifests.
 *
 * `driver` and `nvml` are filled the first time that the libraries are found in the process and are read-only from then
 * on. This library never loads the driver: where there is none, nothing is filled and nothing is hooked.
 */
#ifndef VGPU_HOOKS_H
#define VGPU_HOOKS_H

#include <stdatomic.h>
#include <stdbool.h>

#include "invariants.h"

#pragma GCC visibility push(default)
#include "cuda_abi.h"
#include "nvml_abi.h"
#pragma GCC visibility pop

struct driver {
#define HOOK(symbol, base, version, stream) __typeof__(symbol) *symbol;
#define CALL(symbol)                        __typeof__(symbol) *symbol;
#include "hooks.def"
#undef HOOK
#undef CALL
};

struct nvml {
#define HOOK(symbol) __typeof__(symbol) *symbol;
#define CALL(symbol) __typeof__(symbol) *symbol;
#include "nvml_hooks.def"
#undef HOOK
#undef CALL
};

extern struct driver driver;
extern struct nvml nvml;

/* Fill `driver` from the libcuda.so.1 in this process; false when there is none yet. */
bool hooks_find_driver(void);

extern _Atomic int hooks_driver_found;

static inline bool hooks_load_driver(void)
{
	return __builtin_expect(atomic_load_explicit(&hooks_driver_found, memory_order_acquire), 1) ||
	       hooks_find_driver();
}

/* Fill `nvml` likewise. With `may_open`, a library that nobody has loaded yet is loaded. */
bool hooks_load_nvml(bool may_open);

/* What a look-up by `name` that found `address` should return: our function where `address` is the driver's own of that
 * name, else `address`. */
void *hooks_for_symbol(const char *name, void *address);

/* The same for cuGetProcAddress, which asks by base name and picks a version. */
void *hooks_for_base(const char *base, void *address);

/* glibc's own dlsym, whatever this library exports. */
void *real_dlsym(void *handle, const char *name);

/* How many look-ups of driver functions passed that this library does not know. */
extern _Atomic unsigned long hooks_passed;

/* How many of them were of functions that this library holds, in a form or from a library that it does not know: these
 * are not held. */
extern _Atomic unsigned long hooks_unknown;

/* Above zero while this thread is in a call of the driver that is charged: what the driver itself calls in between is
 * not charged again. A program may leave such a call by a longjmp: a call that does not come from the driver ends it.
 */
extern __thread int charge_nested __attribute__((tls_model("initial-exec")));
void charge_called_from(const void *caller);

#define NOTE_CALLER()                                                                                                  \
	do {                                                                                                           \
		if (__builtin_expect(charge_nested != 0, 0))                                                           \
			charge_called_from(__builtin_return_address(0));                                               \
	} while (0)

/* For a wrapper whose real function this driver does not have: reached only by a program linked against a newer one. */
#define REAL_OR(function, error)                                                                                       \
	CHECK_WHEN_DONE();                                                                                             \
	do {                                                                                                           \
		NOTE_CALLER();                                                                                         \
		if (!hooks_load_driver())                                                                              \
			return CUDA_ERROR_NOT_INITIALIZED;                                                             \
		if (driver.function == NULL)                                                                           \
			return (error);                                                                                \
	} while (0)

#define REAL(function) REAL_OR(function, CUDA_ERROR_NOT_SUPPORTED)

#endif
