"""What a server-side dry run of ``kubectl apply`` refused, object by object, read from what kubectl printed. Pure.

kubectl prints the patch that was refused, and with it whatever a Secret holds; none of that is passed on.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from msgspec import Struct

from hami_cli.installation import Object, Ref, ref

_BEGIN: Final = re.compile(
    r"^(?=Error from server|The \w+ \"|error:|Error:|\[?(?:ensure CRDs.*, )?resource mapping not found)", re.MULTILINE
)
_WHERE: Final = re.compile(r'Kind=(?P<kind>\w+)"\nName: "(?P<name>[^"]*)", Namespace: "(?P<namespace>[^"]*)"')
_TEXT: Final = re.compile(r'(?:error when (?:patching|creating)|from server for:?) "[^"]*": (?P<text>.*)\Z', re.DOTALL)
_SUBJECT: Final = re.compile(r'(?:The )?(?P<kind>\w+)(?:\.[\w.]+)? "(?P<name>[^"]+)" is invalid: ', re.DOTALL)
_IMMUTABLE: Final = re.compile(
    r"field is immutable|may not change once set|updates to \w+ spec for fields other than|cannot change roleRef|is immutable when"
)
_NO_DRY_RUN: Final = re.compile(r"does not support dry run")
_VALUE: Final = re.compile(r"Invalid value: (?:(?P<open>[\[{]).{80,}?[\]}](?=: )|\"[^\"]{80,}\")", re.DOTALL)
_MOST_TEXT: Final = 600


class Refused(Struct, frozen=True, kw_only=True):
    """One object that the API server does not take as it is."""

    object: Ref | None
    """None where kubectl's text does not tell which."""
    text: str
    immutable: bool = False
    """It is a change that no update can make: the object has to be deleted and created anew."""
    exists: bool = False
    """It was to be created, is accepted as it is, and there is one of that name."""

    def __str__(self) -> str:
        """For people."""
        return self.text if self.object is None or self.object.name in self.text else f"{self.object}: {self.text}"


def refused(errors: str, objects: tuple[Object, ...]) -> list[Refused]:
    """What kubectl's standard error says of ``objects``.

    A webhook of somebody else's that cannot be called in a dry run refuses nothing; its objects are left out.
    """
    blocks = [block.strip() for block in _BEGIN.split(errors) if block.strip()]
    return [_refused(block, objects) for block in blocks if not _NO_DRY_RUN.search(block) and not block.startswith("Warning:")]


def _refused(block: str, objects: tuple[Object, ...]) -> Refused:
    said = _TEXT.search(block)
    text = said["text"] if said else block
    shortened = _VALUE.sub("Invalid value: …", text)[:_MOST_TEXT]
    return Refused(
        object=_object(block, text, objects),
        text=" ".join(shortened.split()),
        immutable=bool(_IMMUTABLE.search(text)),
        exists="(AlreadyExists)" in block,
    )


def _object(block: str, text: str, objects: tuple[Object, ...]) -> Ref | None:
    for match in _matches(block, text):
        named = match.groupdict()
        for each in map(ref, objects):
            if (each.kind, each.name) == (named["kind"], named["name"]) and named.get("namespace", each.namespace) == each.namespace:
                return each
    return None


def _matches(block: str, text: str) -> Iterator[re.Match[str]]:
    if where := _WHERE.search(block):
        yield where
    if subject := _SUBJECT.match(text):
        yield subject
