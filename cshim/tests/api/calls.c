/* The fuzzer's target of tests/fuzz/calls.c with random inputs, where there is no compiler that chooses them. */
#include "../fuzz/calls.c"

enum { INPUTS = 400, LONGEST = 400 };

static void any_order_of_calls_ends_with_nothing_charged(void)
{
	const char *rounds = getenv("VGPU_ROUNDS");
	const int inputs = rounds != NULL ? atoi(rounds) : INPUTS;
	unsigned seed = 4711;

	(void)LLVMFuzzerInitialize(NULL, NULL);
	for (int input = 0; input < inputs; input++) {
		uint8_t data[LONGEST];
		const size_t size = (size_t)rand_r(&seed) % LONGEST;

		for (size_t i = 0; i < size; i++)
			data[i] = (uint8_t)(rand_r(&seed) >> 7);
		(void)LLVMFuzzerTestOneInput(data, size);
	}
}

int main(int argc, char **argv)
{
	static const struct test tests[] = {
		TEST(any_order_of_calls_ends_with_nothing_charged),
	};
	return RUN_TESTS(tests, argc, argv);
}
