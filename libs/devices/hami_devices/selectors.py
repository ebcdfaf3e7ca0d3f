"""Which devices a pod accepts: by model, by UUID, by mode. Pure.

A model is matched by whole words, in any case: ``A10`` is an ``NVIDIA A10`` and no ``NVIDIA A100``; ``RTX 4000`` is no ``RTX 4000 SFF``, since
some words make another model of the one before them. A glob is a glob only where one is written: ``A100*80GB``. (HAMi#1485)
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from hami_devices.model import Reason, Selectors
from hami_devices.vendor import SelectorKeys
from hami_protocol.devices import RegisteredDevice
from hami_protocol.errors import QuantityError

MAX_ITEMS: Final = 256
MAX_ITEM_CHARACTERS: Final = 253
_ANOTHER_MODEL: Final = frozenset({"ada", "d", "laptop", "max", "mobile", "sff", "super", "ti"})
"""Words that, after a model's name, make it another model."""
_WORDS: Final = re.compile(r"[^\s_/()-]+")
_GLOB: Final = frozenset("*?[")
_TRUE: Final = frozenset({"1", "t", "true"})
_FALSE: Final = frozenset({"0", "f", "false", ""})


@lru_cache(maxsize=8192)
def type_matches(pattern: str, model: str) -> bool:
    """Whether a device of type text ``model`` is what ``pattern`` asks for."""
    pattern, model = pattern.casefold(), model.casefold()
    if pattern == model:
        return True
    if not _GLOB.isdisjoint(pattern):
        return any(fnmatch.fnmatchcase(model[word.start() :], pattern) for word in _WORDS.finditer(model))
    wanted, words = _WORDS.findall(pattern), _WORDS.findall(model)
    if not wanted:
        return False
    for start in range(len(words) - len(wanted) + 1):
        end = start + len(wanted)
        if words[start:end] == wanted and (end == len(words) or words[end] not in _ANOTHER_MODEL):
            return True
    return False


def type_accepted(selectors: Selectors, model: str) -> bool:
    """Whether the model passes both lists."""
    if selectors.use_types and not any(type_matches(pattern, model) for pattern in selectors.use_types):
        return False
    return not any(type_matches(pattern, model) for pattern in selectors.avoid_types)


def mode_accepted(selectors: Selectors, mode: str) -> bool:
    """Whether the device's mode is one that the pod accepts."""
    return not selectors.modes or mode in selectors.modes


def uuid_accepted(selectors: Selectors, uuid: str) -> bool:
    """Whether the UUID passes both lists: exactly, and in its case."""
    return (not selectors.use_uuids or uuid in selectors.use_uuids) and uuid not in selectors.avoid_uuids


def misfit(selectors: Selectors, device: RegisteredDevice) -> Reason | None:
    """Why a device is not one that the pod accepts."""
    if not type_accepted(selectors, device.type) or not mode_accepted(selectors, device.mode):
        return Reason.TYPE
    return None if uuid_accepted(selectors, device.uuid) else Reason.UUID


def read_selectors(keys: SelectorKeys, annotations: Mapping[str, str]) -> Selectors:
    """What the pod's annotations accept. A blank list constrains nothing.

    Raises:
        QuantityError: a list of separators alone, one that is too long, two lists with nothing in common, or a truth value that is none.
    """
    use, use_too = _items(annotations, keys.use_uuids), _items(annotations, keys.use_uuids_too)
    if use and use_too:
        use = tuple(uuid for uuid in use if uuid in use_too)
        if not use:
            raise QuantityError(
                f"metadata.annotations[{keys.use_uuids_too}]", annotations[keys.use_uuids_too][:64], "one of the devices in both"
            )
    avoid = (*_items(annotations, keys.avoid_uuids), *_items(annotations, keys.avoid_uuids_too))
    return Selectors(
        use_types=_items(annotations, keys.use_types),
        avoid_types=_items(annotations, keys.avoid_types),
        use_uuids=use or use_too,
        avoid_uuids=tuple(dict.fromkeys(avoid)),
        modes=_items(annotations, keys.modes),
        numa_bind=_truth(annotations, keys.numa_bind),
    )


def _items(annotations: Mapping[str, str], key: str) -> tuple[str, ...]:
    text = annotations.get(key, "") if key else ""
    if not text.strip():
        return ()
    items = tuple(dict.fromkeys(item for part in text.split(",", MAX_ITEMS) if (item := part.strip())))
    if not items or text.count(",") >= MAX_ITEMS or any(len(item) > MAX_ITEM_CHARACTERS for item in items):
        accepted = f"names separated by commas, at most {MAX_ITEMS} of at most {MAX_ITEM_CHARACTERS} characters"
        raise QuantityError(f"metadata.annotations[{key}]", text[:64], accepted)
    return items


def _truth(annotations: Mapping[str, str], key: str) -> bool:
    text = annotations.get(key, "").strip().lower() if key else ""
    if text not in _TRUE and text not in _FALSE:
        raise QuantityError(f"metadata.annotations[{key}]", text[:64], "true or false")
    return text in _TRUE
