/* Limits as text: what is accepted, and that nothing unclear is. */
#include "check.h"
#include "quantity.h"

static uint64_t memory(const char *text)
{
	uint64_t bytes = 0;

	return quantity_memory(text, &bytes) ? bytes : 0;
}

static void clear_limits_are_read(void)
{
	const uint64_t four_gib = UINT64_C(4) << 30;

	CHECK_EQUAL(memory("4G"), four_gib);
	CHECK_EQUAL(memory("4g"), four_gib);
	CHECK_EQUAL(memory("4096M"), four_gib);
	CHECK_EQUAL(memory("4096m"), four_gib);
	CHECK_EQUAL(memory("4194304"), 4194304);
	CHECK_EQUAL(memory("4Gi"), four_gib);
	CHECK_EQUAL(memory("4GB"), four_gib);
	CHECK_EQUAL(memory("4GiB"), four_gib);
	CHECK_EQUAL(memory("  4G "), four_gib);
	CHECK_EQUAL(memory("4G\n"), four_gib);
	CHECK_EQUAL(memory("12k"), 12288);
}

static void no_limit_is_a_word(void)
{
	CHECK(memory("none") == QUANTITY_UNLIMITED);
	CHECK(memory(" Unlimited ") == QUANTITY_UNLIMITED);
}

static void whatever_is_unclear_is_refused(void)
{
	static const char *const texts[] = {"1.5G", "08G", "010m", "0x10M", "50%", "", " ", "-1", "0", "0m",
		"99999999999G", "99999999999999999999", "G", "4 G", "4GG", "4Gb i", "4T", "+4G", "4e3", "NaN", "none4",
		"nonee", "4G;", "\t"};

	for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
		uint64_t bytes;

		if (quantity_memory(texts[i], &bytes)) {
			fprintf(stderr, "\"%s\" is taken for %llu bytes\n", texts[i], (unsigned long long)bytes);
			_exit(1);
		}
	}
}

static void percents_are_whole_numbers_to_a_hundred(void)
{
	static const char *const refused[] = {"", "101", "-1", "30%", "1.5", "030", "x", "4294967326"};
	uint32_t percent = 7;

	CHECK(quantity_percent(" 30\n", &percent) && percent == 30);
	CHECK(quantity_percent("0", &percent) && percent == 0);
	CHECK(quantity_percent("100", &percent) && percent == 100);
	for (size_t i = 0; i < sizeof(refused) / sizeof(refused[0]); i++)
		CHECK(!quantity_percent(refused[i], &percent));
}

static void switches_are_on_only_when_said(void)
{
	CHECK(quantity_switch("true") && quantity_switch("1") && quantity_switch(" ON "));
	CHECK(!quantity_switch(NULL) && !quantity_switch("") && !quantity_switch("0") && !quantity_switch("11") &&
		!quantity_switch("truely"));
}

static void any_bytes_are_read_or_refused(void)
{
	char text[24];
	unsigned seed = 1;

	for (int round = 0; round < 200000; round++) {
		static const char letters[] = "0123456789kKmMgGiIbB .-+xnoeu\n";
		uint64_t bytes = 0;
		uint32_t percent = 0;

		for (size_t i = 0; i < sizeof(text) - 1; i++)
			text[i] = letters[(unsigned)rand_r(&seed) % (sizeof(letters) - 1)];
		text[(unsigned)rand_r(&seed) % sizeof(text)] = '\0';
		text[sizeof(text) - 1] = '\0';
		if (quantity_memory(text, &bytes))
			CHECK(bytes != 0);
		if (quantity_percent(text, &percent))
			CHECK(percent <= 100);
	}
}

int main(int argc, char **argv)
{
	static const struct test tests[] = {
		TEST(clear_limits_are_read),
		TEST(no_limit_is_a_word),
		TEST(whatever_is_unclear_is_refused),
		TEST(percents_are_whole_numbers_to_a_hundred),
		TEST(switches_are_on_only_when_said),
		TEST(any_bytes_are_read_or_refused),
	};
	return RUN_TESTS(tests, argc, argv);
}
