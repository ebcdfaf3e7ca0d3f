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

from interface import ENUMS, reason_of, treatment_of

CSHIM = Path(__file__).resolve().parent.parent

# Structs and enums of ours that a size can be asked of.
TYPES = (
    "CUDA_ARRAY_DESCRIPTOR", "CUDA_ARRAY3D_DESCRIPTOR", "CUDA_ARRAY_DESCRIPTOR_v1", "CUDA_ARRAY3D_DESCRIPTOR_v1",
    "CUDA_ARRAY_MEMORY_REQUIREMENTS", "CUmemLocation", "CUmemAllocationProp", "CUmemPoolProps", "CUDA_MEM_ALLOC_NODE_PARAMS", "CUarrayMapInfo",
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


def declared_functions(folder: Path) -> set[str]:
    """Return the functions that NVIDIA's headers declare, without ``cu`` and without the marks of versions and default streams."""
    names = set(re.findall(r"\bCUDAAPI cu([A-Z]\w+)\s*\(", (folder / "cuda.h").read_text()))
    names |= set(re.findall(r"PFN_cu(\w+?)_v\d+(?:_ptsz|_ptds)?\)", (folder / "cudaTypedefs.h").read_text()))
    return {re.sub(r"(_ptsz|_ptds)$", "", name) for name in names}


def unhooked_faults(folder: Path) -> list[str]:
    """Return the functions that are neither hooked nor passed for a reason."""
    manifest = (CSHIM / "src" / "hooks.def").read_text()
    hooked = {name for row in re.findall(r"^HOOK\(cu(\w+), cu(\w+),", manifest, re.MULTILINE) for name in row}
    faults = []
    for name in sorted(declared_functions(folder)):
        base = re.sub(r"_v\d$", "", name)
        if base not in hooked and reason_of(base) is None:
            faults.append(f"cu{name}: is not hooked, and nothing says why")
    return faults


def enum_faults(folder: Path) -> list[str]:
    """Return the values of the enums that decide a charge of which nothing says what is done with them."""
    header = (folder / "cuda.h").read_text()
    table = [
        tuple(int(part, 16) for part in row) for row in re.findall(r"\{(0x\w+), (0x\w+), \d+,", (CSHIM / "src" / "array.c").read_text())
    ]
    faults = []
    for enum in ENUMS:
        body = re.search(rf"typedef enum {enum}_enum \{{(.*?)\}} {enum};", header, re.DOTALL)
        if body is None:
            faults.append(f"{enum}: not in cuda.h")
            continue
        prefixes = {"CUlimit": "CU_LIMIT_", "CUarray_format": "CU_AD_FORMAT_", "CUarraySparseSubresourceType": "CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_",
                    "CUmemAllocationHandleType": "CU_MEM_HANDLE_TYPE_"}  # fmt: skip
        words = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", enum.removeprefix("CU")).upper()
        prefix = prefixes.get(enum, f"CU_{words}_")
        text = re.sub(r"/\*.*?\*/", "", body.group(1), flags=re.DOTALL)
        for value, number in re.findall(rf"\b{prefix}(\w+)\s*(?:=\s*(\w+))?", text):
            if value == "MAX":
                continue
            if treatment_of(enum, value) is None:
                faults.append(f"{prefix}{value}: a value of {enum} of which nothing says what is done with it")
            if enum == "CUarray_format" and not any(first <= int(number, 16) <= last for first, last in table):
                faults.append(f"{prefix}{value}: array.c does not say what it takes")
    return faults


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
    faults = typedef_faults(folder) + unhooked_faults(folder) + enum_faults(folder) + unhooked_figures(folder)
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
