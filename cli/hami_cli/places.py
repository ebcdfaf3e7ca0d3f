"""Where the services are, when nobody says: a rig writes it beside its kubeconfig, so that ``KUBECONFIG`` alone leads to all of it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from hami_runtime.kube.accounts import SYSTEM_NAMESPACE

FILE_NAME = "rig.json"
REGISTRY_URL = f"service://{SYSTEM_NAMESPACE}/hami-registry:api"
SCHEDULER_URL = f"service://{SYSTEM_NAMESPACE}/hami-scheduler:api"

KubeconfigOption = Annotated[
    str,
    typer.Option("--kubeconfig", envvar="KUBECONFIG", help="The cluster; default: ~/.kube/config, or the pod's own.", show_default=False),
]
ContextOption = Annotated[str, typer.Option("--context", help="Context in the kubeconfig; default: its current one.", show_default=False)]
NatsOption = Annotated[
    str,
    typer.Option(
        "--nats",
        envvar=["NATS_URL", "HAMI_NATS_URL"],
        help="Where the bus is, to read it there; default: the rig's, else the registry is asked.",
        show_default=False,
    ),
]
RegistryOption = Annotated[
    str,
    typer.Option(
        "--registry",
        envvar="HAMI_REGISTRY_URL",
        help="Where the registry says what is on the bus: a URL, or service://NAMESPACE/NAME:PORT through the API server; default: the latter.",
        show_default=False,
    ),
]
SchedulerOption = Annotated[
    str,
    typer.Option(
        "--url",
        envvar="HAMI_SCHEDULER_URL",
        help="Where the scheduler answers /v1: a URL, or service://NAMESPACE/NAME:PORT through the API server; default: the rig's, or the latter.",
        show_default=False,
    ),
]
TokenOption = Annotated[
    str,
    typer.Option(
        "--token", envvar="HAMI_TOKEN", help="Bearer token, where one is asked for; default: the kubeconfig's.", show_default=False
    ),
]
DeviceConfigOption = Annotated[
    str,
    typer.Option("--device-config", envvar="HAMI_DEVICE_CONFIG", help="The cluster's device configuration; default: the usual names."),
]
NamespaceOption = Annotated[
    str, typer.Option("--namespace", "-n", help="The pod's namespace; default: the context's, else default.", show_default=False)
]


def place(key: str, given: str, default: str, *, kubeconfig: str = "") -> str:
    """What the user gave, else what the rig that ``kubeconfig`` is of says of ``key``, else ``default``."""
    if given:
        return given
    try:
        places = msgspec.json.decode((Path(kubeconfig).parent / FILE_NAME).read_bytes(), type=dict[str, str | int])
    except (OSError, msgspec.DecodeError):
        return default
    return str(places.get(key, default))


def kubeconfig_path(given: str) -> str | None:
    """The kubeconfig to read; None for the service account of the pod that we run in."""
    usual = Path.home() / ".kube" / "config"
    return given or (str(usual) if usual.exists() else None)
