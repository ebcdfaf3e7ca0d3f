"""A one-node Kubernetes on a ``Machine``: control plane, containerd, kubelet, pod network, kube-proxy, DNS, and what enforces NetworkPolicies.

Pods have addresses of the bridge ``cni0`` and reach each other, Services and the API server as on any cluster. NetworkPolicies are enforced by
kube-router's controller. Images come from archives; no registry is asked.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import msgspec

from hami_runtime.kube.kubectl import program as kubectl_program
from tests.certificates import Authority
from tests.cluster.harness import building, images, node
from tests.cluster.harness.control_plane import signing_key
from tests.cluster.harness.users import ADMIN, Users
from tests.install.harness.machine import ADDRESS, NETWORK, NODE, Machine, run

MANIFESTS: Final = Path(__file__).parents[1] / "manifests"
SERVICES: Final = "10.0.0.0/24"
CONTAINERD: Final = "/run/containerd/containerd.sock"
COREDNS: Final = "docker.io/local/coredns:1"
_CNI: Final = {
    "cniVersion": "0.4.0",
    "name": "bridge",
    "plugins": [
        {
            "type": "bridge",
            "bridge": "cni0",
            "isGateway": False,  # the bridge has its address already
            "hairpinMode": True,
            "ipMasq": False,
            "ipam": {
                "type": "host-local",
                "ranges": [[{"subnet": NETWORK, "rangeStart": "172.29.0.10", "gateway": ADDRESS}]],
                "routes": [{"dst": "0.0.0.0/0"}],
                "dataDir": "/run/cni-ips",
            },
        },
        {"type": "portmap", "capabilities": {"portMappings": True}},
    ],
}
_KUBELET: Final = node.KUBELET | {
    "address": ADDRESS,
    "containerRuntimeEndpoint": f"unix://{CONTAINERD}",
    "clusterDNS": ["10.0.0.10"],
    "clusterDomain": "cluster.local",
    "crashLoopBackOff": {"maxContainerRestartPeriod": "10s"},
}


class Cluster:
    """A running cluster.

    Args:
        folder: where everything is kept; it is removed at the end.
        api_port: where the API server listens, beside its Service at 443.
    """

    def __init__(self, folder: Path, *, api_port: int = 6443) -> None:
        self.machine = Machine(folder)
        self.binaries = building.binaries(building.ADDONS)
        self._api_port = api_port
        self._users = Users([NODE])
        self._url = f"https://{ADDRESS}:{api_port}"

    @property
    def kubeconfig(self) -> Path:
        """An administrator's kubeconfig."""
        return self._kubeconfig(ADMIN)

    def start(self) -> None:
        """Start everything, and return once the node is ready and DNS answers."""
        self.machine.start()
        self._start_control_plane()
        self._start_node()
        self._start_network()

    def stop(self) -> None:
        """End everything."""
        self.machine.stop()

    def restart_kubelet(self) -> None:
        """Stop kubelet and start it again; containers go on."""
        self.machine.end("kubelet")
        self.machine.again("kubelet")

    def reboot(self) -> None:
        """Cut the machine's power, and start everything that ran outside of pods."""
        self.machine.reboot()
        self.machine.again("etcd")
        self.machine.again("kube-apiserver")
        self.machine.until(lambda: self.kubectl("get", "--raw", "/readyz"), "kube-apiserver")
        self.machine.again("containerd")
        self.machine.until(lambda: self._ctr("version"), "containerd")
        for program in ("kube-controller-manager", "kube-scheduler", "kube-proxy", "network-policies", "kubelet"):
            self.machine.again(program)

    def kill_container(self, identity: str) -> None:
        """Kill a container's processes; ``identity`` is as pods' statuses have it."""
        self._ctr("task", "kill", "--signal", "SIGKILL", "--all", identity.removeprefix("containerd://"))

    def kubectl(self, *arguments: str | Path, given: str | None = None) -> str:
        """Run kubectl as an administrator."""
        return self.run(kubectl_program(), *arguments, given=given)

    def hami(self, *arguments: str | Path) -> str:
        """Run hami as an administrator."""
        return self.run(sys.executable, "-m", "hami_cli.main", *arguments)

    def run(self, *command: str | Path, given: str | None = None) -> str:
        """Run a command on an administrator's machine."""
        return run(self.machine.on_network(*command), given=given, environ={"KUBECONFIG": str(self.kubeconfig)})

    def get(self, *arguments: str) -> Any:
        """What ``kubectl get`` prints as JSON."""
        return json.loads(self.kubectl("get", *arguments, "-o", "json"))

    def apply(self, *objects: dict[str, Any]) -> None:
        """Apply objects."""
        self.kubectl("apply", "-f", "-", given=json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))

    def version(self) -> str:
        """The API server's, as v1.37.2."""
        return str(json.loads(self.kubectl("get", "--raw", "/version"))["gitVersion"])

    def import_images(self, archives: Iterable[Path]) -> None:
        """Have the images of archives on the node, under the names that they carry."""
        for path in archives:
            self._ctr("image", "import", "--local", "--snapshotter", "overlayfs", path)

    def image_names(self) -> set[str]:
        """The images on the node."""
        return set(self._ctr("image", "ls", "--quiet").split())

    def _ctr(self, *arguments: str | Path) -> str:
        return run(self.machine.on_node(self.binaries / "ctr", "--address", CONTAINERD, "--namespace", "k8s.io", *arguments))

    def _spawn(self, program: str, *arguments: str | Path) -> None:
        path = f"{self.binaries}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        self.machine.spawn(program, self.binaries / program, *arguments, environ={"PATH": path})

    def _kubeconfig(self, name: str) -> Path:
        return self.machine.folder / "kubeconfigs" / name

    def _start_control_plane(self) -> None:
        folder = self.machine.folder
        authority = Authority(folder)
        names = ("kubernetes", "kubernetes.default", "kubernetes.default.svc")
        certificate, key = authority.issue("kube-apiserver", *names, addresses=(ADDRESS, "10.0.0.1"))
        secret, public = signing_key(folder)
        (folder / "tokens.csv").write_text(self._users.token_file())
        for name in self._users:
            path = self._kubeconfig(name)
            path.parent.mkdir(exist_ok=True)
            path.write_text(self._users.kubeconfig(name, server=self._url, authority=authority.certificate.read_bytes()))
        client = "http://127.0.0.1:2379"
        self._spawn(
            "etcd",
            *("--data-dir", folder / "etcd", "--unsafe-no-fsync", "--log-level", "error"),
            *("--listen-client-urls", client, "--advertise-client-urls", client, "--listen-peer-urls", "http://127.0.0.1:2380"),
        )
        self._spawn(
            "kube-apiserver",
            *("--etcd-servers", client, "--secure-port", str(self._api_port), "--bind-address", "0.0.0.0", "--advertise-address", ADDRESS),
            *("--cert-dir", folder / "certs", "--tls-cert-file", certificate, "--tls-private-key-file", key),
            *("--service-account-key-file", public, "--service-account-signing-key-file", secret),
            *("--service-account-issuer", "https://kubernetes.default.svc", "--service-cluster-ip-range", SERVICES),
            *("--token-auth-file", folder / "tokens.csv", "--authorization-mode", "Node,RBAC", "--allow-privileged"),
            *("--enable-admission-plugins", "NodeRestriction", "--kubelet-preferred-address-types", "InternalIP"),
        )
        self.machine.until(lambda: self.kubectl("get", "--raw", "/readyz"), "kube-apiserver")
        self._spawn(
            "kube-controller-manager",
            *("--kubeconfig", self._kubeconfig("kube-controller-manager"), "--use-service-account-credentials", "--leader-elect=false"),
            *("--service-account-private-key-file", secret, "--root-ca-file", authority.certificate, "--bind-address", "127.0.0.1"),
        )
        scheduler = self._kubeconfig("kube-scheduler")
        self._spawn(
            "kube-scheduler",
            *("--kubeconfig", scheduler, "--authentication-kubeconfig", scheduler, "--authorization-kubeconfig", scheduler),
            *("--leader-elect=false", "--bind-address", "127.0.0.1", "--secure-port", "10261"),
        )

    def _start_node(self) -> None:
        root = self.machine.folder / "nodes" / NODE
        root.mkdir(parents=True)
        (root / "10-bridge.conflist").write_text(json.dumps(_CNI))
        (root / "kubelet.yaml").write_bytes(msgspec.yaml.encode(_KUBELET))
        paths = {"root": root, "socket": CONTAINERD, "cni": "/etc/cni/net.d"}
        (root / "containerd.toml").write_text(node.CONTAINERD.format(**paths, snapshotter="overlayfs", pause=images.PAUSE))
        run(self.machine.on_node("mkdir", "-p", "/etc/cni/net.d", "/etc/containerd"))
        run(self.machine.on_node("cp", root / "10-bridge.conflist", "/etc/cni/net.d/"))
        run(self.machine.on_node("cp", root / "containerd.toml", "/etc/containerd/config.toml"))
        self._spawn("containerd", "--config", "/etc/containerd/config.toml")
        self.machine.until(lambda: self._ctr("version"), "containerd")
        made = self.machine.folder / "images"
        made.mkdir()
        images.archive(images.PAUSE, made / "pause.tar", entrypoint=["/bin/sleep", "2147483647"])
        images.archive(COREDNS, made / "coredns.tar", entrypoint=["/bin/coredns"], files={"/bin/coredns": self.binaries / "coredns"})
        self.import_images(sorted(made.iterdir()))
        self._spawn(
            "kubelet",
            *("--kubeconfig", self._kubeconfig(f"kubelet-{NODE}"), "--config", root / "kubelet.yaml"),
            *("--node-ip", ADDRESS, "--hostname-override", NODE, "-v", "2"),
        )
        self.machine.until(lambda: self.kubectl("wait", "node", NODE, "--for=condition=Ready", "--timeout=1s"), "the node")

    def _start_network(self) -> None:
        """kube-proxy without conntrack's limits, which only the host's own network namespace may set; then DNS and policies."""
        self.kubectl("create", "clusterrolebinding", "kube-proxy", "--clusterrole=system:node-proxier", "--user=system:kube-proxy")
        unlimited = ("--conntrack-max-per-core", "0", "--conntrack-tcp-timeout-established", "0", "--conntrack-tcp-timeout-close-wait", "0")
        self._spawn(
            "kube-proxy",
            *("--kubeconfig", self._kubeconfig("kube-proxy"), "--hostname-override", NODE, "--cluster-cidr", NETWORK),
            *("--proxy-mode", "iptables", "--bind-address", ADDRESS, *unlimited),
        )
        self._spawn(
            "network-policies",
            *("--kubeconfig", self._kubeconfig(ADMIN), "--hostname-override", NODE, "--service-cluster-ip-range", SERVICES),
            *("--iptables-sync-period", "10s"),
        )
        self.kubectl("apply", "-f", MANIFESTS / "coredns.yaml")
        self.kubectl("-n", "kube-system", "rollout", "status", "deployment/coredns", "--timeout=180s")

    def start_cert_manager(self) -> None:
        """Have cert-manager's kinds, its controllers for selfSigned and ca issuers, and its CA injector."""
        self._define(building.source(building.CERT_MANAGER) / "deploy" / "crds", "cert-manager.io_")
        self._spawn("cert-manager", "--kubeconfig", self.kubeconfig)

    def define_prometheus_kinds(self) -> None:
        """Have the kinds of the Prometheus operator."""
        folder = building.source(building.PROMETHEUS_OPERATOR) / "example" / "prometheus-operator-crd"
        self._define(folder, "monitoring.coreos.com_p")

    def provide_volumes(self) -> None:
        """Have a default storage class with three volumes, folders of the node."""
        run(self.machine.on_node("mkdir", "-p", *(f"/var/lib/volumes/{number}" for number in range(3))))
        self.kubectl("apply", "-f", MANIFESTS / "storage.yaml")

    def _define(self, folder: Path, prefix: str) -> None:
        files = sorted(path for path in folder.glob(f"{prefix}*.yaml"))
        self.kubectl("apply", "--server-side", *(f"--filename={path}" for path in files))
        self.kubectl("wait", "--for=condition=Established", "customresourcedefinitions", "--all", "--timeout=60s")
