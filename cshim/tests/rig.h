/* rig.h: a container in small, in the current directory: fake cards, a grant, a region. The test process itself runs
 * under the shim; it attaches at its first CUDA call, so what is set up before counts. */
#ifndef TEST_RIG_H
#define TEST_RIG_H

#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdint.h>
#include <sys/mman.h>

#include "check.h"
#include "cuda_abi.h"
#include "grant.h"
#include "nvml_abi.h"
#include "region.h"
#include "reserve.h"

#define MIB (UINT64_C(1) << 20)
#define GIB (UINT64_C(1) << 30)

extern void fakeFail(const char *function, CUresult result, int count);
extern uint64_t fakeUsedBytes(int device);
extern uint64_t fakeOwnBytes(int device);
extern uint64_t fakeBusyNanoseconds(int device);
extern void fakeRunFor(CUfunction function, uint64_t ns);

static inline const char *rig_uuid(int device)
{
	static char text[4][64];
	static int next;
	char *at = text[next++ % 4];

	snprintf(at, 64, "GPU-0000000%d-0000-4000-8000-000000000000", device);
	return at;
}

static inline void rig_path(char path[PATH_MAX], const char *name)
{
	char directory[PATH_MAX - 64];

	CHECK(getcwd(directory, sizeof(directory)) != NULL);
	snprintf(path, PATH_MAX, "%s/%s", directory, name);
}

/* `count` cards of `memory_bytes`, with a card's number times ten as its utilisation plus ten. */
static inline void rig_cards(int count, uint64_t memory_bytes)
{
	char path[PATH_MAX];
	FILE *file;

	rig_path(path, "cards");
	file = fopen(path, "w");
	CHECK(file != NULL);
	for (int i = 0; i < count; i++)
		fprintf(file, "uuid=%s memory_mib=%llu util=%d name=Fake-%d\n", rig_uuid(i),
			(unsigned long long)(memory_bytes >> 20), 10 * (i + 1), i);
	fclose(file);
	setenv("FAKE_GPU_CONFIG", path, 1);
}

static inline struct grant rig_grant(int device_count, uint64_t memory_bytes, uint32_t sm_percent)
{
	struct grant grant = {.magic = GRANT_MAGIC, .version = GRANT_VERSION, .size = sizeof(grant), .core_switch = 1};
	char region[PATH_MAX];

	rig_path(region, "region");
	snprintf(grant.region_path, sizeof(grant.region_path), "%.400s", region);
	grant.device_count = (uint32_t)device_count;
	for (int i = 0; i < device_count; i++) {
		snprintf(grant.devices[i].uuid, sizeof(grant.devices[i].uuid), "%s", rig_uuid(i));
		grant.devices[i].memory_limit_bytes = grant.devices[i].started_with_bytes = memory_bytes;
		grant.devices[i].sm_percent = grant.devices[i].started_with_percent = sm_percent;
		if (memory_bytes == 0)
			grant.devices[i].flags = GRANT_DEVICE_MEMORY_UNLIMITED;
	}
	return grant;
}

/* Write it in place, as a resize does. */
static inline void rig_write(struct grant *grant)
{
	char path[PATH_MAX];
	int fd;

	grant->checksum = grant_checksum(grant);
	rig_path(path, "grant");
	fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
	CHECK(fd >= 0);
	CHECK(pwrite(fd, grant, sizeof(*grant), 0) == sizeof(*grant));
	close(fd);
	setenv("HAMI_GRANT_FILE", path, 1);
}

/* One card of 8 GiB, and a share of it. */
static inline struct grant rig_one(uint64_t memory_bytes, uint32_t sm_percent)
{
	struct grant grant = rig_grant(1, memory_bytes, sm_percent);

	rig_cards(1, 8 * GIB);
	rig_write(&grant);
	return grant;
}

static inline void rig_context(int device)
{
	CUcontext context;

	CHECK_EQUAL(cuInit(0), CUDA_SUCCESS);
	CHECK_EQUAL(cuDevicePrimaryCtxRetain(&context, device), CUDA_SUCCESS);
	CHECK_EQUAL(cuCtxSetCurrent(context), CUDA_SUCCESS);
}

static inline struct region *rig_region(void)
{
	static struct region *region;
	char path[PATH_MAX];
	int fd;

	if (region != NULL)
		return region;
	rig_path(path, "region");
	fd = open(path, O_RDWR | O_CLOEXEC);
	CHECK(fd >= 0);
	region = mmap(NULL, sizeof(*region), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	CHECK(region != MAP_FAILED);
	close(fd);
	return region;
}

/* What the region says a device has in use, by all slots that have an owner. */
static inline uint64_t rig_charged(int device)
{
	struct region *region = rig_region();
	uint64_t sum = 0;

	for (unsigned i = 0; i < REGION_SLOTS; i++)
		if (atomic_load(&region->slots[i].owner) != 0)
			sum += reserve_held(&region->slots[i].use[device]);
	return sum;
}

static inline uint64_t rig_free(void)
{
	size_t free_bytes, total_bytes;

	CHECK_EQUAL(cuMemGetInfo_v2(&free_bytes, &total_bytes), CUDA_SUCCESS);
	return free_bytes;
}

/* A share of memory on one card, and a context there. */
static inline void rig_begin(uint64_t limit_bytes)
{
	(void)rig_one(limit_bytes, 100);
	rig_context(0);
}

/* The region and the card agree. */
static inline void rig_exact(uint64_t bytes)
{
	CHECK_EQUAL(rig_charged(0), bytes);
	CHECK_EQUAL(fakeUsedBytes(0), bytes);
}

static inline CUmemAllocationProp rig_on_device(int device)
{
	return (CUmemAllocationProp){
		.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device}};
}

static inline CUfunction rig_kernel(const char *name)
{
	CUfunction function;
	CUmodule module;

	CHECK_EQUAL(cuModuleLoadData(&module, ""), CUDA_SUCCESS);
	CHECK_EQUAL(cuModuleGetFunction(&function, module, name), CUDA_SUCCESS);
	return function;
}

static inline CUresult rig_launch(CUfunction function)
{
	return cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL);
}

#endif
