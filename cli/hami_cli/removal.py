"""What ``hami uninstall`` removes, in which order, what keeps it from starting, and what stays on purpose. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from msgspec import Struct

from hami_cli import pruning
from hami_cli.installation import WAITED_FOR, Object, Ref, ref
from hami_devices.catalog import Catalog
from hami_runtime.kube.accounts import AGENT

PREFIX: Final = "hami.io/"
"""All that we, or another scheduler that speaks the same protocol, write to nodes begins so."""
CALLED: Final = frozenset(
    {"MutatingWebhookConfiguration", "ValidatingWebhookConfiguration", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"}
)
"""What the API server calls or asks: it goes first, so that no pod waits for a service that is gone, and nodes' records may be removed."""
CLEAN_UP: Final = "hami-clean-up"
SHOWN: Final = 10
_OVER: Final = frozenset({"Succeeded", "Failed"})
_HOST: Final = "/host"


class Installation(Struct, frozen=True, kw_only=True):
    """What of HAMi is in a cluster."""

    objects: tuple[Object, ...]
    namespaces: tuple[str, ...]
    nodes: tuple[Object, ...]
    pods: tuple[Object, ...]

    @property
    def agent(self) -> Object | None:
        """The agents' DaemonSet."""
        return next((each for each in self.objects if each["kind"] == "DaemonSet" and each["metadata"]["name"] == AGENT), None)

    @property
    def refs(self) -> tuple[Ref, ...]:
        """The objects that go, in order: what is called, what runs, then the rest."""
        return tuple(sorted((ref(each) for each in self.objects if pruning.applied(each)), key=_order))

    def annotated(self) -> dict[str, list[str]]:
        """By node, the keys of our annotations."""
        return _keys(self.nodes, "annotations")

    def labelled(self) -> dict[str, list[str]]:
        """By node, the keys of our labels."""
        return _keys(self.nodes, "labels")

    def served(self) -> list[str]:
        """The nodes on which agents may have left files: those that they are meant for, and those with a record."""
        selector = ((self.agent or {}).get("spec") or {}).get("template", {}).get("spec", {}).get("nodeSelector") or {}
        meant = [each["metadata"]["name"] for each in self.nodes if selector and selector.items() <= _of(each, "labels").items()]
        return sorted({*meant, *self.annotated()})


def holding(pods: Iterable[Object], catalog: Catalog) -> list[str]:
    """The pods that hold a share and have not ended, as ``namespace/name``."""
    keys = {vendor.allocated_key for vendor in catalog.vendors}
    live = (each for each in pods if (each.get("status") or {}).get("phase") not in _OVER)
    return sorted(_name(each) for each in live if any(_of(each, "annotations").get(key) for key in keys))


def waiting(pods: Iterable[Object], scheduler: str) -> list[str]:
    """The pods that wait for a scheduler."""
    return sorted(_name(each) for each in pods if each["spec"].get("schedulerName") == scheduler and not each["spec"].get("nodeName"))


def refusal(running: Sequence[str]) -> str:
    """Why it does not start while pods hold shares."""
    return (
        f"{len(running)} pods hold shares: {shown(running)}. Delete them first. With --force they stay: each keeps its limits until one of its"
        " containers restarts, and then it cannot start again"
    )


