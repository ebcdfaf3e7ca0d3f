/* invariants.h: what must hold after every call, looked at in a build with VGPU_CHECKS: what the tables remember, what
 * this process counts as its own, and what the driver holds for it are the same. In other builds nothing is here. */
#ifndef VGPU_INVARIANTS_H
#define VGPU_INVARIANTS_H

#ifdef VGPU_CHECKS

int invariants_enter(void);
void invariants_leave(int *guard);

/* Stands where a function that is hooked begins; looks when it ends. */
#define CHECK_WHEN_DONE() __attribute__((cleanup(invariants_leave), unused)) int invariants_guard_ = invariants_enter()

#else

#define CHECK_WHEN_DONE() ((void)0)

#endif

#endif
