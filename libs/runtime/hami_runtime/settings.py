"""Settings: a frozen Struct filled from ``HAMI_*`` variables, checked before anything is connected.

A field ``health_port`` is the variable ``HAMI_HEALTH_PORT``. Its meaning for ``--help`` is the ``description`` of its ``msgspec.Meta``; the
extra ``{"secret": True}`` keeps a value out of messages. All that is wrong is said at once. What cannot be known is refused, so that a
misspelt setting never silently counts as its default.
"""

from __future__ import annotations

import difflib
import os
import re
import sys
import typing
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta, Struct, inspect

S = TypeVar("S", bound=Struct)
PREFIX = "HAMI_"
_TESTS = "HAMI_TEST_"
_SERVICE_LINK = re.compile(r"_SERVICE_HOST$|_SERVICE_PORT(_[A-Z0-9_]+)?$|_PORT_\d+_(TCP|UDP|SCTP)(_PROTO|_PORT|_ADDR)?$")
_SERVICE_ADDRESS = re.compile(r"^(tcp|udp|sctp)://")


class SettingsError(ValueError):
    """Settings that are refused. The message names every variable that is wrong, what was given and what is accepted."""


class ProcessSettings(Struct, frozen=True, kw_only=True):
    """What every service's process has."""

    nats_url: Annotated[str, Meta(description="NATS servers, separated by commas")] = "nats://127.0.0.1:4222"
    nats_user: Annotated[str, Meta(description="user of the NATS account")] = ""
    nats_password: Annotated[str, Meta(description="its password", extra={"secret": True})] = ""
    nats_token: Annotated[str, Meta(description="NATS token, in place of user and password", extra={"secret": True})] = ""
    nats_token_file: Annotated[str, Meta(description="file with a NATS token, read again at every connection")] = ""
    nats_credentials: Annotated[str, Meta(description="path of a NATS .creds file")] = ""
    nats_ca: Annotated[str, Meta(description="path of the certificate authority of NATS; TLS is used where it is given")] = ""
    nats_certificate: Annotated[str, Meta(description="path of our own certificate for NATS")] = ""
    nats_key: Annotated[str, Meta(description="path of its key")] = ""
    nats_replicas: Annotated[
        int, Meta(description="on how many NATS servers each stream is kept, by whoever makes streams; 3 in a cluster of three", ge=1, le=5)
    ] = 1
    kubeconfig: Annotated[str, Meta(description="path of a kubeconfig; empty means the service account of the pod")] = ""
    kube_context: Annotated[str, Meta(description="context in the kubeconfig; empty means its current one")] = ""
    namespace: Annotated[str, Meta(description="namespace of our own leases, secrets and events", min_length=1)] = "kube-system"
    identity: Annotated[str, Meta(description="name of this replica; empty means the host's name and the process id")] = ""
    log_level: Annotated[typing.Literal["debug", "info", "warning", "error"], Meta(description="from which level on to log")] = "info"
    health_host: Annotated[str, Meta(description="address of health and metrics")] = "127.0.0.1"
    health_port: Annotated[int, Meta(description="port of health and metrics; 0 means any free one", ge=0, le=65535)] = 0
    ready_file: Annotated[str, Meta(description="file that gets the bound ports once the service listens")] = ""
    otlp_endpoint: Annotated[str, Meta(description="OTLP/HTTP endpoint for traces and metrics; empty means none")] = ""
    max_connections: Annotated[int, Meta(description="connections of one HTTP listener at once", ge=8)] = 512
    max_bodies_mib: Annotated[int, Meta(description="bodies of requests that one HTTP listener has in memory, in MiB", ge=16)] = 64
    grace_seconds: Annotated[float, Meta(description="how long to finish what is at hand when stopped", ge=0)] = 10.0


class ApiSettings(ProcessSettings, frozen=True, kw_only=True):
    """What a service has that answers people's ``/v1``."""

    api_host: Annotated[str, Meta(description="address of /v1, and of the web page where there is one")] = "127.0.0.1"
    api_port: Annotated[int, Meta(description="its port; 0 means any free one", ge=0, le=65535)] = 0
    api_open: Annotated[bool, Meta(description="answer /v1 without a token; only on a loopback address")] = False
    api_tls: Annotated[bool, Meta(description="serve /v1 over TLS, with a self-signed certificate; for the API server's service proxy")] = (
        False
    )

    def __post_init__(self) -> None:
        """Refuse what would be unsafe."""
        loopback = self.api_host in {"localhost", "::1"} or self.api_host.startswith("127.")
        if self.api_open and not loopback:
            raise ValueError(f"HAMI_API_OPEN: true with HAMI_API_HOST {self.api_host!r}; accepted: a loopback address, or false")


def load(settings_type: type[S], environ: Mapping[str, str], *, prefix: str = PREFIX) -> S:
    """Return the settings that ``environ`` has.

    Variables that Kubernetes puts there for Services (``HAMI_X_SERVICE_HOST``, ...) and ``HAMI_TEST_*`` are no settings.

    Raises:
        SettingsError: a variable is unknown (the nearest known one is named), missing, or its value is not accepted.
    """
    values: dict[str, Any] = {}
    wrong: list[str] = []
    fields = {prefix + field.name.upper(): field for field in _fields(settings_type)}
    for variable, text in sorted(environ.items()):
        if not variable.startswith(prefix):
            continue
        if (field := fields.get(variable)) is None:
            if not _not_ours(variable, text):
                wrong.append(_unknown(variable, fields))
            continue
        try:
            values[field.name] = _convert(text, field.type)
        except (msgspec.DecodeError, UnicodeError) as exc:
            wrong.append(_refused(variable, text, field, exc))
    wrong += [
        f"{variable} is missing: {field.meaning}" for variable, field in fields.items() if field.required and field.name not in values
    ]
    if wrong:
        raise SettingsError("; ".join(wrong))
    try:
        return settings_type(**values)
    except ValueError as exc:  # a Struct's own __post_init__
        raise SettingsError(str(exc)) from exc


