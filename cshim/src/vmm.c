/* vmm.c: memory without an address (cuMemCreate), mapped into reserved addresses.
 *
 * A block's memory lives until its last handle is released and its last mapping is gone. Blocks have numbers of our
 * own: the driver gives a released handle's value to the next allocation while the old one is still mapped.
 *
 *   - handles: handle -> block (scope), how often it was handed out (tag)
 *   - mappings: address -> block (scope), length
 *   - blocks: block -> bytes, handles (tag), mappings (scope)
 *
 * One short lock orders the three; it is not held while the driver works. What a call is about to refer to is counted
 * before the driver is called, so that a block is never given back while another thread is mapping or retaining it.
 */
#include "charge.h"
#include "log.h"

/* `number` 0 is no block: memory of the host, or imported. */
static void block_change(struct shim *shim, uint64_t number, int handles, int mappings)
{
	struct table_entry block;

	if (!table_take(&shim->blocks, number, &block))
		return;
	block.tag += (uint32_t)handles;
	block.scope += (uint64_t)(int64_t)mappings;
	if (block.tag == 0 && block.scope == 0)
		charge_give(shim, block.device, block.bytes);
	else
		(void)table_put(&shim->blocks, &block); /* into the place it has just left */
}

static void handle_add(struct shim *shim, uint64_t handle, uint64_t block)
{
	struct table_entry entry;

	if (!table_take(&shim->handles, handle, &entry) || entry.scope != block)
		entry = (struct table_entry){.key = handle, .scope = block};
	entry.tag++;
	if (!table_put(&shim->handles, &entry))
		log_line(LOG_ERROR,
			"no memory to remember an allocation handle: it stays charged until this process ends");
}

/* Count one use less of a handle that is about to be released. It is still known, since until the driver has released
 * it another thread may map it. Returns the block, 0 for a handle that is not charged. */
static uint64_t handle_release(struct shim *shim, uint64_t handle)
{
	struct table_entry entry;

	if (!table_take(&shim->handles, handle, &entry))
		return 0;
	entry.tag -= entry.tag > 0;
	(void)table_put(&shim->handles, &entry); /* into the place it has just left */
	return entry.scope;
}

/* The driver has released it. If it was the last use, forget it, unless its value is another block's already. */
static void handle_released(struct shim *shim, uint64_t handle, uint64_t block)
{
	struct table_entry entry;

	if (table_take(&shim->handles, handle, &entry) && (entry.tag > 0 || entry.scope != block))
		(void)table_put(&shim->handles, &entry);
}

CUresult cuMemCreate(
	CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *prop, unsigned long long flags)
{
	struct shim *shim = charge_nested ? NULL : shim_get();
	const bool on_device = prop != NULL && prop->location.type == CU_MEM_LOCATION_TYPE_DEVICE;
	struct charge charge;
	struct table_entry block;
	CUresult result;
	int row;

	REAL(cuMemCreate);
	row = shim != NULL && on_device ? shim_row_of_device(shim, prop->location.id) : ROW_NONE;
	if (!charge_begin_on(&charge, shim, row, size))
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = driver.cuMemCreate(handle, size, prop, flags);
	charge_correct(&charge, result, size);
	if (charge.shim == NULL || result != CUDA_SUCCESS || handle == NULL)
		return result;
	spin_take(&shim->vmm_lock);
	block = (struct table_entry){.key = ++shim->last_block, .bytes = size, .tag = 1, .device = (uint16_t)row};
	(void)table_put(&shim->blocks, &block);
	handle_add(shim, *handle, block.key);
	spin_give(&shim->vmm_lock);
	return result;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
	struct shim *shim = charge_nested ? NULL : shim_get();
	uint64_t block = 0;
	CUresult result;

	REAL(cuMemRelease);
	if (shim != NULL) {
		spin_take(&shim->vmm_lock);
		block = handle_release(shim, handle);
		spin_give(&shim->vmm_lock);
	}
	result = driver.cuMemRelease(handle);
	if (block == 0)
		return result;
	spin_take(&shim->vmm_lock);
	if (result == CUDA_SUCCESS) {
		handle_released(shim, handle, block);
		block_change(shim, block, -1, 0);
	} else {
		handle_add(shim, handle, block);
	}
	spin_give(&shim->vmm_lock);
	return result;
}

CUresult cuMemMap(
	CUdeviceptr ptr, size_t size, size_t offset, CUmemGenericAllocationHandle handle, unsigned long long flags)
{
	struct shim *shim = charge_nested ? NULL : shim_get();
	struct table_entry entry;
	uint64_t block = 0;
	CUresult result;

	REAL(cuMemMap);
	if (shim != NULL) {
		spin_take(&shim->vmm_lock);
		if (table_get(&shim->handles, handle, &entry))
			block = entry.scope;
		block_change(shim, block, 0, 1);
		spin_give(&shim->vmm_lock);
	}
	result = driver.cuMemMap(ptr, size, offset, handle, flags);
	if (block == 0)
		return result;
	spin_take(&shim->vmm_lock);
	entry = (struct table_entry){.key = ptr, .bytes = size, .scope = block};
	if (result != CUDA_SUCCESS)
		block_change(shim, block, 0, -1);
	else if (!table_put(&shim->mappings, &entry))
		log_line(
			LOG_ERROR, "no memory to remember a mapping: its memory stays charged until this process ends");
	spin_give(&shim->vmm_lock);
	return result;
}

CUresult cuMemUnmap(CUdeviceptr ptr, size_t size)
{
	struct shim *shim = charge_nested ? NULL : shim_get();
	struct table_entry entry;
	CUdeviceptr at = ptr;
	CUresult result;

	REAL(cuMemUnmap);
	result = driver.cuMemUnmap(ptr, size); /* the addresses stay reserved: nobody else is given them meanwhile */
	if (result != CUDA_SUCCESS || shim == NULL)
		return result;
	spin_take(&shim->vmm_lock);
	while (at - ptr < size && table_find_range(&shim->mappings, at, &entry)) {
		(void)table_take(&shim->mappings, entry.key, &entry);
		block_change(shim, entry.scope, 0, -1);
		at = entry.key + entry.bytes;
	}
	spin_give(&shim->vmm_lock);
	return result;
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *addr)
{
	struct shim *shim = charge_nested ? NULL : shim_get();
	struct table_entry entry;
	uint64_t block = 0;
	CUresult result;

	REAL(cuMemRetainAllocationHandle);
	if (shim != NULL) {
		spin_take(&shim->vmm_lock);
		if (table_find_range(&shim->mappings, (uint64_t)(uintptr_t)addr, &entry))
			block = entry.scope;
		block_change(shim, block, 1, 0);
		spin_give(&shim->vmm_lock);
	}
	result = driver.cuMemRetainAllocationHandle(handle, addr);
	if (block == 0)
		return result;
	spin_take(&shim->vmm_lock);
	if (result == CUDA_SUCCESS && handle != NULL)
		handle_add(shim, *handle, block);
	else
		block_change(shim, block, -1, 0);
	spin_give(&shim->vmm_lock);
	return result;
}
