from enum import StrEnum
from importlib import metadata
from typing import Annotated

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Meta, Struct, field

from hami_runtime import settings
from hami_runtime.settings import ProcessSettings, SettingsError


class Mode(StrEnum):
    PINNED = "pinned"
    RANKED = "ranked"


class Settings(ProcessSettings, frozen=True, kw_only=True):
    node_name: Annotated[str, Meta(description="which node this is", min_length=1)]
    mode: Mode = Mode.PINNED
    percent: Annotated[int, Meta(ge=0, le=100)] = 50
    names: tuple[str, ...] = ()
    careful: bool = True
    period_seconds: float = 30.0
    profile: str | None = None
    weights: dict[str, int] = field(default_factory=dict)


NODE = {"HAMI_NODE_NAME": "n1"}


def test_defaults_hold_where_nothing_is_set() -> None:
    assert settings.load(Settings, NODE) == Settings(node_name="n1")


def test_every_kind_of_value_is_read() -> None:
    environ = NODE | {
        "HAMI_MODE": "ranked",
        "HAMI_PERCENT": "7",
        "HAMI_NAMES": "a, b,,c",
        "HAMI_CAREFUL": "false",
        "HAMI_PERIOD_SECONDS": "1.5",
        "HAMI_PROFILE": "7",
        "HAMI_WEIGHTS": '{"numa": 3}',
        "PATH": "/bin",
    }
    assert settings.load(Settings, environ) == Settings(
        node_name="n1",
        mode=Mode.RANKED,
        percent=7,
        names=("a", "b", "c"),
        careful=False,
        period_seconds=1.5,
        profile="7",
        weights={"numa": 3},
    )


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("HAMI_PERCENT", "101", r"HAMI_PERCENT: '101' .*accepted: a whole number from 0 to 100"),
        ("HAMI_PERCENT", "many", r"HAMI_PERCENT: 'many' .*accepted: a whole number"),
        ("HAMI_MODE", "best", r"HAMI_MODE: 'best' .*accepted: one of pinned, ranked"),
        ("HAMI_CAREFUL", "maybe", r"HAMI_CAREFUL: 'maybe' .*accepted: true or false"),
        ("HAMI_LOG_LEVEL", "loud", r"HAMI_LOG_LEVEL: 'loud' .*accepted: one of debug, error, info, warning"),
        ("HAMI_WEIGHTS", "numa=3", r"HAMI_WEIGHTS: 'numa=3' .*accepted: a JSON object"),
        ("HAMI_PERCNET", "5", "HAMI_PERCNET is no setting of this service; the nearest known one is HAMI_PERCENT"),
        ("HAMI_NODE_NAME", "", "HAMI_NODE_NAME: '' is not accepted"),
    ],
)
def test_a_wrong_value_names_variable_value_and_what_is_accepted(variable: str, value: str, said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        settings.load(Settings, NODE | {variable: value})


def test_all_that_is_wrong_is_said_at_once() -> None:
    with pytest.raises(SettingsError, match=r"HAMI_PERCENT.*; HAMI_PERCNET.*; HAMI_NODE_NAME is missing: which node this is"):
        settings.load(Settings, {"HAMI_PERCENT": "x", "HAMI_PERCNET": "5"})


def test_a_secret_is_not_repeated() -> None:
    class Secretive(Struct, frozen=True, kw_only=True):
        pin: Annotated[int, Meta(extra={"secret": True})] = 0

    with pytest.raises(SettingsError) as caught:
        settings.load(Secretive, {"HAMI_PIN": "12ab"})
    assert "12ab" not in str(caught.value)


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("HAMI_SCHEDULER_SERVICE_HOST", "10.0.0.1"),
        ("HAMI_SCHEDULER_SERVICE_PORT", "443"),
        ("HAMI_SCHEDULER_SERVICE_PORT_HTTP_API", "443"),
        ("HAMI_SCHEDULER_PORT", "tcp://10.0.0.1:443"),
        ("HAMI_SCHEDULER_PORT_443_TCP_ADDR", "10.0.0.1"),
        ("HAMI_TEST_KUBECONFIG", "/k"),
    ],
)
def test_what_kubernetes_sets_for_services_is_left_alone(variable: str, value: str) -> None:
    assert settings.load(Settings, NODE | {variable: value}) == Settings(node_name="n1")


def test_help_shows_every_setting_with_meaning_and_default(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        settings.from_command_line(Settings, program="hami-x", about="Does x.", arguments=["--help"], environ={})
    assert caught.value.code == 0
    text = capsys.readouterr().out
    for name in Settings.__struct_fields__:
        assert f"HAMI_{name.upper()}\n" in text
    assert "which node this is" in text
    assert "a whole number from 0 to 100; default 50" in text


@pytest.mark.parametrize("arguments", [["--version"], ["--port=1", "--version"]])
def test_a_process_prints_its_version_whatever_else_is_wrong(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        settings.from_command_line(Settings, program="hami-x", about="Does x.", arguments=arguments, environ={})
    assert caught.value.code == 0
    assert capsys.readouterr().out == f"hami-x {metadata.version('hami')}\n"


@pytest.mark.parametrize(("arguments", "environ"), [(["--port=1"], NODE), ([], {})])
def test_a_process_with_wrong_settings_ends_with_2_and_says_why(
    arguments: list[str], environ: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        settings.from_command_line(Settings, program="hami-x", about="Does x.", arguments=arguments, environ=environ)
    assert caught.value.code == 2
    assert capsys.readouterr().err.startswith("hami-x: ")


@given(st.dictionaries(st.sampled_from([f"HAMI_{name.upper()}" for name in Settings.__struct_fields__]), st.text(max_size=20)))
def test_any_text_is_read_or_refused(environ: dict[str, str]) -> None:
    try:
        loaded = settings.load(Settings, NODE | environ)
    except SettingsError:
        return
    assert 0 <= loaded.percent <= 100
