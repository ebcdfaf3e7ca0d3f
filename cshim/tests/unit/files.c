/* The grant's format, the stat line, and identities. */
#include "check.h"
#include "grant.h"
#include "process.h"
#include "uuid.h"

static struct grant valid_grant(void)
{
	struct grant grant = {.magic = GRANT_MAGIC, .version = GRANT_VERSION, .size = sizeof(grant), .device_count = 2};

	for (int i = 0; i < 2; i++) {
		snprintf(grant.devices[i].uuid, sizeof(grant.devices[i].uuid), "GPU-%d", i);
		grant.devices[i].memory_limit_bytes = UINT64_C(1) << 30;
		grant.devices[i].sm_percent = 30;
	}
	grant.checksum = grant_checksum(&grant);
	return grant;
}

static enum grant_fault judge_with_checksum(struct grant *grant)
{
	grant->checksum = grant_checksum(grant);
	return grant_judge(grant, sizeof(*grant));
}

static void the_checksum_is_the_one_of_zlib(void)
{
	CHECK_EQUAL(grant_crc32("123456789", 9), 0xcbf43926);
}

static void a_valid_grant_is_accepted(void)
{
	struct grant grant = valid_grant();

	CHECK_EQUAL(grant_judge(&grant, sizeof(grant)), GRANT_OK);
}

static void a_short_foreign_or_half_written_file_is_told_apart(void)
{
	struct grant grant = valid_grant();

	CHECK_EQUAL(grant_judge(&grant, sizeof(grant) - 1), GRANT_TOO_SHORT);
	grant.generation = 3;
	CHECK_EQUAL(grant_judge(&grant, sizeof(grant)), GRANT_BEING_WRITTEN);
	grant.version = 2;
	CHECK_EQUAL(grant_judge(&grant, sizeof(grant)), GRANT_OTHER_VERSION);
	grant.magic = 0;
	CHECK_EQUAL(grant_judge(&grant, sizeof(grant)), GRANT_NOT_A_GRANT);
}

static void any_flipped_bit_of_what_was_granted_is_noticed(void)
{
	for (size_t byte = 0; byte < GRANT_LIVE_OFFSET; byte++) {
		struct grant grant = valid_grant();

		((unsigned char *)&grant)[byte] ^= 1u << (byte % 8);
		CHECK(grant_judge(&grant, sizeof(grant)) != GRANT_OK);
	}
}

static void a_limit_of_nothing_must_be_said_in_words(void)
{
	struct grant grant = valid_grant();

	grant.devices[0].memory_limit_bytes = 0;
	CHECK_EQUAL(judge_with_checksum(&grant), GRANT_BAD_FIELD);
	grant.devices[0].flags = GRANT_DEVICE_MEMORY_UNLIMITED;
	CHECK_EQUAL(judge_with_checksum(&grant), GRANT_OK);
	grant.devices[0].memory_limit_bytes = 1;
	CHECK_EQUAL(judge_with_checksum(&grant), GRANT_BAD_FIELD);
}

static void fields_out_of_range_are_refused(void)
{
	struct grant grant = valid_grant();

	grant.device_count = GRANT_DEVICES + 1;
	CHECK_EQUAL(judge_with_checksum(&grant), GRANT_BAD_FIELD);
	grant = valid_grant();
	grant.devices[1].sm_percent = 101;
	CHECK_EQUAL(judge_with_checksum(&grant), GRANT_BAD_FIELD);
	grant = valid_grant();
	grant.devices[1].memory_limit_bytes = GRANT_MEMORY_CEILING + 1;
	CHECK_EQUAL(judge_with_checksum(&grant), GRANT_BAD_FIELD);
	grant = valid_grant();
	memset(grant.devices[1].uuid, 'x', sizeof(grant.devices[1].uuid));
	CHECK_EQUAL(judge_with_checksum(&grant), GRANT_BAD_FIELD);
	grant = valid_grant();
	memset(grant.region_path, '/', sizeof(grant.region_path));
	CHECK_EQUAL(judge_with_checksum(&grant), GRANT_BAD_FIELD);
}

#define REST " 1 2 3 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 %d 0 %llu 9 10 11 12 13 140000 14"

