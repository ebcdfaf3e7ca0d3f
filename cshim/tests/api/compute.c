/* The compute limit, on a virtual clock: the share that a container gets, over one second or forty kernels. */
#define _GNU_SOURCE
#include "share.h"

static void the_share_holds_for(const char *kernel, uint64_t kernel_ns)
{
	static const unsigned percents[] = {5, 10, 30, 50, 70};

	for (size_t i = 0; i < sizeof(percents) / sizeof(percents[0]); i++) {
		int status;

		if (fork() == 0) {
			share_begin(percents[i]);
			CHECK_SHARE(share_run(rig_kernel(kernel), share_window_ns(kernel_ns, percents[i]), false),
				percents[i], 3);
			exit(0);
		}
		wait(&status);
		CHECK_EQUAL(status, 0);
		unlink("region");
		unlink("cards.state");
	}
}

static void kernels_of_10_us(void)
{
	the_share_holds_for("k_10us", 10000);
}

static void kernels_of_100_us(void)
{
	the_share_holds_for("k_100us", 100000);
}

static void kernels_of_1_ms(void)
{
	the_share_holds_for("k_1ms", 1000000);
}

static void kernels_of_10_ms(void)
{
	the_share_holds_for("k_10ms", 10000000);
}

static void kernels_of_100_ms(void)
{
	the_share_holds_for("k_100ms", 100000000);
}

static void a_program_that_waits_for_each_kernel_gets_its_share(void)
{
	share_begin(50);
	CHECK_SHARE(share_run(rig_kernel("k_100us"), SECOND_NS, true), 50, 3);
}

static void signals_in_every_pause_change_nothing(void)
{
	clock_interrupts = 1;
	share_begin(30);
	CHECK_SHARE(share_run(rig_kernel("k_1ms"), SECOND_NS, false), 30, 3);
}

static void kernels_of_all_lengths_together(void)
{
	CUfunction kernels[4];
	uint64_t started, busy;

	share_begin(40);
	kernels[0] = rig_kernel("a_10us");
	kernels[1] = rig_kernel("b_5ms");
	kernels[2] = rig_kernel("c_300us");
	kernels[3] = rig_kernel("d_40us");
	started = clock_now();
	busy = fakeBusyNanoseconds(0);
	for (int i = 0; clock_now() - started < 2 * SECOND_NS; i++) {
		CHECK_EQUAL(rig_launch(kernels[i % 4]), CUDA_SUCCESS);
		clock_sleep(HOST_NS);
	}
	CHECK_EQUAL(cuStreamSynchronize(NULL), CUDA_SUCCESS);
	CHECK_SHARE(share_since(started, busy), 40, 3);
}

static void every_way_to_launch_counts(void)
{
	/* A launch in clusters is one of these, with an attribute that changes nothing here. */
	CUlaunchConfig config = {
		.gridDimX = 1, .gridDimY = 1, .gridDimZ = 1, .blockDimX = 1, .blockDimY = 1, .blockDimZ = 1};
	CUDA_KERNEL_NODE_PARAMS_v1 node_params = {0};
	CUDA_LAUNCH_PARAMS list = {0};
	uint64_t started, busy;
	CUfunction kernel;
	CUgraphNode node;
	CUgraphExec exec;
	CUgraph graph;

	share_begin(30);
	kernel = rig_kernel("k_200us");
	list.function = kernel;
	node_params.func = kernel;
	CHECK_EQUAL(cuGraphCreate(&graph, 0), CUDA_SUCCESS);
	for (int i = 0; i < 10; i++)
		CHECK_EQUAL(cuGraphAddKernelNode(&node, graph, NULL, 0, &node_params), CUDA_SUCCESS);
	CHECK_EQUAL(cuGraphInstantiateWithFlags(&exec, graph, 0), CUDA_SUCCESS);
	for (int way = 0; way < 11; way++) {
		started = clock_now();
		busy = fakeBusyNanoseconds(0);
		while (clock_now() - started < SECOND_NS) {
			CUresult result = CUDA_ERROR_UNKNOWN;

			switch (way) {
			case 0:
				result = cuLaunchKernelEx(&config, kernel, NULL, NULL);
				break;
			case 1:
				result = cuLaunchKernelEx_ptsz(&config, kernel, NULL, NULL);
				break;
			case 2:
				result = cuLaunchKernel_ptsz(kernel, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL);
				break;
			case 3:
				result = cuLaunchCooperativeKernel(kernel, 1, 1, 1, 1, 1, 1, 0, NULL, NULL);
				break;
			case 4:
				result = cuLaunchCooperativeKernel_ptsz(kernel, 1, 1, 1, 1, 1, 1, 0, NULL, NULL);
				break;
			case 5:
				result = cuLaunchCooperativeKernelMultiDevice(&list, 1, 0);
				break;
			case 6:
				result = cuLaunch(kernel);
				break;
			case 7:
				result = cuLaunchGrid(kernel, 1, 1);
				break;
			case 8:
				result = cuLaunchGridAsync(kernel, 1, 1, NULL);
				break;
			case 9:
				result = cuGraphLaunch(exec, NULL);
				break;
			case 10:
				result = cuGraphLaunch_ptsz(exec, NULL);
				break;
			}
			CHECK_EQUAL(result, CUDA_SUCCESS);
			clock_sleep(HOST_NS);
		}
		CHECK_EQUAL(cuCtxSynchronize(), CUDA_SUCCESS);
		CHECK_SHARE(share_since(started, busy), 30, 3);
	}
}

