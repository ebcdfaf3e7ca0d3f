/* Calls of the driver in any order, chosen by what covers new code: under the library that looks at its invariants
 * after every call, on the fake driver. When all was freed again nothing may be charged. Three bytes are a call: which,
 * on which of sixteen things, and a size. */
#define _GNU_SOURCE
#include "rig.h"

enum { THINGS = 16, CALLS = 17 };

enum kind { NONE, POINTER, ARRAY, BLOCK, MAPPED, POOL, GRAPH };

struct thing {
	enum kind kind;
	CUdeviceptr pointer;
	CUarray array;
	CUmemGenericAllocationHandle handle;
	CUmemoryPool pool;
	CUgraphExec exec;
	uint64_t bytes;
};

static struct thing things[THINGS];

static void set(struct thing *thing, CUresult result, enum kind kind)
{
	if (result == CUDA_SUCCESS)
		thing->kind = kind;
}

static void start_graph(struct thing *thing)
{
	CUDA_MEM_ALLOC_NODE_PARAMS params = {
		.bytesize = thing->bytes, .poolProps.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
	CUgraphNode node;
	CUgraph graph;

	CHECK_EQUAL(cuGraphCreate(&graph, 0), CUDA_SUCCESS);
	CHECK_EQUAL(cuGraphAddMemAllocNode(&node, graph, NULL, 0, &params), CUDA_SUCCESS);
	thing->pointer = params.dptr;
	set(thing, cuGraphInstantiateWithFlags(&thing->exec, graph, 0), GRAPH);
	CHECK_EQUAL(cuGraphDestroy(graph), CUDA_SUCCESS);
}

static void end(struct thing *thing)
{
	switch (thing->kind) {
	case POINTER:
		CHECK_EQUAL(cuMemFree_v2(thing->pointer), CUDA_SUCCESS);
		break;
	case ARRAY:
		CHECK_EQUAL(cuArrayDestroy(thing->array), CUDA_SUCCESS);
		break;
	case BLOCK:
		CHECK_EQUAL(cuMemRelease(thing->handle), CUDA_SUCCESS);
		break;
	case MAPPED:
		CHECK_EQUAL(cuMemUnmap(thing->pointer, thing->bytes), CUDA_SUCCESS);
		CHECK_EQUAL(cuMemAddressFree(thing->pointer, thing->bytes), CUDA_SUCCESS);
		break;
	case POOL:
		CHECK_EQUAL(cuMemPoolDestroy(thing->pool), CUDA_SUCCESS);
		break;
	case GRAPH:
		CHECK_EQUAL(cuGraphExecDestroy(thing->exec), CUDA_SUCCESS);
		break;
	case NONE:
		break;
	}
	thing->kind = NONE;
}

static void begin(unsigned call, struct thing *thing, struct thing *other)
{
	const CUmemPoolProps props = {
		.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
	const CUDA_ARRAY_DESCRIPTOR desc = {
		.Width = 256, .Height = thing->bytes / 4096, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 4};
	CUmemAllocationProp prop = rig_on_device(0);
	size_t pitch;

	switch (call) {
	case 0:
		set(thing, cuMemAlloc_v2(&thing->pointer, thing->bytes - 3), POINTER);
		break;
	case 1:
		set(thing, cuMemAllocManaged(&thing->pointer, thing->bytes, CU_MEM_ATTACH_GLOBAL), POINTER);
		break;
	case 2:
		set(thing, cuMemAllocPitch_v2(&thing->pointer, &pitch, 700, thing->bytes / 1024, 4), POINTER);
		break;
	case 3:
		set(thing, cuMemAllocAsync(&thing->pointer, thing->bytes, NULL), POINTER);
		break;
	case 4:
		set(thing, cuArrayCreate_v2(&thing->array, &desc), ARRAY);
		break;
	case 5:
	case 6:
		prop.location.type = call == 5 ? CU_MEM_LOCATION_TYPE_DEVICE : CU_MEM_LOCATION_TYPE_HOST;
		set(thing, cuMemCreate(&thing->handle, thing->bytes, &prop, 0), BLOCK);
		break;
	case 7:
		set(thing, cuMemPoolCreate(&thing->pool, &props), POOL);
		break;
	case 8:
		if (other->kind == POOL)
			set(thing, cuMemAllocFromPoolAsync(&thing->pointer, thing->bytes, other->pool, NULL), POINTER);
		break;
	case 9:
		start_graph(thing);
		break;
	case 10:
		if (other->kind == BLOCK) {
			CHECK_EQUAL(cuMemAddressReserve(&thing->pointer, other->bytes, 0, 0, 0), CUDA_SUCCESS);
			thing->bytes = other->bytes;
			set(thing, cuMemMap(thing->pointer, thing->bytes, 0, other->handle, 0), MAPPED);
		}
		break;
	case 11:
		if (other->kind == MAPPED) {
			thing->bytes = other->bytes;
			set(thing, cuMemRetainAllocationHandle(&thing->handle, (void *)(uintptr_t)other->pointer),
				BLOCK);
		}
		break;
	default:
		break;
	}
}

static void change(unsigned call, struct thing *thing)
{
	cuuint64_t keep = thing->bytes;
	int fd;

	if (call == 12 && thing->kind == BLOCK &&
		cuMemExportToShareableHandle(&fd, thing->handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0) ==
			CUDA_SUCCESS)
		close(fd);
	if (call == 13 && thing->kind == POOL)
		CHECK_EQUAL(cuMemPoolSetAttribute(thing->pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep), CUDA_SUCCESS);
	if (call == 14 && thing->kind == GRAPH)
		(void)cuGraphLaunch(thing->exec, NULL);
	if (call == 15 && thing->kind == GRAPH)
		(void)cuMemFree_v2(thing->pointer);
	if (call == 16)
		CHECK_EQUAL(cuStreamSynchronize(NULL), CUDA_SUCCESS);
}

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
	(void)argc, (void)argv;
	unlink("region");
	unlink("cards.state");
	setenv("LIBCUDA_LOG_LEVEL", "0", 1);
	rig_begin(GIB);
	return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	CUmemoryPool pool;

	for (size_t i = 0; i + 2 < size; i += 3) {
		struct thing *thing = &things[data[i + 1] % THINGS];
		const unsigned call = data[i] % CALLS;

		if (call >= 12) {
			change(call, thing);
		} else if (thing->kind != NONE) {
			end(thing);
		} else {
			thing->bytes = (1 + (uint64_t)data[i + 2]) * 2 * MIB;
			begin(call, thing, &things[data[i + 1] / THINGS]);
		}
		CHECK(fakeOwnBytes(0) <= GIB + THINGS * 2 * MIB);
	}
	for (int i = 0; i < THINGS; i++)
		end(&things[i]);
	CHECK_EQUAL(cuDeviceGetMemPool(&pool, 0), CUDA_SUCCESS);
	CHECK_EQUAL(cuMemPoolTrimTo(pool, 0), CUDA_SUCCESS);
	CHECK_EQUAL(cuDeviceGraphMemTrim(0), CUDA_SUCCESS);
	rig_exact(0);
	return 0;
}
