/* libFuzzer: any bytes as a grant file. Judged within their length, and what is accepted keeps what users of a grant
 * rely on. */
#include <stdlib.h>
#include <string.h>

#include "grant.h"
#include "must.h"

static void judge(const uint8_t *data, size_t size, bool sealed)
{
	const size_t room = size > sizeof(struct grant) ? size : sizeof(struct grant);
	/* As long as the file and no longer, so that the sanitizer sees a read beyond it. */
	struct grant *grant = malloc(size < sizeof(*grant) ? size + 1 : room);

	memcpy(grant, data, size);
	if (sealed && size >= sizeof(*grant)) {
		grant->magic = GRANT_MAGIC;
		grant->version = GRANT_VERSION;
		grant->size = sizeof(*grant);
		grant->generation &= ~UINT64_C(1);
		grant->checksum = grant_checksum(grant);
	}
	if (grant_judge(grant, size) == GRANT_OK) {
		MUST(size >= sizeof(*grant));
		MUST(grant->device_count > 0 && grant->device_count <= GRANT_DEVICES);
		MUST(memchr(grant->region_path, 0, sizeof(grant->region_path)) != NULL);
		for (uint32_t i = 0; i < grant->device_count; i++) {
			const struct grant_device *device = &grant->devices[i];

			MUST(memchr(device->uuid, 0, sizeof(device->uuid)) != NULL && device->uuid[0] != '\0');
			MUST(device->sm_percent <= 100 && device->memory_limit_bytes <= GRANT_MEMORY_CEILING);
			MUST(device->memory_limit_bytes != 0 ||
				(device->flags & (GRANT_DEVICE_WHOLE | GRANT_DEVICE_MEMORY_UNLIMITED)) != 0);
		}
	}
	free(grant);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	judge(data, size, false);
	judge(data, size, true);
	return 0;
}