def describe(settings_type: type[Struct], *, prefix: str = PREFIX) -> str:
    """Every setting with its meaning, what is accepted and its default, as text for ``--help``."""
    lines = []
    for field in _fields(settings_type):
        default = "required" if field.required else f"default {_shown(field.default)}"
        lines.append(f"  {prefix}{field.name.upper()}\n      {field.meaning}\n      {accepted(field.type)}; {default}")
    return "\n".join(lines)


def from_command_line(
    settings_type: type[S], *, program: str, about: str, arguments: Sequence[str] | None = None, environ: Mapping[str, str] | None = None
) -> S:
    """Return the settings of a process that takes no arguments but ``--help`` and ``--version``.

    Raises:
        SystemExit: 0 after one of these, 2 with a message if an argument or a setting is not accepted.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    if any(argument in {"-h", "--help"} for argument in arguments):
        sys.stdout.write(
            f"usage: {program} [--help | --version]\n\n{about}\n\nSettings, by environment variable:\n{describe(settings_type)}\n"
        )
        raise SystemExit(0)
    if "--version" in arguments:
        sys.stdout.write(f"{program} {metadata.version('hami')}\n")
        raise SystemExit(0)
    try:
        if arguments:
            raise SettingsError(f"{arguments[0]!r} is not accepted; accepted: --help, --version (settings are environment variables)")
        return load(settings_type, os.environ if environ is None else environ)
    except SettingsError as exc:
        sys.stderr.write(f"{program}: {exc}\n")
        raise SystemExit(2) from exc


def accepted(annotation: Any) -> str:
    """What values a type accepts, for a person."""
    return _accepted(inspect.type_info(annotation))


class _Field(Struct, frozen=True, kw_only=True):
    name: str
    type: Any
    meaning: str
    required: bool
    default: Any
    secret: bool


def _fields(settings_type: type[Struct]) -> Iterator[_Field]:
    info = inspect.type_info(settings_type)
    if not isinstance(info, inspect.StructType):
        raise TypeError(f"{settings_type!r} is no Struct")
    hints = typing.get_type_hints(settings_type, include_extras=True)
    for field in info.fields:
        metas = [each for each in getattr(hints[field.name], "__metadata__", ()) if isinstance(each, Meta)]
        default = field.default_factory() if field.default_factory is not msgspec.NODEFAULT else field.default
        yield _Field(
            name=field.name,
            type=hints[field.name],
            meaning=next((each.description for each in metas if each.description), field.name.replace("_", " ")),
            required=field.required,
            default=default,
            secret=any((each.extra or {}).get("secret") for each in metas),
        )


def _convert(text: str, annotation: Any) -> Any:
    info = inspect.type_info(annotation)
    while isinstance(info, inspect.Metadata):
        info = info.type
    match info:
        case inspect.ListType() | inspect.VarTupleType() | inspect.SetType() | inspect.FrozenSetType():
            return msgspec.convert([part.strip() for part in text.split(",") if part.strip()], annotation, strict=False)
        case inspect.DictType() | inspect.StructType():
            return msgspec.json.decode(text, type=annotation, strict=False)
        case inspect.StrType():
            return msgspec.convert(text, annotation)
        case _:
            return msgspec.convert(text.strip(), annotation, strict=False)


def _refused(variable: str, text: str, field: _Field, exc: Exception) -> str:
    given = "the value given (a secret)" if field.secret else repr(text)
    return f"{variable}: {given} is not accepted ({exc}); accepted: {accepted(field.type)}"


def _unknown(variable: str, known: Mapping[str, _Field]) -> str:
    nearest = difflib.get_close_matches(variable, known, n=1, cutoff=0.0)
    hint = f"; the nearest known one is {nearest[0]}" if nearest else ""
    return f"{variable} is no setting of this service{hint}"


def _not_ours(variable: str, text: str) -> bool:
    if variable.startswith(_TESTS) or _SERVICE_LINK.search(variable):
        return True
    return variable.endswith("_PORT") and bool(_SERVICE_ADDRESS.match(text))


def _shown(value: Any) -> str:
    if isinstance(value, tuple | list | frozenset | set):
        value = ",".join(str(each) for each in value)
    return str(value) if value not in ("", None) else "empty"


def _accepted(info: inspect.Type) -> str:
    match info:
        case inspect.Metadata():
            return _accepted(info.type)
        case inspect.BoolType():
            return "true or false"
        case inspect.IntType():
            return "a whole number" + _range(info)
        case inspect.FloatType():
            return "a number" + _range(info)
        case inspect.LiteralType():
            return f"one of {', '.join(str(value) for value in info.values)}"
        case inspect.EnumType():
            return f"one of {', '.join(str(member.value) for member in info.cls)}"
        case inspect.ListType() | inspect.VarTupleType() | inspect.SetType() | inspect.FrozenSetType():
            return f"a list, separated by commas, each {_accepted(info.item_type)}"
        case inspect.UnionType():
            return " or ".join(_accepted(each) for each in info.types if not isinstance(each, inspect.NoneType))
        case inspect.StrType():
            return f"text of the form {info.pattern}" if info.pattern else "text"
        case _:
            return "a JSON object"


def _range(info: inspect.IntType | inspect.FloatType) -> str:
    parts = [
        f"{word} {bound}"
        for word, bound in (("from", info.ge), ("above", info.gt), ("to", info.le), ("below", info.lt))
        if bound is not None
    ]
    return " " + " ".join(parts) if parts else ""
