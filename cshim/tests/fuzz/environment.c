/* libFuzzer: any values in the variables that limit a process. They are read whole, or the process is stopped: never a
 * limit that nobody set, never none where one was. The input is a value a line, for the variables in their order below;
 * "-" leaves one unset. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "limits.h"
#include "log.h"
#include "must.h"
#include "quantity.h"
#include "uuid.h"

static const char *const names[] = {"CUDA_DEVICE_MEMORY_LIMIT_0", "CUDA_DEVICE_MEMORY_LIMIT", "CUDA_DEVICE_SM_LIMIT_0",
	"CUDA_DEVICE_SM_LIMIT", "GPU_CORE_UTILIZATION_POLICY", "CUDA_OVERSUBSCRIBE", "ACTIVE_OOM_KILLER",
	"CUDA_DEVICE_MEMORY_SHARED_CACHE"};

static jmp_buf stopped;

void log_line(enum log_level level, const char *format, ...)
{
	(void)level;
	(void)format;
}

void log_stop(const char *format, ...)
{
	(void)format;
	longjmp(stopped, 1);
}

static bool says_none(const char *text)
{
	return text != NULL && (strcasestr(text, "none") != NULL || strcasestr(text, "unlimited") != NULL);
}

static void read_all(void)
{
	static struct shim shim;

	memset(&shim, 0, sizeof(shim));
	if (setjmp(stopped) == 0 && limits_read(&shim)) {
		for (unsigned i = 0; i < GRANT_DEVICES; i++) {
			MUST(shim.ceilings[i].memory_bytes > 0);
			MUST(shim.ceilings[i].sm_percent >= 1 && shim.ceilings[i].sm_percent <= 100);
		}
		MUST(shim.ceilings[0].memory_bytes != UINT64_MAX || says_none(getenv(names[0])) ||
			says_none(getenv(names[1])) || (getenv(names[0]) == NULL && getenv(names[1]) == NULL));
		MUST(limits_region_path(&shim)[0] != '\0');
	}
	if (shim.grant != NULL && shim.grant != MAP_FAILED)
		munmap(shim.grant, sizeof(*shim.grant));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	char *text = strndup((const char *)data, size), *rest = text;

	(void)uuid_from_text(text);
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		const char *value = strsep(&rest, "\n");

		if (value == NULL || strcmp(value, "-") == 0)
			unsetenv(names[i]);
		else
			MUST(setenv(names[i], value, 1) == 0);
	}
	read_all();
	free(text);
	return 0;
}