static void a_kernel_is_paid_for_where_its_stream_is(void)
{
	struct grant grant = rig_grant(2, GIB, 100);
	uint64_t started, busy;
	CUfunction kernel;
	CUstream second;

	clock_start(1);
	rig_cards(2, 8 * GIB);
	grant.devices[1].sm_percent = 20;
	rig_write(&grant);
	rig_context(1);
	CHECK_EQUAL(cuStreamCreate(&second, 0), CUDA_SUCCESS);
	kernel = rig_kernel("k_200us");
	rig_context(0); /* where nothing limits it */
	started = clock_now();
	busy = fakeBusyNanoseconds(1);
	while (clock_now() - started < SECOND_NS) {
		CHECK_EQUAL(cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, second, NULL, NULL), CUDA_SUCCESS);
		clock_sleep(HOST_NS);
	}
	CHECK_EQUAL(cuStreamSynchronize(second), CUDA_SUCCESS);
	CHECK_SHARE(100.0 * (double)(fakeBusyNanoseconds(1) - busy) / (double)(clock_now() - started), 20, 3);
	CHECK_EQUAL(fakeBusyNanoseconds(0), 0);
}

static void what_is_captured_costs_when_it_runs(void)
{
	const uint64_t second = SECOND_NS;
	uint64_t started, busy;
	CUfunction kernel;
	CUstream stream;
	CUgraphExec exec;
	CUgraph graph;

	share_begin(10);
	kernel = rig_kernel("k_1ms");
	CHECK_EQUAL(cuStreamCreate(&stream, 0), CUDA_SUCCESS);
	CHECK_EQUAL(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
	started = clock_now();
	for (int i = 0; i < 50; i++)
		CHECK_EQUAL(cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL), CUDA_SUCCESS);
	CHECK_EQUAL(clock_now(), started); /* nothing was waited for */
	CHECK_EQUAL(cuStreamEndCapture(stream, &graph), CUDA_SUCCESS);
	CHECK_EQUAL(
		cuStreamBeginRecaptureToGraph(stream, CU_STREAM_CAPTURE_MODE_GLOBAL, graph, NULL, NULL), CUDA_SUCCESS);
	CHECK_EQUAL(cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL), CUDA_SUCCESS);
	CHECK_EQUAL(cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL), CUDA_SUCCESS);
	CHECK_EQUAL(clock_now(), started);
	CHECK_EQUAL(cuStreamEndCapture(stream, &graph), CUDA_SUCCESS);
	CHECK_EQUAL(cuGraphInstantiateWithFlags(&exec, graph, 0), CUDA_SUCCESS);
	busy = fakeBusyNanoseconds(0);
	while (clock_now() - started < 10 * second) {
		CHECK_EQUAL(cuGraphLaunch(exec, stream), CUDA_SUCCESS);
		clock_sleep(HOST_NS);
	}
	CHECK_EQUAL(cuStreamSynchronize(stream), CUDA_SUCCESS);
	CHECK_SHARE(share_since(started, busy), 10, 3);
}

static void a_share_changes_while_it_runs(void)
{
	struct grant grant;
	CUfunction kernel;

	clock_start(1);
	grant = rig_one(GIB, 20);
	rig_context(0);
	kernel = rig_kernel("k_100us");
	CHECK_SHARE(share_run(kernel, SECOND_NS, false), 20, 3);
	grant.devices[0].sm_percent = 60;
	rig_write(&grant);
	CHECK_SHARE(share_run(kernel, SECOND_NS, false), 60, 3);
	grant.devices[0].sm_percent = 10;
	rig_write(&grant);
	CHECK_SHARE(share_run(kernel, SECOND_NS, false), 10, 3);
}

static void the_environment_can_only_lower_a_share(void)
{
	struct grant grant;
	CUfunction kernel;

	clock_start(1);
	grant = rig_one(GIB, 50);
	setenv("CUDA_DEVICE_SM_LIMIT", "20", 1);
	rig_context(0);
	kernel = rig_kernel("k_100us");
	CHECK_SHARE(share_run(kernel, SECOND_NS, false), 20, 3);
	grant.devices[0].sm_percent = 10;
	rig_write(&grant);
	CHECK_SHARE(share_run(kernel, SECOND_NS, false), 10, 3);
}

