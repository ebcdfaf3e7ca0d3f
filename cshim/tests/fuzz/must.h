/* must.h: a fuzzer's target ends where something does not hold. */
#ifndef FUZZ_MUST_H
#define FUZZ_MUST_H

#include <stddef.h>
#include <stdint.h>

#define MUST(condition)                                                                                                \
	do {                                                                                                           \
		if (!(condition))                                                                                      \
			__builtin_trap();                                                                              \
	} while (0)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#endif
