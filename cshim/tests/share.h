/* share.h: what share of a card's time a container gets, on the virtual clock, over one second or forty kernels. */
#ifndef TEST_SHARE_H
#define TEST_SHARE_H

#include "clock.h"
#include "rig.h"

enum { HOST_NS = 2000 }; /* what the program itself needs between two launches */

#define SECOND_NS UINT64_C(1000000000)

static inline double share_since(uint64_t started_ns, uint64_t busy_before)
{
	return 100.0 * (double)(fakeBusyNanoseconds(0) - busy_before) / (double)(clock_now() - started_ns);
}

#define CHECK_SHARE(share, wanted, within)                                                                             \
	do {                                                                                                           \
		const double share_ = (share);                                                                         \
		if (share_ < (wanted) - (within) || share_ > (wanted) + (within)) {                                    \
			fprintf(stderr, "%s:%d: a share of %.2f %%, wanted %.1f\n", __FILE__, __LINE__, share_,        \
				(double)(wanted));                                                                     \
			_exit(1);                                                                                      \
		}                                                                                                      \
	} while (0)

static inline uint64_t share_window_ns(uint64_t kernel_ns, unsigned percent)
{
	const uint64_t forty = 40 * kernel_ns * 100 / percent;

	return forty > SECOND_NS ? forty : SECOND_NS;
}

static inline void share_begin(uint32_t percent)
{
	clock_start(1);
	(void)rig_one(GIB, percent);
	rig_context(0);
}

/* Launch for `window` as fast as the limit lets; returns the share, until the last kernel has run. */
static inline double share_run(CUfunction kernel, uint64_t window, bool synchronise)
{
	const uint64_t started = clock_now(), busy = fakeBusyNanoseconds(0);

	while (clock_now() - started < window) {
		CHECK_EQUAL(rig_launch(kernel), CUDA_SUCCESS);
		if (synchronise)
			CHECK_EQUAL(cuStreamSynchronize(NULL), CUDA_SUCCESS);
		clock_sleep(HOST_NS);
	}
	CHECK_EQUAL(cuStreamSynchronize(NULL), CUDA_SUCCESS);
	return share_since(started, busy);
}

#endif
