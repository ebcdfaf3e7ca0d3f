/* uuid.h: a device's identity, as the driver gives it (16 bytes) and as NVML and the grant write it (text). Pure.
 *
 * "GPU-" or "MIG-" and a dashed UUID becomes its 16 bytes. Any other text becomes 16 bytes that are a hash of it, so
 * that devices with made-up names (profiles in a rig) still have one identity everywhere.
 */
#ifndef VGPU_UUID_H
#define VGPU_UUID_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

struct uuid {
	unsigned char bytes[16];
};

static inline int uuid_nibble(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	if ((c | 0x20) >= 'a' && (c | 0x20) <= 'f')
		return (c | 0x20) - 'a' + 10;
	return -1;
}

static inline bool uuid_from_dashed(const char *text, struct uuid *uuid)
{
	for (int i = 0; i < 16; i++) {
		int high, low;

		if (i == 4 || i == 6 || i == 8 || i == 10)
			if (*text++ != '-')
				return false;
		high = uuid_nibble(text[0]);
		low = high < 0 ? -1 : uuid_nibble(text[1]);
		if (low < 0)
			return false;
		uuid->bytes[i] = (unsigned char)(high << 4 | low);
		text += 2;
	}
	return *text == '\0';
}

static inline struct uuid uuid_from_text(const char *text)
{
	struct uuid uuid;
	uint64_t hash = 0xcbf29ce484222325ull;

	if ((strncmp(text, "GPU-", 4) == 0 || strncmp(text, "MIG-", 4) == 0) && uuid_from_dashed(text + 4, &uuid))
		return uuid;
	for (int half = 0; half < 2; half++) {
		for (const char *c = text; *c != '\0'; c++)
			hash = (hash ^ (unsigned char)*c) * 0x100000001b3ull;
		memcpy(uuid.bytes + 8 * half, &hash, sizeof(hash));
	}
	return uuid;
}

static inline bool uuid_equal(const struct uuid *a, const struct uuid *b)
{
	return memcmp(a->bytes, b->bytes, sizeof(a->bytes)) == 0;
}

#endif
