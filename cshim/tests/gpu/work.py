"""What ``run.py`` starts on a card, with and without the shim: one piece of work by its name, in a process of its own; the last line is JSON.

It speaks to the driver by ctypes. Its kernels are PTX that turns until the card's clock has gone on: each is named after the time it takes,
which the fake driver goes by, and one takes its time as a parameter.
"""

# ruff: noqa: INP001  # a script beside the C sources, not a package

from __future__ import annotations

import ctypes as c
import json
import random
import sys
import time
from collections.abc import Callable
from typing import Any

MIB = 1 << 20
DRY = "--dry" in sys.argv
SECONDS = 0.3 if DRY else 4.0
OUT_OF_MEMORY = 2
HEAD = ".version 6.0\n.target sm_52\n.address_size 64\n"
TURN = """
 mov.u64 %rd2, %globaltimer;
L:
 mov.u64 %rd3, %globaltimer;
 sub.u64 %rd4, %rd3, %rd2;
 setp.lt.u64 %p1, %rd4, %rd1;
 @%p1 bra L;
 ret;
}
"""
REGISTERS = " .reg .pred %p<2>; .reg .b64 %rd<5>;\n"


def ptx() -> bytes:
    """The module: ``varies`` turns for as long as its parameter says, the others for as long as their names."""
    text = HEAD + f".visible .entry varies(.param .u64 ns) {{\n{REGISTERS} ld.param.u64 %rd1, [ns];\n{TURN}"
    for name, ns in {"spin_20us": 20_000, "spin_200us": 200_000}.items():
        text += f".visible .entry {name}() {{\n{REGISTERS} mov.u64 %rd1, {ns};\n{TURN}"
    return text.encode() + b"\0"


class Driver:
    """libcuda, with a context on its first device; calls that fail raise."""

    def __init__(self) -> None:
        try:
            self.cuda = c.CDLL("libcuda.so.1")
        except OSError as exc:
            raise SystemExit(f"there is no CUDA driver: {exc}") from exc
        count = c.c_int()
        try:
            found = self.ask("cuInit", 0) == 0 and self.ask("cuDeviceGetCount", c.byref(count)) == 0 and count.value > 0
        except AttributeError as exc:
            raise SystemExit(f"this is no CUDA driver: {exc}") from exc
        if not found:
            raise SystemExit("the CUDA driver shows no GPU")

    def enter(self) -> None:
        """Make the primary context current."""
        context = c.c_void_p()
        self.do("cuDevicePrimaryCtxRetain", c.byref(context), 0)
        self.do("cuCtxSetCurrent", context)

    def ask(self, name: str, *arguments: Any) -> int:
        """The driver's answer."""
        return int(self.cuda[name](*arguments))

    def do(self, name: str, *arguments: Any) -> None:
        """A call that must succeed."""
        result = self.ask(name, *arguments)
        if result != 0:
            raise SystemExit(f"{name} answers {result}")

    def kernel(self, name: str) -> c.c_void_p:
        """A function of the module."""
        module, function = c.c_void_p(), c.c_void_p()
        self.do("cuModuleLoadData", c.byref(module), ptx())
        self.do("cuModuleGetFunction", c.byref(function), module, name.encode())
        return function

    def launch(self, function: c.c_void_p, stream: c.c_void_p | None = None, ns: int | None = None) -> int:
        """Launch one thread."""
        value = c.c_uint64(ns or 0)
        parameters = (c.c_void_p * 1)(c.addressof(value))
        if ns is not None and hasattr(self.cuda, "fakeRunFor"):
            self.cuda.fakeRunFor(function, c.c_uint64(ns))
        return self.ask("cuLaunchKernel", function, 1, 1, 1, 1, 1, 1, 0, stream, parameters if ns is not None else None, None)

    def free_mib(self) -> int:
        """What the driver shows as free."""
        free, total = c.c_size_t(), c.c_size_t()
        self.do("cuMemGetInfo_v2", c.byref(free), c.byref(total))
        return free.value >> 20


