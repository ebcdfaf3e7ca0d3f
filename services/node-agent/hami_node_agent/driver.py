"""What of NVIDIA's driver a container needs, found under the driver's root: libraries, programs, control nodes and the runtime's hooks.

The hooks make the links that programs open, and the linker's cache. Used where nobody ran ``nvidia-ctk cdi generate``. Reads the file system,
changes nothing. Host paths in the result are those of the host; the root may be mounted elsewhere in the agent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from hami_node_agent import cdi
from hami_node_agent.hardware import PhysicalDevice

LIBRARY_FOLDERS: Final = (
    "usr/lib64",
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "lib64",
    "lib/x86_64-linux-gnu",
    "lib/aarch64-linux-gnu",
)
LIBRARIES: Final = (
    "libcuda",
    "libcudadebugger",
    "libnvcuvid",
    "libnvidia-allocator",
    "libnvidia-cfg",
    "libnvidia-encode",
    "libnvidia-gpucomp",
    "libnvidia-ml",
    "libnvidia-nvvm",
    "libnvidia-opencl",
    "libnvidia-opticalflow",
    "libnvidia-pkcs11",
    "libnvidia-pkcs11-openssl3",
    "libnvidia-ptxjitcompiler",
)
PROGRAM_FOLDERS: Final = ("usr/bin", "usr/local/bin", "bin")
PROGRAMS: Final = ("nvidia-smi", "nvidia-debugdump", "nvidia-persistenced", "nvidia-cuda-mps-control", "nvidia-cuda-mps-server")
CONTROL_NODES: Final = ("dev/nvidiactl", "dev/nvidia-uvm", "dev/nvidia-uvm-tools", "dev/nvidia-modeset")


def find(
    root: Path,
    devices: Mapping[str, Sequence[str]],
    *,
    host_root: str = "/",
    dev_root: Path | None = None,
    hook: str = "/usr/bin/nvidia-ctk",
) -> cdi.DriverEdits:
    """Find the driver.

    Args:
        root: the driver's root as the agent sees it.
        devices: device nodes of each card, by UUID, as ``/dev/nvidia0``.
        host_root: the same root as the host sees it.
        dev_root: root of the device nodes; the driver's own where None.
        hook: ``nvidia-ctk`` or ``nvidia-cdi-hook`` on the host.

    Raises:
        cdi.CdiError: there is no ``libcuda.so.<version>`` below the root.
    """
    folder, version = _version(root)
    libraries = list(_libraries(root, folder, version))
    programs = [found for name in PROGRAMS if (found := _first(root, PROGRAM_FOLDERS, name)) is not None]
    nodes_root = dev_root or root
    common = cdi.Edits(
        device_nodes=tuple(_node(f"/{path}") for path in CONTROL_NODES if (nodes_root / path).exists()),
        mounts=tuple(_mount(path, host_root) for path in (*libraries, *programs)),
        hooks=tuple(_hooks(hook, libraries)),
    )
    return cdi.DriverEdits(
        common=common, devices={uuid: cdi.Edits(device_nodes=tuple(_node(path) for path in paths)) for uuid, paths in devices.items()}
    )


class DriverSource:
    """What containers need of the driver, looked for again when the cards or the driver have changed."""

    def __init__(
        self,
        devices: Callable[[], Sequence[PhysicalDevice]],
        look: Callable[[Sequence[PhysicalDevice]], cdi.DriverEdits],
        *,
        stamp: Callable[[], object],
    ) -> None:
        """``look`` finds it for the cards that ``devices`` gives; ``stamp`` is cheap and differs when it has to be looked for again."""
        self._devices = devices
        self._look = look
        self._stamp = stamp
        self._found: tuple[object, cdi.DriverEdits] | None = None

    def __call__(self) -> cdi.DriverEdits:
        """The edits for cards and driver as they are now.

        Raises:
            cdi.CdiError: the driver cannot be found; looked for again at the next call.
        """
        devices = self._devices()
        state = (devices, self._stamp())
        if self._found is None or self._found[0] != state:
            self._found = (state, self._look(devices))
        return self._found[1]


def versions(root: Path) -> tuple[str, ...]:
    """The drivers below ``root``, as a stamp."""
    return tuple(path.name for folder in LIBRARY_FOLDERS for path in sorted((root / folder).glob("libcuda.so.*.*")))


def file_stamp(path: Path) -> tuple[int, int] | None:
    """Which file lies at ``path``."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns


def from_base_spec(path: Path, devices: Sequence[PhysicalDevice]) -> cdi.DriverEdits:
    """What ``nvidia-ctk cdi generate`` wrote to ``path``.

    Raises:
        cdi.CdiError: it cannot be read, or lacks a card.
    """
    try:
        spec = cdi.decode(path.read_bytes())
    except OSError as exc:
        raise cdi.CdiError(f"{path}: {exc.strerror}") from exc
    return cdi.driver_edits(spec, {device.uuid: device.index for device in devices})


def _version(root: Path) -> tuple[str, str]:
    """Where the driver's libraries are, and its version. The versioned ``libcuda`` is the driver; its links may point elsewhere."""
    for folder in LIBRARY_FOLDERS:
        for path in sorted((root / folder).glob("libcuda.so.*.*"), reverse=True):
            return folder, path.name.removeprefix("libcuda.so.")
    raise cdi.CdiError(
        f"no libcuda.so.<version> below {root}; looked into {', '.join(LIBRARY_FOLDERS)}; set HAMI_DRIVER_ROOT, or HAMI_CDI_BASE_SPEC"
    )


def _libraries(root: Path, folder: str, version: str) -> Iterator[str]:
    for name in LIBRARIES:
        for candidate in (f"{name}.so.{version}", f"{name}.so.1"):
            if (root / folder / candidate).is_file():
                yield f"/{folder}/{candidate}"
                break


def _first(root: Path, folders: Iterable[str], name: str) -> str | None:
    return next((f"/{folder}/{name}" for folder in folders if (root / folder / name).is_file()), None)


def _node(path: str) -> cdi.DeviceNode:
    return cdi.DeviceNode(path=path, host_path=path, permissions="rw")


def _mount(path: str, host_root: str) -> cdi.Mount:
    return cdi.Mount(host_path=host_root.rstrip("/") + path, container_path=path, options=cdi.READ_ONLY)


def _hooks(hook: str, libraries: Sequence[str]) -> Iterator[cdi.Hook]:
    """Links under the names that programs open, then the linker's cache; ``nvidia-ctk`` takes the word ``hook`` before the hook's name."""
    program = Path(hook).name
    first = (program, "hook") if program == "nvidia-ctk" else (program,)
    links: list[str] = []
    for library in libraries:
        folder, _, file = library.rpartition("/")
        name = file.partition(".so")[0]
        if name == "libcuda":
            links += ["--link", f"libcuda.so.1::{folder}/libcuda.so"]
        if name == "libnvidia-opticalflow":
            links += ["--link", f"libnvidia-opticalflow.so.1::{folder}/libnvidia-opticalflow.so"]
    if links:
        yield cdi.Hook(hook_name="createContainer", path=hook, args=(*first, "create-symlinks", *links))
    folders = sorted({library.rpartition("/")[0] for library in libraries})
    folder_arguments = [argument for folder in folders for argument in ("--folder", folder)]
    yield cdi.Hook(hook_name="createContainer", path=hook, args=(*first, "update-ldcache", *folder_arguments))
