/* vgpu-inspect: a grant or a region, as JSON, for people and for tests of the other side. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "grant.h"
#include "process.h"
#include "region.h"
#include "reserve.h"

static const char usage[] =
	"Usage: vgpu-inspect FILE\n"
	"Print a grant file or a region as JSON; which of the two, FILE's first bytes say.\n"
	"\n"
	"Exit status: 0; 1 when the file cannot be read or is neither; 2 when it is a grant that a process under the\n"
	"shim would refuse, with the reason in \"fault\".\n";

/* A tenant's bytes go to a terminal or to a parser: nothing but plain characters. */
static void print_text(const char *name, const char *text, size_t room)
{
	printf("\"%s\": \"", name);
	for (size_t i = 0; i < room && text[i] != '\0'; i++)
		putchar(text[i] < ' ' || text[i] > '~' || text[i] == '"' || text[i] == '\\' ? '?' : text[i]);
	printf("\"");
}

static int print_grant(const struct grant *grant, size_t length)
{
	const enum grant_fault fault = grant_judge(grant, length);
	const uint32_t count = grant->device_count < GRANT_DEVICES ? grant->device_count : GRANT_DEVICES;

	printf("{\"kind\": \"grant\", \"valid\": %s, \"fault\": \"%s\", ", fault == GRANT_OK ? "true" : "false",
		fault == GRANT_OK ? "" : grant_fault_text(fault));
	print_text("pod_uid", grant->pod_uid, sizeof(grant->pod_uid));
	printf(", ");
	print_text("container", grant->container, sizeof(grant->container));
	printf(", ");
	print_text("region_path", grant->region_path, sizeof(grant->region_path));
	printf(", \"flags\": %u, \"core_policy\": %u, \"core_switch\": %u, \"priority\": %u, \"generation\": %llu, \"devices\": [",
		grant->flags, grant->core_policy, grant->core_switch, grant->priority,
		(unsigned long long)grant->generation);
	for (uint32_t i = 0; i < count; i++) {
		const struct grant_device *device = &grant->devices[i];

		printf("%s{", i > 0 ? ", " : "");
		print_text("uuid", device->uuid, sizeof(device->uuid));
		printf(", \"memory_limit_bytes\": %llu, \"sm_percent\": %u, \"flags\": %u}",
			(unsigned long long)device->memory_limit_bytes, device->sm_percent, device->flags);
	}
	printf("]}\n");
	return fault == GRANT_OK ? 0 : 2;
}

static void print_uses(const struct region *region, const struct region_slot *slot)
{
	const uint32_t count = region->device_count < REGION_DEVICES ? region->device_count : REGION_DEVICES;

	for (uint32_t i = 0; i < count; i++)
		printf("%s{\"used_bytes\": %llu, \"launches\": %llu, \"busy_ns\": %llu}", i > 0 ? ", " : "",
			(unsigned long long)reserve_held(&slot->use[i]), (unsigned long long)slot->use[i].launches,
			(unsigned long long)slot->use[i].busy_ns);
}

static int print_region(const struct region *region)
{
	const char *separator = "";

	printf("{\"kind\": \"region\", \"processes\": [");
	for (uint32_t i = 0; i < REGION_SLOTS; i++) {
		const struct region_slot *slot = &region->slots[i];

		if (slot->owner == 0)
			continue;
		printf("%s{\"slot\": %u, \"pid\": %u, \"devices\": [", separator, i, process_owner_pid(slot->owner));
		print_uses(region, slot);
		printf("]}");
		separator = ", ";
	}
	printf("]}\n");
	return 0;
}

int main(int argc, char **argv)
{
	union {
		struct grant grant;
		struct region region;
	} *file = calloc(1, sizeof(*file));
	ssize_t length;
	int fd;

	if (argc != 2 || argv[1][0] == '-' || file == NULL) {
		const bool asked = argc == 2 && strcmp(argv[1], "--help") == 0;

		fputs(usage, asked ? stdout : stderr);
		return asked ? 0 : 1;
	}
	fd = open(argv[1], O_RDONLY | O_CLOEXEC);
	length = fd < 0 ? -1 : read(fd, file, sizeof(*file));
	if (length < 0) {
		perror(argv[1]);
		return 1;
	}
	if (file->grant.magic == GRANT_MAGIC)
		return print_grant(&file->grant, (size_t)length);
	if (file->region.identity == REGION_MAGIC && (size_t)length == sizeof(file->region))
		return print_region(&file->region);
	fprintf(stderr, "%s: neither a grant nor a region\n", argv[1]);
	return 1;
}