class Location(c.Structure):
    """CUmemLocation."""

    _fields_ = (("type", c.c_int), ("id", c.c_int))


class AllocationProp(c.Structure):
    """CUmemAllocationProp, its first fields and room for the rest."""

    _fields_ = (("type", c.c_int), ("handles", c.c_int), ("location", Location), ("rest", c.c_char * 64))


class PoolProps(c.Structure):
    """CUmemPoolProps likewise."""

    _fields_ = (("type", c.c_int), ("handles", c.c_int), ("location", Location), ("rest", c.c_char * 128))


class AllocNode(c.Structure):
    """CUDA_MEM_ALLOC_NODE_PARAMS: the pool's properties are 88 bytes."""

    _fields_ = (("type", c.c_int), ("handles", c.c_int), ("location", Location), ("pool_rest", c.c_char * 72), ("access", c.c_void_p),
                ("count", c.c_size_t), ("bytes", c.c_size_t), ("pointer", c.c_uint64))  # fmt: skip


class ArrayDescriptor(c.Structure):
    """CUDA_ARRAY_DESCRIPTOR."""

    _fields_ = (("width", c.c_size_t), ("height", c.c_size_t), ("format", c.c_int), ("channels", c.c_uint))


ON_DEVICE = Location(1, 0)
Free = Callable[[], None]


class Ways:
    """Each way to take memory: the driver's answer, and how it is given back."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver

    def alloc(self, mib: int) -> tuple[int, Free]:
        """Plain."""
        pointer = c.c_uint64()
        result = self.driver.ask("cuMemAlloc_v2", c.byref(pointer), c.c_size_t(mib * MIB))
        return result, lambda: self.driver.do("cuMemFree_v2", pointer)

    def pitch(self, mib: int) -> tuple[int, Free]:
        """In rows."""
        pointer, pitch = c.c_uint64(), c.c_size_t()
        result = self.driver.ask("cuMemAllocPitch_v2", c.byref(pointer), c.byref(pitch), c.c_size_t(MIB), c.c_size_t(mib), 4)
        return result, lambda: self.driver.do("cuMemFree_v2", pointer)

    def managed(self, mib: int) -> tuple[int, Free]:
        """Managed."""
        pointer = c.c_uint64()
        result = self.driver.ask("cuMemAllocManaged", c.byref(pointer), c.c_size_t(mib * MIB), 1)
        return result, lambda: self.driver.do("cuMemFree_v2", pointer)

    def stream(self, mib: int) -> tuple[int, Free]:
        """In the order of a stream."""
        pointer = c.c_uint64()
        result = self.driver.ask("cuMemAllocAsync", c.byref(pointer), c.c_size_t(mib * MIB), None)

        def free() -> None:
            self.driver.do("cuMemFreeAsync", pointer, None)
            self.driver.do("cuStreamSynchronize", None)

        return result, free

    def pool(self, mib: int) -> tuple[int, Free]:
        """From a pool of one's own."""
        pool, pointer, props = c.c_void_p(), c.c_uint64(), PoolProps(type=1, location=ON_DEVICE)
        self.driver.do("cuMemPoolCreate", c.byref(pool), c.byref(props))
        result = self.driver.ask("cuMemAllocFromPoolAsync", c.byref(pointer), c.c_size_t(mib * MIB), pool, None)

        def free() -> None:
            self.driver.do("cuMemFreeAsync", pointer, None)
            self.driver.do("cuStreamSynchronize", None)
            self.driver.do("cuMemPoolDestroy", pool)

        return result, free

    def block(self, mib: int) -> tuple[int, Free]:
        """Without an address, which lives by its mapping."""
        handle, address, prop = c.c_uint64(), c.c_uint64(), AllocationProp(type=1, location=ON_DEVICE)
        size = c.c_size_t(mib * MIB)
        result = self.driver.ask("cuMemCreate", c.byref(handle), size, c.byref(prop), c.c_ulonglong(0))
        if result == 0:
            self.driver.do("cuMemAddressReserve", c.byref(address), size, c.c_size_t(0), c.c_uint64(0), c.c_ulonglong(0))
            self.driver.do("cuMemMap", address, size, c.c_size_t(0), handle, c.c_ulonglong(0))
            self.driver.do("cuMemRelease", handle)
        return result, lambda: self.driver.do("cuMemUnmap", address, size)

    def array(self, mib: int) -> tuple[int, Free]:
        """An array of floats."""
        array, descriptor = c.c_void_p(), ArrayDescriptor(16384, mib * 4, 0x20, 4)
        result = self.driver.ask("cuArrayCreate_v2", c.byref(array), c.byref(descriptor))
        return result, lambda: self.driver.do("cuArrayDestroy", array)

    def graph(self, mib: int) -> tuple[int, Free]:
        """A graph that allocates, launched."""
        graph, node, executable = c.c_void_p(), c.c_void_p(), c.c_void_p()
        params = AllocNode(type=1, location=ON_DEVICE, bytes=mib * MIB)
        self.driver.do("cuGraphCreate", c.byref(graph), 0)
        self.driver.do("cuGraphAddMemAllocNode", c.byref(node), graph, None, c.c_size_t(0), c.byref(params))
        self.driver.do("cuGraphInstantiateWithFlags", c.byref(executable), graph, c.c_ulonglong(0))
        result = self.driver.ask("cuGraphLaunch", executable, None)

        def free() -> None:
            self.driver.do("cuStreamSynchronize", None)
            self.driver.ask("cuMemFree_v2", c.c_uint64(params.pointer))
            self.driver.do("cuGraphExecDestroy", executable)
            self.driver.do("cuDeviceGraphMemTrim", 0)

        return result, free


