"""Our declarations of CUDA and NVML against NVIDIA's own: prototypes, sizes, and the versions in the manifest.

Needs the wheels ``nvidia-cuda-runtime`` and ``nvidia-nvml-dev`` (in the ``dev`` extra), of which nothing is copied: everything
is compiled once with them in the place of our declarations, so that a prototype that differs does not compile.
"""

# ruff: noqa: INP001  # a script beside the C sources, not a package

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

CSHIM = Path(__file__).resolve().parent.parent

# Structs and enums of ours that a size can be asked of.
TYPES = (
    "CUDA_ARRAY_DESCRIPTOR", "CUDA_ARRAY3D_DESCRIPTOR", "CUDA_ARRAY_DESCRIPTOR_v1", "CUDA_ARRAY3D_DESCRIPTOR_v1",
    "CUDA_ARRAY_MEMORY_REQUIREMENTS", "CUmemLocation", "CUmemAllocationProp", "CUmemPoolProps", "CUDA_MEM_ALLOC_NODE_PARAMS",
    "CUDA_GRAPH_INSTANTIATE_PARAMS", "CUlaunchConfig", "CUDA_LAUNCH_PARAMS", "CUDA_KERNEL_NODE_PARAMS_v1",
    "CUDA_EXTERNAL_MEMORY_HANDLE_DESC", "CUuuid", "CUipcMemHandle", "CUresult", "CUdeviceptr", "CUmemGenericAllocationHandle", "nvmlMemory_t",
    "nvmlMemory_v2_t", "nvmlUtilization_t", "nvmlProcessInfo_v1_t", "nvmlProcessInfo_v2_t", "nvmlProcessInfo_t",
    "nvmlProcessUtilizationSample_t", "nvmlProcessDetail_v1_t", "nvmlProcessDetailList_t", "nvmlProcessesUtilizationInfo_t",
)  # fmt: skip
MEMBERS = (
    ("CUmemAllocationProp", "location"), ("CUmemPoolProps", "location"), ("CUDA_MEM_ALLOC_NODE_PARAMS", "bytesize"),
    ("CUDA_EXTERNAL_MEMORY_HANDLE_DESC", "size"), ("CUlaunchConfig", "hStream"), ("CUDA_LAUNCH_PARAMS", "hStream"),
    ("CUDA_ARRAY3D_DESCRIPTOR", "Flags"), ("nvmlProcessInfo_t", "usedGpuMemory"), ("nvmlProcessDetailList_t", "procArray"),
    ("nvmlMemory_v2_t", "used"),
)  # fmt: skip
CONSTANTS = (
    "CUDA_ERROR_OUT_OF_MEMORY", "CUDA_ERROR_NOT_READY", "CUDA_ERROR_NOT_SUPPORTED", "CUDA_ERROR_NOT_INITIALIZED",
    "CUDA_ERROR_INVALID_CONTEXT", "CU_MEM_LOCATION_TYPE_DEVICE", "CU_MEM_LOCATION_TYPE_HOST", "CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT",
    "CU_MEMPOOL_ATTR_USED_MEM_CURRENT", "CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT", "CU_GRAPH_NODE_TYPE_MEM_ALLOC",
    "CU_GRAPH_NODE_TYPE_GRAPH", "CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD",
    "CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM", "CU_AD_FORMAT_HALF", "CU_AD_FORMAT_FLOAT",
    "CU_STREAM_CAPTURE_STATUS_ACTIVE", "CU_STREAM_CAPTURE_MODE_RELAXED", "NVML_ERROR_INSUFFICIENT_SIZE", "NVML_ERROR_FUNCTION_NOT_FOUND",
)  # fmt: skip


# Functions of the newest headers whose names say memory or work, and why they pass.
MEMORY_OR_WORK = re.compile(
    r"Alloc|Launch|BeginCapture|EndCapture|Recapture|MemCreate|PoolCreate|ArrayCreate|CtxCreate|Import|MulticastCreate|Decompress"
    r"|IpcOpenMem|Managed|LibraryLoad|ModuleLoad|SetLimit|Trim|SetMemPool|MapArray|Subgrid|GraphUpload|GraphInstantiate"
)
PASSED = {
    "what others have allocated is charged to them": (
        "cuIpcOpenMemHandle", "cuMemImportFromShareableHandle", "cuMemPoolImportFromShareableHandle", "cuMemPoolImportPointer",
        "cuLogicalEndpointImport",
    ),
    "the host's memory": ("cuMemAllocHost", "cuMemHostAlloc"),
    "the driver's own, which the agent sees": (
        "cuCtxSetLimit", "cuModuleLoad", "cuModuleLoadData", "cuModuleLoadDataEx", "cuModuleLoadFatBinary", "cuLibraryLoadData",
        "cuLibraryLoadFromFile", "cuLibraryGetManaged",
    ),
    "charged with the graph": ("cuGraphAddMemAllocNode", "cuGraphMemAllocNodeGetParams"),
    "charged with its handle": ("cuMemMapArrayAsync",),
    "asked for at each allocation": ("cuDeviceSetMemPool", "cuMemSetMemPool"),
    "tells and takes nothing": (
        "cuMemGetAllocationGranularity", "cuMemGetAllocationPropertiesFromHandle", "cuTensorMapSetAllocationClass",
        "cuImportExternalSemaphore", "cuMulticastCreate",
    ),
    "not work of the multiprocessors": ("cuLaunchHostFunc", "cuMemBatchDecompressAsync"),
    "work of a graphics interface": ("cuStreamBeginCaptureToCig", "cuStreamEndCaptureToCig"),
}  # fmt: skip

