"""What the scheduler's settings accept, and what follows from them."""

from pathlib import Path

import pytest

from hami_devices.config import ConfigError
from hami_runtime.settings import SettingsError, load
from hami_scheduler import forwarding
from hami_scheduler.main import advertised_url, extender_tls, load_catalog
from hami_scheduler.settings import Settings


@pytest.mark.parametrize(
    ("environ", "names"),
    [
        pytest.param({"HAMI_PLACEMNT": "pinned"}, ["HAMI_PLACEMNT", "HAMI_PLACEMENT"], id="unknown"),
        pytest.param({"HAMI_PLACEMENT": "best"}, ["HAMI_PLACEMENT", "best", "pinned", "ranked"], id="unknown value"),
        pytest.param({"HAMI_BIND_TIMEOUT_SECONDS": "0"}, ["HAMI_BIND_TIMEOUT_SECONDS"], id="no time"),
        pytest.param({"HAMI_API_OPEN": "true", "HAMI_API_HOST": "0.0.0.0"}, ["HAMI_API_OPEN", "loopback"], id="open to everybody"),
        pytest.param({"HAMI_EXTENDER_CERTIFICATE": "c.pem"}, ["HAMI_EXTENDER_KEY"], id="half a certificate"),
    ],
)
def test_a_wrong_setting_is_refused_with_what_is_accepted(environ: dict[str, str], names: list[str]) -> None:
    with pytest.raises(SettingsError) as refused:
        load(Settings, environ)
    assert all(name in str(refused.value) for name in names)


@pytest.mark.parametrize(
    ("settings", "url"),
    [
        pytest.param(Settings(), "", id="a free port, which others cannot know"),
        pytest.param(Settings(extender_port=8080), "http://127.0.0.1:8080", id="its own address"),
        pytest.param(Settings(extender_port=8080, advertise_url="http://10.0.0.7:8080"), "http://10.0.0.7:8080", id="said"),
        pytest.param(
            Settings(extender_host="10.0.0.7", extender_port=443, extender_certificate="c", extender_key="k"),
            "https://10.0.0.7:443",
            id="tls",
        ),
    ],
)
def test_other_replicas_find_the_leader_by_its_identity(settings: Settings, url: str) -> None:
    assert advertised_url(settings) == url
    assert forwarding.address(forwarding.identity("s1", url)) == (url or None)


@pytest.mark.parametrize("identity", ["", "s1", "s1@", "s1@ftp://x", "someone@example.com"])
def test_an_identity_without_a_url_leads_nowhere(identity: str) -> None:
    assert forwarding.address(identity) is None


def test_plain_http_needs_no_certificate() -> None:
    assert extender_tls(Settings()) == (None, None)


def test_the_device_configuration_renames_resources_and_a_broken_one_stops_the_process(tmp_path: Path) -> None:
    file = tmp_path / "devices.yaml"
    file.write_text("nvidia:\n  resourceCountName: example.com/gpu\n")
    assert load_catalog(Settings(device_config=str(file))).managed_resources[0] == "example.com/gpu"
    file.write_text("[")
    with pytest.raises(ConfigError):
        load_catalog(Settings(device_config=str(file)))
    with pytest.raises(OSError, match="missing"):
        load_catalog(Settings(device_config=str(tmp_path / "missing")))
