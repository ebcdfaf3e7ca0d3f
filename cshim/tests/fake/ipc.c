/* ipc.c: memory that another process opens. A handle names it by its owner and address; who opens it gets an address of
 * his own and takes nothing of the card. */
#define _GNU_SOURCE
#include <string.h>
#include <unistd.h>

#include "driver.h"
#include "memory.h"

struct shared {
	pid_t owner;
	uint64_t address;
};
_Static_assert(sizeof(struct shared) <= sizeof(CUipcMemHandle), "a handle has room for what it names");

static struct table opened;

CUresult cuIpcGetMemHandle(CUipcMemHandle *pHandle, CUdeviceptr dptr)
{
	const struct shared shared = {.owner = getpid(), .address = dptr};
	struct table_entry entry;

	ENTER();
	if (!table_get(&fake_pointers, dptr, &entry) || entry.kind != FROM_CARD)
		return CUDA_ERROR_INVALID_VALUE;
	memset(pHandle, 0, sizeof(*pHandle));
	memcpy(pHandle, &shared, sizeof(shared));
	return CUDA_SUCCESS;
}

CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *pdptr, CUipcMemHandle handle, unsigned int Flags)
{
	struct table_entry entry = {.bytes = 1};
	struct shared shared;

	(void)Flags;
	ENTER();
	NEED_CONTEXT(context);
	(void)context;
	memcpy(&shared, &handle, sizeof(shared));
	if (shared.owner == getpid() || shared.address == 0)
		return CUDA_ERROR_INVALID_CONTEXT; /* not by its own owner, as the real one */
	entry.key = *pdptr = fake_address(entry.bytes, false);
	return table_put(&opened, &entry) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuIpcCloseMemHandle(CUdeviceptr dptr)
{
	struct table_entry entry;

	ENTER();
	return table_take(&opened, dptr, &entry) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