def pod(node: str, namespace: str, image: str, agent: Object | None) -> Object:
    """The pod that removes the agents' files from one node, where the agents kept them."""
    spec = agent["spec"]["template"]["spec"] if agent else {}
    environ = {each["name"]: each.get("value", "") for container in spec.get("containers") or () for each in container.get("env") or ()}
    folders = {
        "HAMI_HOOK_PATH": environ.get("HAMI_HOOK_PATH", "/usr/local"),
        "HAMI_CDI_FOLDER": environ.get("HAMI_CDI_FOLDER", "/var/run/cdi"),
        "HAMI_PLUGIN_FOLDER": environ.get("HAMI_PLUGIN_FOLDER", "/var/lib/kubelet/device-plugins"),
    }
    variables = [{"name": "HAMI_NODE_NAME", "value": node}, *({"name": key, "value": _HOST + path} for key, path in folders.items())]
    volumes = [{"name": f"v{n}", "hostPath": {"path": path, "type": "DirectoryOrCreate"}} for n, path in enumerate(folders.values())]
    container = {
        "name": "clean-up",
        "image": image,
        "args": ["clean-up"],
        "env": variables,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [{"name": f"v{n}", "mountPath": _HOST + path} for n, path in enumerate(folders.values())],
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            # A container's user may have made folders that root without these may not enter.
            "capabilities": {"drop": ["ALL"], "add": ["DAC_OVERRIDE", "FOWNER"]},
        },
        "resources": {"requests": {"cpu": "10m", "memory": "48Mi"}, "limits": {"memory": "256Mi"}},
    }
    body = {
        "restartPolicy": "Never",
        "nodeName": node,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "tolerations": [{"operator": "Exists"}],
        "securityContext": {"runAsUser": 0, "runAsGroup": 0, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [container],
        "volumes": volumes,
        **({"imagePullSecrets": spec["imagePullSecrets"]} if spec.get("imagePullSecrets") else {}),
    }
    metadata = {"generateName": f"{CLEAN_UP}-", "namespace": namespace, "labels": {CLEAN_UP: "true"}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": body}


def image(agent: Object | None, default: str) -> str:
    """The agents' image."""
    return str(agent["spec"]["template"]["spec"]["containers"][0]["image"]) if agent else default


def staying(found: Installation, volumes: Iterable[Object], catalog: Catalog) -> Iterator[str]:
    """What stays on purpose, for the user to see to."""
    selector = ((found.agent or {}).get("spec") or {}).get("template", {}).get("spec", {}).get("nodeSelector") or {"gpu": "on"}
    for key, value in selector.items():
        if nodes := [each["metadata"]["name"] for each in found.nodes if _of(each, "labels").get(key) == value]:
            yield f"label {key}={value} on {shown(nodes)}: kubectl label nodes -l {key}={value} {key}-"
    keys = {vendor.allocated_key for vendor in catalog.vendors}
    if pods := [_name(each) for each in found.pods if _of(each, "annotations").keys() & keys]:
        yield f"annotations on pods that had shares, until these are deleted: {shown(pods)}"
    ours = {
        each["metadata"]["name"]: each for each in volumes if ((each["spec"].get("claimRef") or {}).get("namespace")) in found.namespaces
    }
    kept = [name for name, each in ours.items() if each["spec"].get("persistentVolumeReclaimPolicy") == "Retain"]
    if kept:
        yield f"volumes that are retained, with the log of grants: {shown(kept)}"
    yield "images on nodes, which kubelet removes when it needs the space"


def outcome(body: Object) -> str | None:
    """How a clean-up pod ended: empty for success, the reason for failure, None while it goes on."""
    status: Mapping[str, Any] = body.get("status") or {}
    if status.get("phase") == "Succeeded":
        return ""
    if status.get("phase") != "Failed":
        return None
    ended = [(each.get("state") or {}).get("terminated") or {} for each in status.get("containerStatuses") or ()]
    lines = " ".join(str(each.get("message", "")) for each in ended).strip().splitlines()
    return lines[-1] if lines else str(status.get("message") or status.get("reason") or "it failed")


def shown(names: Sequence[str]) -> str:
    """The first few of them, and how many more there are."""
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more


def _order(one: Ref) -> tuple[bool, bool, tuple[int, str, str]]:
    return one.kind not in CALLED, one.kind not in WAITED_FOR, pruning.order(one)


def _keys(nodes: Iterable[Object], field: str) -> dict[str, list[str]]:
    found = {each["metadata"]["name"]: [key for key in _of(each, field) if key.startswith(PREFIX)] for each in nodes}
    return {name: sorted(keys) for name, keys in found.items() if keys}


def _of(body: Object, field: str) -> Mapping[str, str]:
    return body["metadata"].get(field) or {}


def _name(body: Object) -> str:
    return f"{body['metadata'].get('namespace', '')}/{body['metadata']['name']}"
