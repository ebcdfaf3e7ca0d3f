/* Bytes that a tenant or a half-written file may hold: every reader judges them and stays within them. Deterministic,
 * and run under the address sanitizer by `make test-long`. VGPU_ROUNDS says how often (default 300). */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sys/mman.h>

#include "attach.h"
#include "check.h"
#include "grant.h"
#include "pace.h"
#include "process.h"
#include "quantity.h"
#include "reserve.h"
#include "uuid.h"

static unsigned seed = 42;

static long rounds_wanted(void)
{
	const char *text = getenv("VGPU_ROUNDS");

	return text != NULL ? atol(text) : 300;
}

static unsigned below(unsigned bound)
{
	return (unsigned)rand_r(&seed) % bound;
}

static _Atomic uint64_t known;

static uint64_t word(void)
{
	static const uint64_t edges[] = {0, 1, UINT64_MAX, INT64_MAX, REGION_BYTES_MASK, REGION_MAGIC, 1024};

	return below(3) == 0 ? edges[below(sizeof(edges) / sizeof(edges[0]))]
			     : (uint64_t)rand_r(&seed) << 33 ^ (uint64_t)rand_r(&seed);
}

static void any_grant_is_judged(void)
{
	for (long round = rounds_wanted() * 30; round > 0; round--) {
		/* On the heap, and only as long as the file: the sanitizer sees a read beyond it. */
		const size_t length = below(2) ? sizeof(struct grant) : below(sizeof(struct grant) + 1);
		struct grant *grant = calloc(1, length + 1);

		for (size_t i = 0; i + 8 <= length; i += 8 * (1 + below(40)))
			memcpy((char *)grant + i, &(uint64_t){word()}, 8);
		if (length == sizeof(*grant)) {
			grant->magic = GRANT_MAGIC;
			grant->version = GRANT_VERSION;
			grant->size = sizeof(*grant);
			grant->generation &= ~UINT64_C(1);
			grant->checksum = grant_checksum(grant);
			if (grant_judge(grant, length) == GRANT_OK)
				CHECK(grant->device_count > 0 && grant->device_count <= GRANT_DEVICES &&
					strlen(grant->region_path) < GRANT_PATH_BYTES);
		} else {
			CHECK(grant_judge(grant, length) == GRANT_TOO_SHORT);
		}
		free(grant);
	}
}

static void any_stat_line_is_read_or_refused(void)
{
	static const char letters[] = "0123456789 ()-ZRSX\n";

	for (long round = rounds_wanted() * 300; round > 0; round--) {
		const size_t length = below(200);
		char *line = malloc(length + 1);
		struct process_stat stat;

		for (size_t i = 0; i < length; i++)
			line[i] = letters[below(sizeof(letters) - 1)];
		line[length] = '\0';
		if (process_parse_stat(line, &stat))
			(void)process_is_same(&stat, word(), word());
		free(line);
	}
}

static void any_text_is_a_limit_or_refused(void)
{
	for (long round = rounds_wanted() * 300; round > 0; round--) {
		const size_t length = below(24);
		char *text = malloc(length + 1);
		uint32_t percent;
		uint64_t bytes;

		for (size_t i = 0; i < length; i++)
			text[i] = (char)(1 + below(255));
		if (length > 2 && below(2))
			memcpy(text, "16", 2);
		text[length] = '\0';
		if (quantity_memory(text, &bytes))
			CHECK(bytes != 0);
		if (quantity_percent(text, &percent))
			CHECK(percent <= 100);
		(void)quantity_switch(text);
		(void)uuid_from_text(text);
		free(text);
	}
}

/* A region full of a tenant's bytes: everything ends, in bounded time and within the region. */
static void any_region_is_worked_with(void)
{
	const struct process_self self = process_self();

	for (long round = 1 + rounds_wanted() / 10; round > 0; round--) {
		struct region *region;
		uint64_t *words;
		unsigned slot;
		int fd;

		unlink("region");
		region = attach_map("region", REGION_BY_ANYBODY, &fd);
		CHECK(region != NULL);
		words = (uint64_t *)region;
		for (int i = 0; i < 3000; i++)
			words[1 + below(sizeof(*region) / 8 - 1)] = word();
		atomic_store(&region->version, REGION_VERSION);
		atomic_store(&region->slot_high_water, (uint32_t)word());
		/* Not the pids of others: reaping only asks after them, but a kill(0, ..) would ask after ourselves. */
		slot = attach_take_slot(region, &self, "region", fd);
		if (slot != NO_SLOT) {
			if (reserve_take(region, 2, slot, word() & REGION_BYTES_MASK, word(), word()))
				reserve_give(region, 2, slot, word());
			(void)reserve_total(region, 2);
			(void)pace_is_next(region, 2, slot, word());
			(void)pace_pay(&region->devices[2], &known, word(), word(), 1 + below(99));
			pace_owe(&region->devices[2], &known, word(), word(), word(), 1 + below(99));
			(void)pace_join(&region->devices[2], word());
		}
		close(fd);
		munmap(region, sizeof(*region));
	}
}

static void a_short_or_long_file_is_a_region_or_none(void)
{
	for (long round = rounds_wanted() / 3; round > 0; round--) {
		struct region *region;
		int fd = open("region", O_RDWR | O_CREAT | O_TRUNC, 0600);
		uint64_t first = below(2) ? REGION_MAGIC : word();

		CHECK(write(fd, &first, below(9)) >= 0);
		CHECK(ftruncate(fd, (off_t)below(2 * sizeof(struct region))) == 0);
		close(fd);
		region = attach_map("region", REGION_BY_ANYBODY, &fd);
		if (region == NULL)
			continue;
		(void)reserve_total(region, 0);
		close(fd);
		munmap(region, sizeof(*region));
	}
}

int main(int argc, char **argv)
{
	static const struct test tests[] = {
		TEST(any_grant_is_judged),
		TEST(any_stat_line_is_read_or_refused),
		TEST(any_text_is_a_limit_or_refused),
		TEST(any_region_is_worked_with),
		TEST(a_short_or_long_file_is_a_region_or_none),
	};
	return RUN_TESTS(tests, argc, argv);
}
