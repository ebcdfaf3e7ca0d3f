"""Settings of the scheduler, from ``HAMI_*`` variables."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from msgspec import Meta

from hami_devices.admission import PrivilegedPolicy
from hami_runtime.settings import ApiSettings
from hami_scheduler.series import CardMetrics

Port = Annotated[int, Meta(ge=0, le=65535)]


class PlacementMode(StrEnum):
    """How filter answers."""

    PINNED = "pinned"
    """With the best node alone, which is reserved."""
    RANKED = "ranked"
    """With all nodes that fit; kube-scheduler chooses among them, and the fit is made again at bind."""


class Settings(ApiSettings, frozen=True, kw_only=True):
    """Everything that can be set."""

    extender_host: Annotated[str, Meta(description="address that kube-scheduler calls")] = "127.0.0.1"
    extender_port: Annotated[int, Meta(description="its port; 0 means any free one", ge=0, le=65535)] = 0
    extender_certificate: Annotated[str, Meta(description="path of the extender's certificate; empty means plain HTTP, for loopback")] = ""
    extender_key: Annotated[str, Meta(description="path of its key")] = ""
    extender_client_ca: Annotated[str, Meta(description="authority that kube-scheduler's client certificate must be of")] = ""
    extender_server_name: Annotated[
        str, Meta(description="name in the certificates of all replicas' extenders; empty means the address that they are called at")
    ] = ""
    advertise_url: Annotated[str, Meta(description="where other replicas reach our extender; empty means its own address")] = ""
    leader_elect: Annotated[bool, Meta(description="share the work with replicas: one decides, the others forward to it")] = True
    lease_name: Annotated[str, Meta(description="name of the Lease for that", min_length=1)] = "hami-scheduler-extender"
    placement: Annotated[PlacementMode, Meta(description="answer filter with the best node, or rank all that fit")] = PlacementMode.PINNED
    node_policy: Annotated[str, Meta(description="node policy of pods that name none: binpack or spread")] = "binpack"
    device_policy: Annotated[str, Meta(description="device policy of pods that name none")] = "spread"
    preemption: Annotated[bool, Meta(description="evict pods of lower priority for a pod that fits nowhere, budgets respected")] = True
    volcano_host: Annotated[str, Meta(description="address of /volcano for Volcano's plugin; empty means no listener of its own")] = ""
    volcano_port: Annotated[int, Meta(description="its port; 0 means any free one", ge=0, le=65535)] = 0
    adopted_schedulers: Annotated[
        frozenset[str],
        Meta(description="schedulers that bind by themselves, as Volcano does: their pods get devices on the node they are on"),
    ] = frozenset()
    privileged: Annotated[PrivilegedPolicy, Meta(description="HAMI_PRIVILEGED of the webhook, for pods that other schedulers bind")] = (
        PrivilegedPolicy.CONTAINER
    )
    card_metrics: Annotated[
        CardMetrics, Meta(description="series of cards and shares: under both of their names, the new ones alone, or none")
    ] = CardMetrics.BOTH
    device_config: Annotated[str, Meta(description="path of the device configuration (the reference's YAML); empty means its defaults")] = (
        ""
    )
    bind_timeout_seconds: Annotated[float, Meta(description="how long bind may take; below the extender's httpTimeout", gt=0)] = 28.0
    hold_seconds: Annotated[float, Meta(description="longest life of a reservation whose pod kube-scheduler still holds", ge=30)] = 600.0
    gang_wait_seconds: Annotated[float, Meta(description="how long early pods of a group wait for the others at bind", ge=0, le=28)] = 25.0
    lock_expiry_seconds: Annotated[float, Meta(description="a node lock that has not changed for so long is taken over", gt=0)] = 300.0

    def __post_init__(self) -> None:
        """Refuse what would be unsafe or cannot work."""
        super().__post_init__()
        if bool(self.extender_certificate) != bool(self.extender_key):
            raise ValueError("HAMI_EXTENDER_CERTIFICATE and HAMI_EXTENDER_KEY: one is empty; accepted: both or none")
