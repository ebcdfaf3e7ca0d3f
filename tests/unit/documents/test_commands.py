"""How commands are read from a page, and what counts as their output."""

from __future__ import annotations

import re

import pytest

from tests.e2e.documents.pages import LANGUAGES, ROOT, Command, blocks, commands, matches, paths

PAGE = """\
# A page

```console
$ hami top
NODE     STATUS
node-1   ok
$ kubectl get pods \\
>   -o name

pod/x
```

```yaml
$ no: command
```
"""


def test_commands_are_read_with_what_is_shown_beneath_them() -> None:
    assert commands("p.md", PAGE) == [
        Command(page="p.md", line=4, text="hami top", shown=("NODE     STATUS", "node-1   ok")),
        Command(page="p.md", line=7, text="kubectl get pods \\\n  -o name", shown=("", "pod/x")),
    ]


def test_output_without_a_command_is_a_mistake_of_the_page() -> None:
    with pytest.raises(ValueError, match="output before any command"):
        commands("p.md", "```console\n$ one\n```\n```console\nx\n```\n")


@pytest.mark.parametrize(
    ("shown", "output", "does"),
    [
        (["NODE  STATUS"], "NODE     STATUS\n", True),
        (["NODE  STATUS"], "NODE     STATUS   MORE\n", False),
        (["NODE …"], "NODE     STATUS   MORE\n", True),
        (["a … c"], "a c\n", True),
        (["a…c"], "abbbc\n", True),
        (["a (…) c"], "a (b) c\n", True),
        (["a", "…", "d"], "a\nb\nc\n\nd\n", True),
        (["a", "…", "d"], "a\nd\n", True),
        (["a", "…", "d"], "a\nb\n", False),
        (["a", "…"], "a\nb\nc", True),
        (["a.c"], "abc\n", False),
        (["a"], "a\nb\n", False),
        (["", "a", ""], "a\n", True),
    ],
)
def test_what_counts_as_what_is_shown(shown: list[str], output: str, does: bool) -> None:
    assert matches(shown, output) is does


def test_every_block_of_every_page_says_what_it_is() -> None:
    """A block without a language could hold commands that nobody runs."""
    nameless = [
        f"{path.relative_to(ROOT)}:{block.line}: {block.language!r}"
        for path in paths()
        for block in blocks(path.read_text())
        if block.language not in LANGUAGES
    ]
    assert nameless == []


def test_every_make_target_that_a_page_names_is_there() -> None:
    targets = {folder: set(re.findall(r"^([a-z-]+):", (ROOT / folder / "Makefile").read_text(), re.MULTILINE)) for folder in ("", "cshim")}
    said = re.compile(r"(?:`|^\$ )make (?:-C (cshim) )?([a-z][a-z-]*)", re.MULTILINE)
    missing = [
        f"{path.relative_to(ROOT)}: make {match[0]}"
        for path in paths()
        for match in said.finditer(path.read_text())
        if match[2] not in targets[match[1] or ""]
    ]
    assert missing == []


def test_the_readme_shows_the_steps_of_the_demo() -> None:
    titles = re.findall(r'_title\(\s*"([^"]+)"', (ROOT / "rig/hami_rig/demo.py").read_text())
    shown = re.findall(r"^\d\. (.+)$", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert len(titles) > 5
    assert shown == titles
