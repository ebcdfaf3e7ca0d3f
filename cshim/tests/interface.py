"""What CUDA's headers declare and the shim does not hook, with the reason: functions, and values of the enums that it reads.

``headers.py`` compares this with NVIDIA's headers. A function or a value that is in them and neither hooked nor here is a fault: it is
new, and somebody has to decide. So is one that is here and not in them.
"""

# ruff: noqa: INP001  # beside the C sources, not a package

from __future__ import annotations

import re

# A reason, and patterns of names without "cu". The first that fits is the reason.
PASSED: dict[str, str] = {
    "asks, and takes nothing of a device": (
        r"(Ctx|Device|DevResource|DevSm|Driver|Event|Func|Kernel|Library|Module|Link|Mem|MemPool|Array|Array3D|MipmappedArray|Stream|Graph|"
        r"GraphExec|GraphNode|GreenCtx|Pointer|TexRef|TexObject|SurfRef|SurfObject|Coredump|Multicast|Ipc|LogicalEndpoint|Graphics\w*)"
        r"(Get|Query|CanAccess|ComputeCapability|Enumerate|Is)\w*|Occupancy\w*|GetErrorName|GetErrorString|MemRangeGetAttributes?|"
        r"DeviceTotal\w*|DevicePrimaryCtxGetState|EventElapsedTime|StreamQuery|Graph\w*Get(Params|Event|Attribute|Graph)|GraphDebugDotPrint|"
        r"GraphNodeFindInClone|Logs\w*|CheckpointProcessGet\w*|GetExportTable"
    ),
    "frees or ends what others take, and is not charged itself": (
        r"Destroy\w+|(Event|Stream|TexRef|TexObject|SurfObject|Link|LogicalEndpoint|Graph)Destroy\w*|MemAddressFree|MemFreeHost|IpcCloseMemHandle|"
        r"LibraryUnload|ModuleUnload|CtxDetach|UserObjectRelease|GraphReleaseUserObject|GraphicsUn\w+|MemHostUnregister|"
        r"Coredump(Deregister|Set|Register)\w*|DeviceUnregister\w*|MulticastUnbind|LogicalEndpoint(Unbind|IdRelease)"
    ),
    "changes how something is done, not what it takes": (
        r"(Ctx|Func|Kernel|Stream|TexRef|SurfRef|Param|Pointer|Event|Graphics\w*)(Set|Copy|Attach|Reset)\w*|DevicePrimaryCtxSetFlags|"
        r"DeviceRegisterAsyncNotification|DeviceSetGraphMemAttribute|Ctx(Enable|Disable)PeerAccess|CtxAttach|CtxFromGreenCtx|"
        r"Ctx(PopCurrent|PushCurrent|RecordEvent|WaitEvent|Synchronize)|DevResource\w*|DevSmResource\w*|ThreadExchangeStreamCaptureMode|"
        r"GreenCtx(RecordEvent|WaitEvent|StreamCreate)|FuncLoad|MemSetAccess|MemPoolSetAccess|FlushGPUDirectRDMAWrites|GraphicsMap\w*|"
        r"StreamUpdateCaptureDependencies"
    ),
    "makes a handle, in the memory of the host": (
        r"(Event|Stream)Create\w*|Tex(Ref|Object)Create|SurfObjectCreate|TensorMap\w+|UserObject(Create|Retain)|GraphRetainUserObject|"
        r"GraphConditionalHandleCreate|LogicalEndpoint\w+|Multicast(AddDevice|Bind\w+|Create)|IpcGet\w+|MemAddressReserve"
    ),
    "waits, signals, or calls the host": (
        r"(Event|Stream)(Synchronize|Record\w*|WaitEvent|Wait\w+|Write\w+|BatchMemOp|AddCallback)|LaunchHostFunc|"
        r"(Signal|Wait)ExternalSemaphoresAsync|ImportExternalSemaphore"
    ),
    "builds a graph, which is charged when it is instantiated, uploaded and launched": (
        r"Graph(Add|Clone|Create|Remove|Kernel|Memcpy|Memset|Host|Event|External|BatchMemOp|NodeSet)\w*|GraphExec\w*Set\w*|GraphExecUpdate"
    ),
    "what others have allocated is charged to them": r"IpcOpen\w+|MemPoolImportPointer|MemPoolExport\w+|ExternalMemoryGetMapped\w+",
    "the host's memory": r"MemAllocHost|MemHost(Alloc|Register|Get\w+)",
    "the driver's own, which the agent sees (overhead_bytes)": r"ModuleLoad\w*|Library(LoadData|LoadFromFile)|Link(Add|Complete|Create)\w*",
    "a hint: what it leads to is charged where it is fetched, or comes without a call": r"MemAdvise|MemDiscardBatchAsync",
    "looked up at each allocation": r"DeviceSetMemPool|MemSetMemPool|MemPoolSetAttribute",
    "copies and fills: they take the memory's bandwidth, and are not charged": r"Memcpy\w*|Memset\w*|FabricCpyBatchAsync|MemBatchDecompressAsync",
    "work of a graphics interface": r"StreamBeginCaptureToCig|StreamEndCaptureToCig",
    "frees everything for a while, which stays charged": r"Checkpoint(Operation|Process)\w+",
}

