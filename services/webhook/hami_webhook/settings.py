"""Settings of the webhook, from ``HAMI_*`` variables."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from msgspec import Meta

from hami_devices.admission import PrivilegedPolicy
from hami_devices.catalog import Catalog
from hami_runtime.settings import ProcessSettings
from hami_webhook.http import MAX_BODY_BYTES
from hami_webhook.registration import Endpoint
from hami_webhook.review import Policy


class FailurePolicy(StrEnum):
    """What the API server does with a pod that concerns us while no replica answers."""

    FAIL = "Fail"
    IGNORE = "Ignore"


class Settings(ProcessSettings, frozen=True, kw_only=True):
    """Everything that can be set."""

    webhook_host: Annotated[str, Meta(description="address that the API server calls")] = "127.0.0.1"
    webhook_port: Annotated[int, Meta(description="its port; 0 means any free one", ge=0, le=65535)] = 0
    webhook_url: Annotated[str, Meta(description="where the API server reaches us; empty means the Service, or else our own address")] = ""
    service_name: Annotated[str, Meta(description="Service in front of us, in our namespace; empty means none")] = ""
    service_port: Annotated[int, Meta(description="its port", ge=1, le=65535)] = 443
    register: Annotated[bool, Meta(description="keep the webhook configuration objects (made where missing, their trust kept current)")] = (
        True
    )
    validating: Annotated[bool, Meta(description="register the validating side as well")] = True
    failure_policy: Annotated[FailurePolicy, Meta(description="for registrations that have to be made")] = FailurePolicy.FAIL
    secret_name: Annotated[str, Meta(description="Secret that keeps the certificate for all replicas")] = "hami-webhook-tls"  # noqa: S105 - an object's name
    certificate_directory: Annotated[str, Meta(description="directory that keeps it in place of the Secret")] = ""
    certificate_file: Annotated[str, Meta(description="certificate that somebody else keeps (cert-manager); nothing is issued then")] = ""
    certificate_key_file: Annotated[str, Meta(description="its key")] = ""
    device_config: Annotated[str, Meta(description="path of the device configuration (the reference's YAML); empty means its defaults")] = (
        ""
    )
    scheduler_name: Annotated[str, Meta(description="scheduler that pods are given to; empty leaves their own")] = "hami-scheduler"
    force_overwrite_default_scheduler: Annotated[bool, Meta(description="take over pods that name default-scheduler")] = True
    privileged: Annotated[PrivilegedPolicy, Meta(description="which privileged containers are refused")] = PrivilegedPolicy.CONTAINER
    least_memory_mib: Annotated[
        int,
        Meta(
            description="smallest share of an NVIDIA card's memory that is let in, in MiB; CUDA needs some hundred for itself; 0 means none",
            ge=0,
        ),
    ] = 0
    confine: Annotated[
        bool, Meta(description="give containers with a share seccompProfile RuntimeDefault where they and their pod name none")
    ] = True
    adopted_schedulers: Annotated[
        frozenset[str], Meta(description="HAMI_ADOPTED_SCHEDULERS of the scheduler: their pods are judged as ours; empty means none")
    ] = frozenset()
    exempt_namespaces: Annotated[frozenset[str], Meta(description="namespaces that are never touched")] = frozenset({"kube-system"})
    trusted_users: Annotated[
        frozenset[str], Meta(description="users that write assignments; empty means our service accounts hami-scheduler and hami-registry")
    ] = frozenset()
    vendor_writers: Annotated[
        tuple[str, ...], Meta(description="others that write a vendor's own keys, each as user=VENDOR (system:serviceaccount:x:y=NVIDIA)")
    ] = ()
    max_body_bytes: Annotated[int, Meta(description="longest review that is read", ge=1024)] = MAX_BODY_BYTES

    def __post_init__(self) -> None:
        """Refuse what cannot work."""
        if bool(self.certificate_file) != bool(self.certificate_key_file):
            raise ValueError("HAMI_CERTIFICATE_FILE and HAMI_CERTIFICATE_KEY_FILE: one is empty; accepted: both or none")
        if self.webhook_url and not self.webhook_url.startswith("https://"):
            raise ValueError(f"HAMI_WEBHOOK_URL: {self.webhook_url!r} is not accepted; accepted: an https:// URL")
        for writer in self.vendor_writers:
            user, _, vendor = writer.rpartition("=")
            if not user or not vendor:
                raise ValueError(f"HAMI_VENDOR_WRITERS: {writer!r} is not accepted; accepted: user=VENDOR")

    def endpoint(self, bound_port: int) -> Endpoint:
        """Where the API server reaches us, once we listen."""
        if self.webhook_url or not self.service_name:
            return Endpoint(url=self.webhook_url or f"https://{self.webhook_host}:{bound_port}")
        return Endpoint(service=self.service_name, namespace=self.namespace, port=self.service_port)

    def policy(self, catalog: Catalog) -> Policy:
        """What the reviewer goes by.

        Raises:
            ValueError: a vendor that there is none of.
        """
        accounts = frozenset(f"system:serviceaccount:{self.namespace}:hami-{service}" for service in ("scheduler", "registry"))
        writers: dict[str, frozenset[str]] = {}
        for writer in self.vendor_writers:
            user, _, name = writer.rpartition("=")
            vendor = next((each for each in catalog.vendors if each.name == name), None)
            if vendor is None:
                raise ValueError(f"HAMI_VENDOR_WRITERS: no vendor {name!r}; accepted: {', '.join(each.name for each in catalog.vendors)}")
            writers[user] = writers.get(user, frozenset()) | frozenset(vendor.system_keys)
        return Policy(
            scheduler_name=self.scheduler_name,
            overwrite_default_scheduler=self.force_overwrite_default_scheduler,
            privileged=self.privileged,
            least_memory_mib=self.least_memory_mib,
            confine=self.confine,
            adopted_schedulers=self.adopted_schedulers,
            exempt_namespaces=self.exempt_namespaces,
            trusted_users=self.trusted_users or accounts,
            vendor_writers=writers,
        )
