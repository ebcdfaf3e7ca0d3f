/* quota.h: arithmetic on bytes that cannot overflow. Pure. */
#ifndef VGPU_QUOTA_H
#define VGPU_QUOTA_H

#include <stdbool.h>
#include <stdint.h>

/* Whether `ask_bytes` more stay within `limit_bytes`. */
static inline bool quota_admits(uint64_t used_bytes, uint64_t ask_bytes, uint64_t limit_bytes)
{
	return used_bytes <= limit_bytes && ask_bytes <= limit_bytes - used_bytes;
}

static inline uint64_t quota_left(uint64_t used_bytes, uint64_t limit_bytes)
{
	return used_bytes < limit_bytes ? limit_bytes - used_bytes : 0;
}

static inline uint64_t quota_add(uint64_t a, uint64_t b)
{
	return a > UINT64_MAX - b ? UINT64_MAX : a + b;
}

static inline uint64_t quota_multiply(uint64_t a, uint64_t b)
{
	return a != 0 && b > UINT64_MAX / a ? UINT64_MAX : a * b;
}

/* `bytes` up to the next multiple of `unit`, a power of two; what would not fit a word stays the largest. */
static inline uint64_t quota_round_up(uint64_t bytes, uint64_t unit)
{
	return quota_add(bytes, unit - 1) == UINT64_MAX ? UINT64_MAX : (bytes + unit - 1) & ~(unit - 1);
}

#endif