# Enums whose values decide what is charged: each value, and what is done with it.
ENUMS: dict[str, dict[str, str]] = {
    "CUmemLocationType": {
        "charged to the device": r"DEVICE|DEVICE_LOCALITY_DOMAIN",
        "not memory of a device that was granted": r"HOST|HOST_NUMA|HOST_NUMA_CURRENT|INVISIBLE",
        "refused by the driver, or the device of the stream": r"INVALID|NONE",
    },
    "CUmemAllocationType": {"charged": r"PINNED|MANAGED", "refused by the driver": r"INVALID"},
    "CUmemAllocationHandleType": {"charged while it is exported": r"NONE|POSIX_FILE_DESCRIPTOR|WIN32|WIN32_KMT|FABRIC"},
    "CUmemOperationType": {"counted as a mapping": r"MAP|UNMAP"},
    "CUarraySparseSubresourceType": {"a place of an array": r"SPARSE_LEVEL|MIPTAIL"},
    "CUlimit": {
        "charged": r"MALLOC_HEAP_SIZE|PRINTF_FIFO_SIZE",
        "the driver's own, which the agent sees": r"STACK_SIZE|DEV_RUNTIME_SYNC_DEPTH|DEV_RUNTIME_PENDING_LAUNCH_COUNT|SHMEM_SIZE|"
        r"CIG_ENABLED|CIG_SHMEM_FALLBACK_ENABLED|PER_BLOCK_MEMORY_SIZE",
        "of a cache": r"MAX_L2_FETCH_GRANULARITY|PERSISTING_L2_CACHE_SIZE",
    },
    "CUgraphNodeType": {
        "charged": r"MEM_ALLOC",
        "looked into": r"GRAPH",
        "its body cannot allocate": r"CONDITIONAL",
        "takes no memory": r"KERNEL|MEMCPY|MEMSET|HOST|EMPTY|WAIT_EVENT|EVENT_RECORD|EXT_SEMAS_SIGNAL|EXT_SEMAS_WAIT|MEM_FREE|BATCH_MEM_OP|"
        r"MEMCPY_BATCH|"
        r"EXTERNAL_ENGINE|FABRIC_CPY_BATCH|RESERVED_\d+",
    },
    "CUstreamCaptureMode": {"of a capture, whatever it is": r"GLOBAL|THREAD_LOCAL|RELAXED"},
    "CUstreamCaptureStatus": {"recorded, not done": r"ACTIVE|INVALIDATED", "done": r"NONE"},
    "CUarray_format": {"its size is in array.c": r".*"},
}


def reason_of(name: str) -> str | None:
    """Return why a function, named without ``cu``, is passed; None where nothing says why."""
    return next((reason for reason, pattern in PASSED.items() if re.fullmatch(pattern, name)), None)


def treatment_of(enum: str, value: str) -> str | None:
    """Return what is done with a value of an enum; None where nothing says it."""
    return next((reason for reason, pattern in ENUMS[enum].items() if re.fullmatch(pattern, value)), None)
