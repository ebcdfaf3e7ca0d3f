"""What the command line says, and what it refuses."""

from __future__ import annotations

import typing
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from hami_cli.event_line import event_line
from hami_cli.main import app
from hami_cli.places import place
from hami_protocol import events
from hami_protocol.devices import ContainerKind, ContainerShares, DeviceShare, PodRef, VendorAssignment

POD = PodRef(namespace="default", name="p", uid="u")
SHARE = DeviceShare(uuid="GPU-a", type="NVIDIA", memory_mib=3000, cores=25)
ASSIGNMENT = VendorAssignment(
    vendor="NVIDIA",
    containers=(
        ContainerShares(container="plain", kind=ContainerKind.INIT),
        ContainerShares(container="main", kind=ContainerKind.APP, shares=(SHARE,)),
    ),
)


def test_a_grant_names_pod_node_container_share_and_card() -> None:
    event = events.PodAllocating(pod=POD, node="n1", assignments=(ASSIGNMENT,), bind_time_seconds=1)
    assert event_line(event) == "allocating  default/p to n1: main 3000 MiB 25 % of GPU-a"


@pytest.mark.parametrize("kind", typing.get_args(events.Event), ids=lambda kind: kind.__name__)
def test_every_kind_of_event_has_its_line(kind: type[events.Event]) -> None:
    values = {"pod": POD, "node": "n1", "assignments": (), "devices": (), "reasons": {}, "containers": ()}
    fields = {field.encode_name: field for field in msgspec.structs.fields(kind) if field.required}
    built = {
        name: values.get(name, {"int": 1, "bool": True}.get(getattr(field.type, "__name__", ""), 1 if "int" in str(field.type) else "x"))
        for name, field in fields.items()
    }
    event = kind(**{msgspec_name(kind, name): value for name, value in built.items()})
    assert "\n" not in event_line(event)


def msgspec_name(kind: type[events.Event], encoded: str) -> str:
    return next(field.name for field in msgspec.structs.fields(kind) if field.encode_name == encoded)


def test_help_shows_every_command_with_what_it_is_for() -> None:
    for arguments in (["--help"], ["rig", "--help"], ["rig", "up", "--help"], ["events", "--help"], ["explain", "--help"]):
        result = CliRunner().invoke(app, arguments)
        assert result.exit_code == 0, result.output
    assert "Start a rig" in CliRunner().invoke(app, ["rig", "up", "--help"]).output


def test_an_age_that_makes_no_sense_is_refused_with_what_is_accepted() -> None:
    result = CliRunner().invoke(app, ["events", "--since", "yesterday"])
    assert result.exit_code == 2
    assert "30s, 10m, 2h or 1d" in " ".join(result.output.replace("│", " ").split())


@pytest.mark.parametrize(
    ("given", "content", "found"),
    [
        ("nats://mine", b'{"nats_url": "nats://rig"}', "nats://mine"),
        ("", b'{"nats_url": "nats://rig"}', "nats://rig"),
        ("", b"torn", "nats://default"),
        ("", None, "nats://default"),
    ],
)
def test_kubeconfig_alone_leads_to_a_rigs_services(tmp_path: Path, given: str, content: bytes | None, found: str) -> None:
    if content is not None:
        (tmp_path / "rig.json").write_bytes(content)
    assert place("nats_url", given, "nats://default", environ={"KUBECONFIG": str(tmp_path / "kubeconfig")}) == found


def test_a_scheduler_that_does_not_answer_is_named() -> None:
    result = CliRunner().invoke(app, ["explain", "p", "--url", "http://127.0.0.1:1"])
    assert result.exit_code == 1
    assert "hami explain: http://127.0.0.1:1" in result.output
