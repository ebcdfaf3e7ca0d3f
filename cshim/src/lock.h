/* lock.h: a lock between the threads of one process, in private memory; held for nanoseconds, never over a call to the
 * driver, and over one to the kernel only where a table grows. One word, zero when free, so a page that fork has wiped
 * holds free locks. */
#ifndef VGPU_LOCK_H
#define VGPU_LOCK_H

#include <sched.h>
#include <stdatomic.h>

typedef _Atomic int spin_lock;

static inline void spin_take(spin_lock *lock)
{
	for (unsigned tries = 0; atomic_exchange_explicit(lock, 1, memory_order_acquire) != 0;)
		while (atomic_load_explicit(lock, memory_order_relaxed) != 0)
			if (++tries % 64 == 0)
				sched_yield();
}

static inline void spin_give(spin_lock *lock)
{
	atomic_store_explicit(lock, 0, memory_order_release);
}

#endif
