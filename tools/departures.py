"""List, from the tests' own marks, where our result differs on purpose from the reference's: ``python tools/departures.py > docs/departures.md``."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
HEADER = """# Where we depart from the reference

Made by `make docs` from the tests that are marked `departs`; each holds our result. The first column is the topic of the worked
example for which HAMi has another result, where there is one; the number tells examples of one topic apart. `HAMi#1` is an issue or
a pull request of [Project-HAMi/HAMi](https://github.com/Project-HAMi/HAMi).

| example | what we do, and why | test |
|---|---|---|
"""


class Departure(NamedTuple):
    """One marked test."""

    example: str
    reason: str
    test: str


def _text(value: ast.expr, texts: dict[str, str]) -> str:
    """The text that an expression is: a constant, or the name of one."""
    if isinstance(value, ast.Constant):
        return str(value.value)
    return texts.get(value.id, "") if isinstance(value, ast.Name) else ""


def _marks(decorated: ast.FunctionDef | ast.AsyncFunctionDef, name: str, texts: dict[str, str]) -> Iterator[str]:
    calls: list[ast.expr] = list(decorated.decorator_list)
    for keyword in (node for decorator in decorated.decorator_list for node in ast.walk(decorator)):
        # Marks of single parameters: pytest.param(..., marks=pytest.mark.departs("..."))
        if isinstance(keyword, ast.keyword) and keyword.arg == "marks":
            calls += [node for node in ast.walk(keyword.value) if isinstance(node, ast.Call)]
    for call in calls:
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == name:
            yield from filter(None, (_text(argument, texts) for argument in call.args[:1]))


def _texts(tree: ast.Module, root: Path) -> dict[str, str]:
    """The names of a test module that stand for a text, its imports from other test modules among them."""
    texts = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            texts |= {target.id: node.value.value for target in node.targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tests."):
            path = root / f"{(node.module or '').replace('.', '/')}.py"
            if path.exists():
                found = _texts(ast.parse(path.read_text()), root)
                texts |= {alias.name: found[alias.name] for alias in node.names if alias.name in found}
    return texts


def _parameters(decorated: ast.FunctionDef | ast.AsyncFunctionDef, texts: dict[str, str]) -> Iterator[tuple[str, str]]:
    """Example and reason of single parameters: ``example("Cambricon 481", ..., departs="...")``."""
    for call in (node for decorator in decorated.decorator_list for node in ast.walk(decorator)):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "example" and call.args:
            yield from ((_text(call.args[0], texts), _text(each.value, texts)) for each in call.keywords if each.arg == "departs")


def departures(root: Path = ROOT) -> list[Departure]:
    """Every departure that a test marks, in a stable order."""
    found = []
    for path in sorted((root / "tests").rglob("test_*.py")):
        tree = ast.parse(path.read_text())
        texts = _texts(tree, root)
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                examples = ", ".join(dict.fromkeys(_marks(node, "example", texts)))
                test = f"{path.relative_to(root)}::{node.name}"
                reasons = dict.fromkeys(_marks(node, "departs", texts))
                found += [Departure(examples, reason, test) for reason in reasons]
                by_reason: dict[str, list[str]] = {}
                for name, reason in _parameters(node, texts):
                    if reason and reason not in reasons:
                        by_reason.setdefault(reason, []).append(name)
                found += [Departure(", ".join(names), reason, test) for reason, names in by_reason.items()]
    return sorted(found)


def _linked(text: str) -> str:
    """``text`` with its issues as links."""
    return re.sub(r"HAMi#(\d+)", r"[HAMi#\1](https://github.com/Project-HAMi/HAMi/issues/\1)", text)


def document(root: Path = ROOT) -> str:
    """The whole page."""
    rows = (f"| {d.example or '-'} | {_linked(d.reason.replace('|', '/'))} | `{d.test}` |\n" for d in departures(root))
    return HEADER + "".join(rows)


if __name__ == "__main__":
    print(document(), end="")