static bool parse(struct process_stat *stat, const char *head, int threads, unsigned long long start)
{
	char line[512], format[512];

	snprintf(format, sizeof(format), "%s%s", head, REST);
	snprintf(line, sizeof(line), format, threads, start);
	return process_parse_stat(line, stat);
}

static void a_name_with_brackets_and_blanks_does_not_move_the_fields(void)
{
	struct process_stat stat;

	CHECK(parse(&stat, "7 (a Zb) R", 1, 55));
	CHECK_EQUAL(stat.state, 'R');
	CHECK_EQUAL(stat.start_ticks, 55);
	CHECK(parse(&stat, "7 (x) Z (y)) S", 3, 56));
	CHECK_EQUAL(stat.state, 'S');
	CHECK_EQUAL(stat.threads, 3);
	CHECK_EQUAL(stat.start_ticks, 56);
	CHECK_EQUAL(stat.image, 140000);
}

static void a_line_cut_short_is_refused(void)
{
	struct process_stat stat;
	char line[] = "7 (a) R 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28";

	CHECK(process_parse_stat(line, &stat));
	for (size_t length = 0; length + 12 < sizeof(line); length++) {
		char cut[sizeof(line)] = "";

		memcpy(cut, line, length);
		CHECK(!process_parse_stat(cut, &stat));
	}
}

static void a_reused_pid_is_another_process(void)
{
	struct process_stat stat = {.state = 'R', .threads = 1, .start_ticks = 100, .image = 5};
	const uint64_t owner = process_owner_word(7, 100);

	CHECK(process_is_same(&stat, owner, 5));
	CHECK(process_is_same(&stat, owner, 0));
	stat.start_ticks = 101;
	CHECK(!process_is_same(&stat, owner, 5));
}

static void another_image_after_exec_is_another_process(void)
{
	const struct process_stat stat = {.state = 'R', .threads = 1, .start_ticks = 100, .image = 5};

	CHECK(!process_is_same(&stat, process_owner_word(7, 100), 6));
}

static void a_zombie_is_dead_unless_its_threads_go_on(void)
{
	struct process_stat stat = {.state = 'Z', .threads = 1, .start_ticks = 100};
	const uint64_t owner = process_owner_word(7, 100);

	CHECK(!process_is_same(&stat, owner, 0));
	stat.threads = 2;
	CHECK(process_is_same(&stat, owner, 0));
}

static void this_process_is_alive_and_its_past_image_is_not(void)
{
	const struct process_self self = process_self();

	CHECK(self.owner >> REGION_PID_BITS != 0 && self.image != 0);
	CHECK(!process_is_gone(self.owner, self.image));
	CHECK(process_is_gone(self.owner, self.image + 16));
	CHECK(process_is_gone(self.owner + (UINT64_C(1) << REGION_PID_BITS), self.image));
}

static void a_uuid_is_the_same_from_text_and_any_text_has_one(void)
{
	struct uuid upper = uuid_from_text("GPU-0A0B0C0D-0000-4000-8000-0000000000FF");
	struct uuid lower = uuid_from_text("GPU-0a0b0c0d-0000-4000-8000-0000000000ff");
	struct uuid name = uuid_from_text("GPU-node-1"), other = uuid_from_text("GPU-node-2");

	CHECK(uuid_equal(&upper, &lower) && upper.bytes[0] == 0x0a && upper.bytes[15] == 0xff);
	CHECK(!uuid_equal(&name, &other));
}

int main(int argc, char **argv)
{
	static const struct test tests[] = {
		TEST(the_checksum_is_the_one_of_zlib),
		TEST(a_valid_grant_is_accepted),
		TEST(a_short_foreign_or_half_written_file_is_told_apart),
		TEST(any_flipped_bit_of_what_was_granted_is_noticed),
		TEST(a_limit_of_nothing_must_be_said_in_words),
		TEST(fields_out_of_range_are_refused),
		TEST(a_name_with_brackets_and_blanks_does_not_move_the_fields),
		TEST(a_line_cut_short_is_refused),
		TEST(a_reused_pid_is_another_process),
		TEST(another_image_after_exec_is_another_process),
		TEST(a_zombie_is_dead_unless_its_threads_go_on),
		TEST(this_process_is_alive_and_its_past_image_is_not),
		TEST(a_uuid_is_the_same_from_text_and_any_text_has_one),
	};
	return RUN_TESTS(tests, argc, argv);
}