WAYS = ("alloc", "pitch", "managed", "stream", "pool", "block", "array", "graph")


def allocate(driver: Driver, way: str, limit_mib: int) -> dict[str, Any]:
    """Three fifths of the limit, as much again, and both given back."""
    ways, mib = Ways(driver), limit_mib * 3 // 5 // 4 * 4
    driver.enter()
    before = driver.free_mib()
    first, free_first = getattr(ways, way)(mib)
    after_first = driver.free_mib()
    second, free_second = getattr(ways, way)(mib)
    if second == 0:
        free_second()
    if first == 0:
        free_first()
    at_the_end = driver.free_mib()
    held = first == 0 and second == OUT_OF_MEMORY and before <= limit_mib and before - after_first >= mib and at_the_end >= before - 64
    return {"first": first, "second": second, "free_mib": [before, after_first, at_the_end], "held": held}


def cost_ns(pattern: str, number: int, seconds: float) -> int:
    """What launch ``number`` of a pattern takes."""
    return {
        "constant": 200_000,
        "chance": random.choice((50_000, 450_000)),  # noqa: S311  # a pattern, no secret
        "alternating": 350_000 if number % 2 else 100_000,
        "period": 400_000 if number % 64 == 0 else 20_000,
        "phases": 400_000 if seconds % 0.4 > 0.2 else 40_000,
    }[pattern]


def share(driver: Driver, pattern: str) -> dict[str, Any]:
    """Percent of the device's time that the kernels got, by the time that they were told to take."""
    driver.enter()
    function, busy_ns, number = driver.kernel("varies"), 0, 0
    started = time.monotonic()
    while (passed := time.monotonic() - started) < SECONDS:
        ns = cost_ns(pattern, number, passed)
        if driver.launch(function, ns=ns) != 0:
            raise SystemExit("a launch failed")
        busy_ns, number = busy_ns + ns, number + 1
    driver.do("cuCtxSynchronize")
    return {"percent": round(busy_ns / (time.monotonic() - started) / 1e7, 2), "launches": number}