static void the_agents_own_share_in_the_environment_does_not_hold_a_change_back(void)
{
	struct grant grant;
	CUfunction kernel;

	clock_start(1);
	grant = rig_one(GIB, 50);
	setenv("CUDA_DEVICE_SM_LIMIT", "50", 1);
	rig_context(0);
	kernel = rig_kernel("k_100us");
	grant.devices[0].sm_percent = 70;
	rig_write(&grant);
	CHECK_SHARE(share_run(kernel, SECOND_NS, false), 70, 3);
}

static double share_under(uint32_t policy, uint32_t core_switch, const char *environment)
{
	struct grant grant = rig_grant(1, GIB, 20);

	clock_start(1);
	rig_cards(1, 8 * GIB);
	grant.core_policy = policy;
	grant.core_switch = core_switch;
	rig_write(&grant);
	if (environment != NULL)
		setenv("GPU_CORE_UTILIZATION_POLICY", environment, 1);
	rig_context(0);
	return share_run(rig_kernel("k_100us"), SECOND_NS / 4, true);
}

static void the_policy_decides_when_the_limit_holds(void)
{
	static const struct {
		uint32_t policy, core_switch;
		const char *environment;
		int limited;
	} cases[] = {
		{GRANT_CORE_DEFAULT, 1, NULL, 1},
		{GRANT_CORE_DEFAULT, 0, NULL, 0},
		{GRANT_CORE_FORCE, 0, NULL, 1},
		{GRANT_CORE_DISABLE, 1, NULL, 0},
		{GRANT_CORE_DEFAULT, 0, "force", 1},
		{GRANT_CORE_FORCE, 0, "disable", 1}, /* beside a grant the environment only tightens */
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		int status;

		if (fork() == 0) {
			const double share = share_under(cases[i].policy, cases[i].core_switch, cases[i].environment);

			CHECK(cases[i].limited ? share < 24 : share > 90);
			exit(0);
		}
		wait(&status);
		CHECK_EQUAL(status, 0);
		unlink("region");
		unlink("cards.state");
	}
}

static void a_blocked_container_waits_out_its_lease(void)
{
	struct grant grant;
	CUfunction kernel;
	uint64_t started;

	clock_start(1);
	grant = rig_one(GIB, 100); /* no compute limit: priority holds all the same */
	rig_context(0);
	kernel = rig_kernel("k_10us");
	started = clock_now();
	CHECK_EQUAL(rig_launch(kernel), CUDA_SUCCESS);
	CHECK_EQUAL(clock_now(), started);
	grant.blocked_until_ns = started + 70 * 1000000;
	rig_write(&grant);
	CHECK_EQUAL(rig_launch(kernel), CUDA_SUCCESS);
	CHECK_EQUAL(clock_now(), grant.blocked_until_ns);
	CHECK_EQUAL(rig_launch(kernel), CUDA_SUCCESS); /* a lease that nobody renews is over */
}

static void launches_are_seen_whatever_the_limit(void)
{
	CUfunction kernel;

	share_begin(100);
	kernel = rig_kernel("k_10us");
	for (int i = 0; i < 5; i++)
		CHECK_EQUAL(rig_launch(kernel), CUDA_SUCCESS);
	CHECK_EQUAL(atomic_load(&rig_region()->slots[0].use[0].launches), 5);
}

static void debt_beyond_reason_is_forgotten(void)
{
	uint64_t started;
	CUfunction kernel;

	share_begin(50);
	kernel = rig_kernel("k_100us");
	CHECK_EQUAL(rig_launch(kernel), CUDA_SUCCESS);
	atomic_store(&rig_region()->devices[0].paid_until_ns, UINT64_MAX - 5); /* a tenant wrote into it */
	started = clock_now();
	for (int i = 0; i < 100; i++)
		CHECK_EQUAL(rig_launch(kernel), CUDA_SUCCESS);
	CHECK(clock_now() - started < SECOND_NS);
}

int main(int argc, char **argv)
{
	static const struct test tests[] = {
		TEST(kernels_of_10_us),
		TEST(kernels_of_100_us),
		TEST(kernels_of_1_ms),
		TEST(kernels_of_10_ms),
		TEST(kernels_of_100_ms),
		TEST(a_program_that_waits_for_each_kernel_gets_its_share),
		TEST(signals_in_every_pause_change_nothing),
		TEST(kernels_of_all_lengths_together),
		TEST(every_way_to_launch_counts),
		TEST(a_kernel_is_paid_for_where_its_stream_is),
		TEST(what_is_captured_costs_when_it_runs),
		TEST(a_share_changes_while_it_runs),
		TEST(the_environment_can_only_lower_a_share),
		TEST(the_agents_own_share_in_the_environment_does_not_hold_a_change_back),
		TEST(the_policy_decides_when_the_limit_holds),
		TEST(a_blocked_container_waits_out_its_lease),
		TEST(launches_are_seen_whatever_the_limit),
		TEST(debt_beyond_reason_is_forgotten),
	};
	return RUN_TESTS(tests, argc, argv);
}