# The same for NVML: what tells of memory or of processes, which are the share's and the container's.
NVML_FIGURES = re.compile(r"nvmlDeviceGet\w*(?:MemoryInfo|Process)")
NVML_PASSED = {
    "nvmlDeviceGetBAR1MemoryInfo": "the bus's window to the card",
    "nvmlDeviceGetVgpuProcessUtilization": "of virtual machines",
    "nvmlDeviceGetVgpuProcessesUtilizationInfo": "of virtual machines",
}


def include_folder() -> Path:
    """Return the folder with NVIDIA's headers, from the installed wheels."""
    found = sorted(Path(sysconfig.get_paths()["purelib"]).glob("nvidia/*/include/cuda.h"))
    if not found:
        raise SystemExit("headers: cuda.h is not installed: pip install nvidia-cuda-runtime nvidia-nvml-dev, or the dev extra")
    return found[-1].parent


def figures(build: Path, flags: list[str]) -> str:
    """Return sizes, offsets and constants as one compiler sees them with ``flags``."""
    lines = ["#include <stddef.h>", "#include <stdio.h>", '#include "cuda_abi.h"', '#include "nvml_abi.h"', "int main(void) {"]
    lines += [f'printf("{name} %zu\\n", sizeof({name}));' for name in TYPES]
    lines += [f'printf("{name}.{member} %zu\\n", offsetof({name}, {member}));' for name, member in MEMBERS]
    lines += [f'printf("{name} %ld\\n", (long){name});' for name in CONSTANTS]
    source = build / "figures.c"
    source.write_text("\n".join([*lines, "return 0; }", ""]))
    program = build / "figures"
    subprocess.run(["gcc", f"-I{CSHIM / 'include'}", *flags, "-o", str(program), str(source)], check=True)
    return subprocess.run([str(program)], check=True, capture_output=True, text=True).stdout


def typedef_faults(folder: Path) -> list[str]:
    """Return the rows of the manifest whose version NVIDIA's list of function types does not have."""
    known = set(re.findall(r"PFN_(\w+?)_v(\d+)(_ptsz|_ptds)?\)", (folder / "cudaTypedefs.h").read_text()))
    faults = []
    manifest = (CSHIM / "src" / "hooks.def").read_text()
    for symbol, base, version, stream in re.findall(r"^HOOK\((\w+), (\w+), (\d+), (\w+)\)", manifest, re.MULTILINE):
        wanted = (base, version, "_ptsz" if stream == "PER_THREAD" else "")
        if wanted not in known:
            faults.append(f"{symbol}: no {base} of version {version}, {stream}, in cudaTypedefs.h")
    return faults


def unhooked_faults(folder: Path) -> list[str]:
    """Return the functions that allocate or start work, by their names, and are neither hooked nor passed for a reason."""
    declared = set(re.findall(r"PFN_(\w+?)_v\d+(?:_ptsz|_ptds)?\)", (folder / "cudaTypedefs.h").read_text()))
    manifest = (CSHIM / "src" / "hooks.def").read_text()
    hooked = set(re.findall(r"^HOOK\(\w+, (\w+),", manifest, re.MULTILINE))
    passed = {name for names in PASSED.values() for name in names}
    wanted = {name for name in declared if MEMORY_OR_WORK.search(name)}
    faults = [f"{name}: allocates or starts work, is not hooked, and nothing says why" for name in sorted(wanted - hooked - passed)]
    return faults + [f"{name}: passed for a reason, and hooked or unknown" for name in sorted(passed & hooked | passed - declared)]


def unhooked_figures(folder: Path) -> list[str]:
    """Return NVML's functions that tell of memory or processes, by their names, and are neither hooked nor passed for a reason."""
    declared = set(re.findall(r"DECLDIR (nvml\w+)\(", (folder / "nvml.h").read_text()))
    hooked = set(re.findall(r"^HOOK\((\w+)\)", (CSHIM / "src" / "nvml_hooks.def").read_text(), re.MULTILINE))
    wanted = {name for name in declared if NVML_FIGURES.match(name)}
    left = sorted(wanted - hooked - set(NVML_PASSED))
    return [f"{name}: tells of memory or processes, is not hooked, and nothing says why" for name in left]


def main() -> int:
    """Check everything; return the exit status."""
    parser = argparse.ArgumentParser(description="Check our declarations of CUDA and NVML against NVIDIA's headers.")
    parser.add_argument("--build", type=Path, required=True, help="a folder for what is compiled")
    build: Path = parser.parse_args().build
    build.mkdir(parents=True, exist_ok=True)
    folder = include_folder()
    theirs = ["-DVGPU_CUDA_HEADERS", f"-isystem{folder}"]
    faults = typedef_faults(folder) + unhooked_faults(folder) + unhooked_figures(folder)
    ours_text, theirs_text = figures(build, []), figures(build, theirs)
    faults += [f"ours {a}, theirs {b}" for a, b in zip(ours_text.splitlines(), theirs_text.splitlines(), strict=True) if a != b]
    for source in sorted([*(CSHIM / "src").glob("*.c"), *(CSHIM / "tests" / "fake").glob("*.c")]):
        command = ["gcc", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", f"-I{CSHIM / 'include'}", f"-I{CSHIM / 'src'}"]
        done = subprocess.run(
            [*command, *theirs, f"-I{CSHIM / 'tests' / 'fake'}", str(source)], capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            faults.append(f"{source.name} does not compile with NVIDIA's headers:\n{done.stderr}")
    for fault in faults:
        print(fault)
    print(f"headers: {len(faults)} faults against {folder}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