def capture(driver: Driver, mode: int) -> dict[str, Any]:
    """Capture a kernel and an allocation while another stream allocates; what came of each step."""
    driver.enter()
    function, captured, other = driver.kernel("spin_20us"), c.c_void_p(), c.c_void_p()
    inside, beside, graph, executable = c.c_uint64(), c.c_uint64(), c.c_void_p(), c.c_void_p()
    driver.do("cuStreamCreate", c.byref(captured), 1)
    driver.do("cuStreamCreate", c.byref(other), 1)
    driver.do("cuMemAllocAsync", c.byref(beside), c.c_size_t(MIB), other)
    steps = [driver.ask("cuStreamBeginCapture_v2", captured, mode), driver.launch(function, captured)]
    steps.append(driver.ask("cuMemAllocAsync", c.byref(inside), c.c_size_t(8 * MIB), captured))
    steps.append(driver.ask("cuMemFreeAsync", inside, captured))
    steps.append(driver.ask("cuMemAllocAsync", c.byref(beside), c.c_size_t(8 * MIB), other))
    steps += [driver.launch(function, other) for _ in range(5)]
    steps.append(driver.ask("cuStreamEndCapture", captured, c.byref(graph)))
    if steps[-1] == 0:
        steps.append(driver.ask("cuGraphInstantiateWithFlags", c.byref(executable), graph, c.c_ulonglong(0)))
        steps.append(driver.ask("cuGraphLaunch", executable, captured))
        steps.append(driver.ask("cuStreamSynchronize", captured))
    return {"results": steps}


def speed(driver: Driver) -> dict[str, float]:
    """Launches of 20 microseconds, and pairs of allocate and free, each second."""
    driver.enter()
    function, ways, count = driver.kernel("spin_20us"), Ways(driver), 200 if DRY else 20000
    driver.launch(function)
    driver.do("cuCtxSynchronize")
    started = time.monotonic()
    for _ in range(count):
        driver.launch(function)
    driver.do("cuCtxSynchronize")
    launches = count / (time.monotonic() - started)
    started = time.monotonic()
    for _ in range(count // 10):
        ways.alloc(1)[1]()
    return {"launches_per_second": round(launches, 1), "pairs_per_second": round(count / 10 / (time.monotonic() - started), 1)}


def identity(driver: Driver) -> dict[str, Any]:
    """Which GPU and driver."""
    uuid, total, version = c.create_string_buffer(16), c.c_size_t(), c.c_int()
    name = c.create_string_buffer(96)
    driver.do("cuDeviceGetUuid_v2", uuid, 0)
    driver.do("cuDeviceTotalMem_v2", c.byref(total), 0)
    driver.do("cuDeviceGetName", name, 96, 0)
    driver.do("cuDriverGetVersion", c.byref(version))
    text = uuid.raw.hex()
    spelt = "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))
    return {"gpu": name.value.decode(), "uuid": f"GPU-{spelt}", "total_mib": total.value >> 20, "driver": version.value}


def torch_fill() -> dict[str, int]:
    """How much of the share PyTorch's allocator gets."""
    import torch  # only here

    held = []
    try:
        while True:
            held.append(torch.empty(64 * MIB, dtype=torch.uint8, device="cuda"))
    except torch.cuda.OutOfMemoryError:
        return {"held_mib": 64 * len(held)}


def main() -> None:
    """Do one piece of work."""
    work, *arguments = [argument for argument in sys.argv[1:] if argument != "--dry"]
    if work == "has_torch":
        import torch  # only here

        found: Any = {"torch": torch.__version__}
    elif work == "torch":
        found = torch_fill()
    elif work == "ways":
        found = WAYS
    else:
        driver = Driver()
        numbers = [int(argument) if argument.isdigit() else argument for argument in arguments]
        found = {"identity": identity, "allocate": allocate, "share": share, "capture": capture, "speed": speed}[work](driver, *numbers)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
