"""Merges the variants of one object into one template: what all have is plain, what some have stands in conditions. Pure."""

from __future__ import annotations

import graphlib
import itertools
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from tools.chart.variants import Choice

_PLAIN_LINES: Final = 2
_BARE: Final = re.compile(r"[A-Za-z/][A-Za-z0-9/._-]*")
_WORDS: Final = frozenset({"true", "false", "null", "yes", "no", "on", "off", "y", "n"})
"""What YAML reads as something else than a string."""


class Inline(NamedTuple):
    """An expression in the place of a scalar."""

    expression: str


class Tree(NamedTuple):
    """An expression whose value stands in the place of an object or a list."""

    expression: str


class With(NamedTuple):
    """An expression whose value is a field, or further items of a list, if it is not empty."""

    expression: str


class _Absent:
    """A field that a variant does not have."""


ABSENT: Final = _Absent()
Variants = Mapping[Choice, Any]


def template(variants: Variants) -> str:
    """The template of one object, with its document marker; variants that are None do not exist."""
    there = {choice: body for choice, body in variants.items() if body is not None}
    lines = ["---", *_value(there, 0)]
    if len(there) == len(variants):
        return "\n".join(lines) + "\n"
    return "\n".join([f"{{{{- if {condition(there, variants)} }}}}", *lines, "{{- end }}"]) + "\n"


def condition(chosen: Iterable[Choice], universe: Iterable[Choice]) -> str:
    """An expression that holds for the choices of ``chosen`` and no others of ``universe``."""
    wanted, every = set(chosen), set(universe)
    names = sorted(set().union(*every))
    terms: list[tuple[tuple[str, bool], ...]] = []
    for count in range(1, len(names) + 1):
        for picked in itertools.combinations(names, count):
            terms += [tuple(zip(picked, signs, strict=True)) for signs in itertools.product((True, False), repeat=count)]
    fitting = [(term, {each for each in wanted if _holds(term, each)}) for term in terms]
    fitting = [(term, covered) for term, covered in fitting if covered and not any(_holds(term, each) for each in every - wanted)]
    taken, left = [], set(wanted)
    while left:
        term, covered = max(fitting, key=lambda each: (len(each[1] & left), -len(each[0]), _positive(each[0])))
        taken.append(_words(term))
        left -= covered
    return taken[0] if len(taken) == 1 else f"or {' '.join(f'({each})' for each in taken)}"


def name(component: str) -> str:
    """The value that takes a component."""
    words = component.rpartition("/")[2].split("-")
    camel = words[0] + "".join(word.capitalize() for word in words[1:])
    return f"vendorPlugins.{camel}" if "/" in component else f"components.{camel}"


def _holds(term: tuple[tuple[str, bool], ...], choice: Choice) -> bool:
    return all((component in choice) is sign for component, sign in term)


def _positive(term: tuple[tuple[str, bool], ...]) -> int:
    return sum(sign for _, sign in term)


def _words(term: tuple[tuple[str, bool], ...]) -> str:
    literals = [f".Values.{name(component)}" if sign else f"not .Values.{name(component)}" for component, sign in term]
    if len(literals) == 1:
        return literals[0]
    return f"and {' '.join(each if each.startswith('.') else f'({each})' for each in literals)}"


def _value(variants: Variants, indent: int) -> Iterator[str]:
    """The lines of an object or a list, or of both where they differ."""
    values = list(variants.values())
    if all(isinstance(each, dict) and each for each in values):
        yield from _fields(variants, indent)
    elif all(isinstance(each, list) and each for each in values) and (order := _merged(values)) is not None:
        yield from _items(variants, order, indent)
    else:
        yield from _chain(variants, lambda value: _plain(value, indent))


def _fields(variants: Variants, indent: int) -> Iterator[str]:
    blocks = []
    for key in dict.fromkeys(key for body in variants.values() for key in body):
        there = {choice: body[key] for choice, body in variants.items() if key in body}
        blocks.append((condition(there, variants) if len(there) < len(variants) else "", list(_field(key, there, indent))))
    yield from _guarded(blocks)


def _guarded(blocks: Iterable[tuple[str, list[str]]]) -> Iterator[str]:
    """Blocks of lines, each under its condition; neighbours under the same condition share it."""
    for guard, group in itertools.groupby(blocks, key=lambda block: block[0]):
        lines = [line for _, block in group for line in block]
        yield from [f"{{{{- if {guard} }}}}", *lines, "{{- end }}"] if guard else lines


def _field(key: str, variants: Variants, indent: int) -> Iterator[str]:
    pad, values = " " * indent, list(variants.values())
    lead = f"{pad}{_scalar(key)}:"
    if all(each == values[0] for each in values[1:]):
        yield from _assigned(lead, values[0], indent)
    elif all(isinstance(each, dict) and each for each in values):
        yield lead
        yield from _fields(variants, indent + 2)
    elif all(isinstance(each, list) and each for each in values) and (order := _merged(values)) is not None:
        yield lead
        yield from _items(variants, order, indent + 2)
    else:
        yield from _chain(variants, lambda value: _assigned(lead, value, indent))


def _items(variants: Variants, order: Sequence[Any], indent: int) -> Iterator[str]:
    """The items of lists: each in its place, those that only some lists have in conditions."""
    blocks = []
    for identity in order:
        there = {choice: item for choice, body in variants.items() for item in body if _identity(item) == identity}
        blocks.append((condition(there, variants) if len(there) < len(variants) else "", list(_merged_item(there, indent))))
    yield from _guarded(blocks)


