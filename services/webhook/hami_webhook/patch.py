"""What the vendors want changed on a pod, as the fewest JSON Patch operations. Pure.

Fields that this version of ours does not know are never touched: operations name only what they add or replace.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final

from hami_devices.admission import AddEnv, Mutation, SetAnnotation, SetLimit, SetRuntimeClass, SetSeccomp
from hami_webhook.wire import Operation

_STEP: Final = re.compile(r"([A-Za-z]+)(?:\[(\d+)\])?")
Path = tuple[str | int, ...]


class Patch:
    """Operations on one pod. The pod given is changed along, so that each operation fits on what those before it have left."""

    def __init__(self, pod: dict[str, Any]) -> None:
        self._pod = pod
        self._operations: list[Operation] = []

    @property
    def operations(self) -> tuple[Operation, ...]:
        """What has been asked so far, as far as it changes anything."""
        return tuple(self._operations)

    def apply(self, mutations: Iterable[Mutation]) -> None:
        """Make ``mutations`` operations."""
        for mutation in mutations:
            match mutation:
                case SetLimit(path=path, resource=resource, value=value):
                    self.set((*_steps(path), "resources", "limits", resource), value)
                    if resource in (self._at(_steps(path)).get("resources", {}).get("requests") or {}):
                        self.set((*_steps(path), "resources", "requests", resource), value)
                case AddEnv(path=path, name=name, value=value):
                    self.append((*_steps(path), "env"), {"name": name, "value": value})
                case SetRuntimeClass(name=name):
                    self.set(("spec", "runtimeClassName"), name)
                case SetSeccomp(path=path):
                    self.set((*_steps(path), "securityContext", "seccompProfile"), {"type": "RuntimeDefault"})
                case SetAnnotation(name=name, value=value):
                    self.set(("metadata", "annotations", name), value)

    def set(self, path: Path, value: Any) -> None:
        """Set what is at ``path``, making the objects on the way where they are missing."""
        *parents, last = path
        found: Any = self._pod
        for depth, step in enumerate(parents):
            inside = found[step] if isinstance(step, int) else found.get(step)
            if inside is None:
                for missing in reversed(path[depth + 1 :]):
                    value = {missing: value}
                found[step] = value
                self._add("add", path[: depth + 1], value)
                return
            found = inside
        if found.get(last) != value:
            self._add("replace" if last in found else "add", path, value)
            found[last] = value

    def append(self, path: Path, item: Any) -> None:
        """Append to the list at ``path``, making it where it is missing."""
        *parents, last = path
        found: Any = self._pod
        for step in parents:
            found = found[step]
        if found.get(last):
            found[last].append(item)
            self._add("add", (*path, "-"), item)
        else:
            self._add("replace" if last in found else "add", path, [item])
            found[last] = [item]

    def _at(self, path: Path) -> Any:
        found: Any = self._pod
        for step in path:
            found = found[step]
        return found

    def _add(self, op: str, path: Path, value: Any) -> None:
        pointer = "".join("/" + str(step).replace("~", "~0").replace("/", "~1") for step in path)
        # A list that is appended to later must not grow inside an operation that was made before.
        self._operations.append(Operation(op=op, path=pointer, value=list(value) if isinstance(value, list) else value))


def _steps(path: str) -> Path:
    """``spec.containers[0]`` as steps."""
    steps: list[str | int] = []
    for name, place in _STEP.findall(path):
        steps.append(name)
        if place:
            steps.append(int(place))
    return tuple(steps)
