/* layout: print the layout of the grant file and of the region as JSON, from the headers that define them. */
#include <stdio.h>

#include "grant.h"
#include "region.h"

static const char *separator = "";

static void number(const char *name, unsigned long long value)
{
	printf("%s\n    \"%s\": %llu", separator, name, value);
	separator = ",";
}

static void begin(const char *name, size_t size)
{
	printf(",\n  \"%s\": {\n    \"size\": %zu,\n    \"fields\": {", name, size);
	separator = "";
}

static void end(void)
{
	printf("\n    }\n  }");
}

static void field(const char *name, size_t offset, size_t size, size_t count, char kind)
{
	printf("%s\n      \"%s\": {\"offset\": %zu, \"size\": %zu, \"count\": %zu, \"kind\": \"%s\"}", separator, name,
		offset, size, count,
		kind == 'u'   ? "uint"
		: kind == 't' ? "text"
			      : "struct");
	separator = ",";
}

#define ONE(type, member)  field(#member, offsetof(struct type, member), sizeof(((struct type *)0)->member), 1, 'u')
#define TEXT(type, member) field(#member, offsetof(struct type, member), sizeof(((struct type *)0)->member), 1, 't')
#define ARRAY(type, member, kind)                                                                                      \
	field(#member, offsetof(struct type, member), sizeof(((struct type *)0)->member[0]),                           \
		sizeof(((struct type *)0)->member) / sizeof(((struct type *)0)->member[0]), kind)

static void constants(void)
{
	printf("{\n  \"constants\": {");
	number("GRANT_MAGIC", GRANT_MAGIC);
	number("GRANT_VERSION", GRANT_VERSION);
	number("GRANT_DEVICES", GRANT_DEVICES);
	number("GRANT_MEMORY_CEILING", GRANT_MEMORY_CEILING);
	number("GRANT_CHECKED_OFFSET", GRANT_CHECKED_OFFSET);
	number("GRANT_LIVE_OFFSET", GRANT_LIVE_OFFSET);
	number("GRANT_OVERSUBSCRIBE", GRANT_OVERSUBSCRIBE);
	number("GRANT_REGION_MADE", GRANT_REGION_MADE);
	number("GRANT_FREE_IS_PHYSICAL", GRANT_FREE_IS_PHYSICAL);
	number("GRANT_OOM_KILLER", GRANT_OOM_KILLER);
	number("GRANT_DEVICE_WHOLE", GRANT_DEVICE_WHOLE);
	number("GRANT_DEVICE_MEMORY_UNLIMITED", GRANT_DEVICE_MEMORY_UNLIMITED);
	number("GRANT_CORE_DEFAULT", GRANT_CORE_DEFAULT);
	number("GRANT_CORE_FORCE", GRANT_CORE_FORCE);
	number("GRANT_CORE_DISABLE", GRANT_CORE_DISABLE);
	number("REGION_MAGIC", REGION_MAGIC);
	number("REGION_VERSION", REGION_VERSION);
	number("REGION_DEVICES", REGION_DEVICES);
	number("REGION_SLOTS", REGION_SLOTS);
	number("REGION_BYTES_BITS", REGION_BYTES_BITS);
	number("REGION_BYTES_MASK", REGION_BYTES_MASK);
	number("REGION_SPARE_MASK", REGION_SPARE_MASK);
	number("REGION_PID_BITS", REGION_PID_BITS);
	number("REGION_PID_MASK", REGION_PID_MASK);
	printf("\n  }");
}

static void grant(void)
{
	begin("grant", sizeof(struct grant));
	ONE(grant, magic);
	ONE(grant, version);
	ONE(grant, checksum);
	ONE(grant, size);
	ONE(grant, device_count);
	ONE(grant, flags);
	ONE(grant, core_policy);
	ONE(grant, priority);
	TEXT(grant, pod_uid);
	TEXT(grant, container);
	TEXT(grant, region_path);
	ARRAY(grant, devices, 's');
	ONE(grant, generation);
	ONE(grant, blocked_until_ns);
	ONE(grant, core_switch);
	ONE(grant, shared_until_ns);
	ARRAY(grant, charge_permille, 'u');
	ARRAY(grant, overhead_bytes, 'u');
	end();
	begin("grant_device", sizeof(struct grant_device));
	TEXT(grant_device, uuid);
	ONE(grant_device, memory_limit_bytes);
	ONE(grant_device, started_with_bytes);
	ONE(grant_device, context_bytes);
	ONE(grant_device, sm_percent);
	ONE(grant_device, flags);
	ONE(grant_device, started_with_percent);
	end();
}

static void region(void)
{
	begin("region", sizeof(struct region));
	ONE(region, identity);
	ONE(region, version);
	ONE(region, size);
	ONE(region, slot_high_water);
	ONE(region, device_count);
	ONE(region, priority);
	ARRAY(region, devices, 's');
	ARRAY(region, slots, 's');
	end();
	begin("region_device", sizeof(struct region_device));
	TEXT(region_device, uuid);
	ONE(region_device, turn);
	ONE(region_device, limit_bytes);
	ONE(region_device, refused);
	ONE(region_device, sm_percent);
	ONE(region_device, paid_until_ns);
	ONE(region_device, virtual_ns);
	end();
	begin("region_slot", sizeof(struct region_slot));
	ONE(region_slot, owner);
	ONE(region_slot, image);
	ONE(region_slot, namespace);
	ONE(region_slot, attached_ns);
	ONE(region_slot, passed);
	ONE(region_slot, unknown);
	ONE(region_slot, contexts);
	ARRAY(region_slot, external_bytes, 'u');
	ARRAY(region_slot, use, 's');
	end();
	begin("region_use", sizeof(struct region_use));
	ONE(region_use, used);
	ONE(region_use, spare);
	ONE(region_use, next);
	ONE(region_use, claim);
	ONE(region_use, context_bytes);
	ONE(region_use, launches);
	ONE(region_use, busy_ns);
	ONE(region_use, waiting);
	end();
}

int main(void)
{
	constants();
	grant();
	region();
	printf("\n}\n");
	return 0;
}