def _merged_item(variants: Variants, indent: int) -> Iterator[str]:
    """One item of a list: merged where its first field is in every variant and has one value, else each variant whole."""
    if all(isinstance(each, dict) and each for each in variants.values()):
        lines = list(_fields(variants, indent + 2))
        if not lines[0].startswith("{{"):
            yield " " * indent + "- " + lines[0].lstrip()
            yield from lines[1:]
            return
    yield from _chain(variants, lambda value: _item(value, indent))


def _chain(variants: Variants, lines: Any) -> Iterator[str]:
    """One of several values."""
    groups: list[tuple[Any, list[Choice]]] = []
    for choice, value in variants.items():
        same = next((chosen for other, chosen in groups if other == value), None)
        if same is None:
            groups.append((value, [choice]))
        else:
            same.append(choice)
    if len(groups) == 1:
        yield from lines(groups[0][0])
        return
    groups.sort(key=lambda group: -max(map(len, group[1])))
    for number, (value, chosen) in enumerate(groups):
        last = number == len(groups) - 1
        left = [choice for _, later in groups[number:] for choice in later]
        yield "{{- else }}" if last else f"{{{{- {'else ' if number else ''}if {condition(chosen, left)} }}}}"
        yield from lines(value)
    yield "{{- end }}"


def _merged(lists: Sequence[list[Any]]) -> list[Any] | None:
    """One order of all items that agrees with every list; None where there is none, or where items cannot be told apart."""
    identities = [[_identity(each) for each in items] for items in lists]
    if any(len(set(map(repr, found))) != len(found) for found in identities):
        return None
    seen = {repr(each): each for found in identities for each in found}
    first_seen = {key: place for place, key in enumerate(seen)}
    sorter = graphlib.TopologicalSorter[str](dict.fromkeys(seen, ()))
    for found in identities:
        for before, after in itertools.pairwise(map(repr, found)):
            sorter.add(after, before)
    try:
        sorter.prepare()
    except graphlib.CycleError:
        return None
    order, ready = [], list[str]()
    while sorter.is_active():
        ready = sorted([*ready, *sorter.get_ready()], key=first_seen.__getitem__)
        order.append(ready.pop(0))
        sorter.done(order[-1])
    return [seen[key] for key in order]


def _identity(item: Any) -> Any:
    if isinstance(item, dict):
        return next(
            (f"{key}={item[key]}" for key in ("name", "mountPath", "containerPort", "topologyKey") if isinstance(item.get(key), str)), item
        )
    return item


def _assigned(lead: str, value: Any, indent: int) -> Iterator[str]:
    """A field of one value."""
    if isinstance(value, With):
        yield f"{{{{- with {value.expression} }}}}"
        yield f"{lead} {{{{- toYaml . | nindent {indent + 2} }}}}"
        yield "{{- end }}"
    elif isinstance(value, Tree):
        yield f"{lead} {{{{- toYaml {value.expression} | nindent {indent + 2} }}}}"
    elif isinstance(value, Inline):
        yield f"{lead} {{{{ {value.expression} }}}}"
    elif isinstance(value, dict | list) and value:
        yield lead
        yield from _plain(value, indent + 2)
    elif isinstance(value, str) and _is_block(value):
        yield f"{lead} {_block_header(value)}"
        yield from (_escaped(f"{' ' * (indent + 2)}{line}" if line else "") for line in value.rstrip("\n").split("\n"))
    else:
        yield f"{lead} {_scalar(value)}"


def _plain(value: Any, indent: int) -> Iterator[str]:
    """An object or a list of one value."""
    pad = " " * indent
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from _assigned(f"{pad}{_scalar(key)}:", inner, indent)
    elif isinstance(value, list) and value:
        for item in value:
            yield from _item(item, indent)
    else:
        yield f"{pad}{_scalar(value)}"


def _item(item: Any, indent: int) -> Iterator[str]:
    pad = " " * indent
    if isinstance(item, With):
        yield f"{{{{- with {item.expression} }}}}"
        yield f"{{{{- toYaml . | nindent {indent} }}}}"
        yield "{{- end }}"
    elif isinstance(item, dict) and item:
        lines = list(_plain(item, indent + 2))
        yield f"{pad}- {lines[0].lstrip()}"
        yield from lines[1:]
    elif isinstance(item, list):
        yield f"{pad}- {_escaped(json.dumps(item))}"
    else:
        yield f"{pad}- {_scalar(item)}"


def _scalar(value: Any) -> str:
    if isinstance(value, Inline):
        return f"{{{{ {value.expression} }}}}"
    if isinstance(value, str) and _BARE.fullmatch(value) and value.lower() not in _WORDS:
        return value
    return _escaped(json.dumps(value, ensure_ascii=False))


def _is_block(text: str) -> bool:
    return text.count("\n") >= _PLAIN_LINES and not text.startswith((" ", "\n")) and "\t" not in text and "\r" not in text


def _block_header(text: str) -> str:
    return "|" if text.endswith("\n") and not text.endswith("\n\n") else "|-" if not text.endswith("\n") else "|+"


def _escaped(text: str) -> str:
    """``text`` as it is: what looks like an action is not one."""
    return text.replace("{{", '{{ "{{" }}')
