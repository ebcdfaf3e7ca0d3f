"""Writes ``deploy/kustomize/components/vendor-plugins``: other vendors' own device plugins as DaemonSets, each with an account of its own.

Our agent serves NVIDIA's hardware; other cards are served by their vendor's plugin, which writes its records itself. For each family of vendors there
is a component with its DaemonSet; the component around them tells webhook and admission policies which account writes which vendor's keys.
"""

from __future__ import annotations

from hami_devices.catalog import Catalog
from hami_runtime.kube import accounts
from tools.vendor_pages import members

OURS = "nvidia"
PLUGIN = """\
# {title}: its vendor's own device plugin, on nodes labelled {family}=on. It is the vendor's program, so what it may is what such plugins do:
#
#   root, privileged       it opens the vendor's device nodes and hands them out
#   hostPath volumes       kubelet's plugin folder and PodResources socket, /dev and /sys
#   nodes, pods            it writes the node's registration and takes containers out of devices-to-allocate; admission policies hold it to
#                          its vendor's keys
#
# The image is its vendor's, which an overlay names: images: [{{name: hami-{family}-plugin, newName: …, newTag: …}}]. What else it needs (arguments,
# configuration, probes) its own documentation says.
apiVersion: v1
kind: ServiceAccount
metadata:
  name: hami-{family}-plugin
  namespace: hami-node-agent
  labels: {{app.kubernetes.io/name: hami, app.kubernetes.io/part-of: hami, app.kubernetes.io/component: {family}-plugin}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata:
  name: hami-{family}-plugin
  labels: {{app.kubernetes.io/name: hami, app.kubernetes.io/part-of: hami, app.kubernetes.io/component: {family}-plugin}}
rules:
  - {{apiGroups: [""], resources: [nodes], verbs: [get, list, watch, patch, update]}}
  - {{apiGroups: [""], resources: [pods], verbs: [get, list, watch, patch, update]}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata:
  name: hami-{family}-plugin
  labels: {{app.kubernetes.io/name: hami, app.kubernetes.io/part-of: hami, app.kubernetes.io/component: {family}-plugin}}
roleRef: {{apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: hami-{family}-plugin}}
subjects: [{{kind: ServiceAccount, name: hami-{family}-plugin, namespace: hami-node-agent}}]
---
apiVersion: apps/v1
kind: DaemonSet
metadata:
  name: hami-{family}-plugin
  namespace: hami-node-agent
  labels: {{app.kubernetes.io/name: hami, app.kubernetes.io/part-of: hami, app.kubernetes.io/component: {family}-plugin}}
spec:
  selector:
    matchLabels: {{app.kubernetes.io/name: hami, app.kubernetes.io/component: {family}-plugin}}
  updateStrategy:
    type: RollingUpdate
    rollingUpdate: {{maxUnavailable: 10%}}
  template:
    metadata:
      labels: {{app.kubernetes.io/name: hami, app.kubernetes.io/part-of: hami, app.kubernetes.io/component: {family}-plugin}}
    spec:
      serviceAccountName: hami-{family}-plugin
      enableServiceLinks: false
      priorityClassName: system-node-critical
      terminationGracePeriodSeconds: 20
      nodeSelector: {{{family}: "on"}}
      tolerations:
        - {{operator: Exists, effect: NoExecute}}
        - {{operator: Exists, effect: NoSchedule}}
      containers:
        - name: plugin
          image: hami-{family}-plugin
          env:
            - {{name: NODE_NAME, valueFrom: {{fieldRef: {{fieldPath: spec.nodeName}}}}}}
          resources:
            requests: {{cpu: 50m, memory: 64Mi}}
            limits: {{memory: 512Mi}}
          securityContext: {{privileged: true}}
          volumeMounts:
            - {{name: device-plugins, mountPath: /var/lib/kubelet/device-plugins}}
            - {{name: pod-resources, mountPath: /var/lib/kubelet/pod-resources}}
            - {{name: dev, mountPath: /dev}}
            - {{name: sys, mountPath: /sys, readOnly: true}}
      volumes:
        - {{name: device-plugins, hostPath: {{path: /var/lib/kubelet/device-plugins, type: Directory}}}}
        - {{name: pod-resources, hostPath: {{path: /var/lib/kubelet/pod-resources, type: Directory}}}}
        - {{name: dev, hostPath: {{path: /dev, type: Directory}}}}
        - {{name: sys, hostPath: {{path: /sys, type: Directory}}}}
"""
FAMILY = """\
apiVersion: kustomize.config.k8s.io/v1alpha1
kind: Component
resources: [plugin.yaml]
"""
WRITERS = """\
# Other vendors' own device plugins: `make docs` writes this folder. An overlay takes this component, which says whose account writes which vendor's
# records, and of the folders in it those of the vendors that the cluster has:
#
#   components:
#     - ../../components/vendor-plugins
#     - ../../components/vendor-plugins/cambricon
#   images:
#     - {{name: hami-cambricon-plugin, newName: registry.example/cambricon-plugin, newTag: …}}
apiVersion: kustomize.config.k8s.io/v1alpha1
kind: Component
patches:
  - target: {{kind: ValidatingAdmissionPolicy, name: hami-(pod|node|binding)-records}}
    patch: |
      - op: replace
        path: /spec/variables/0/expression
        value: >-
          {{'operators': [],
          {writers}}}
  - target: {{kind: Deployment, name: hami-webhook}}
    patch: |
      - op: add
        path: /spec/template/spec/containers/0/env/-
        value:
          name: HAMI_VENDOR_WRITERS
          value: >-
            {variable}
"""


def families(catalog: Catalog) -> dict[str, tuple[str, list[str]]]:
    """By the name of its folder, a family's title and its vendors' names; ours is left out."""
    found = {}
    for title, module, vendors in members(catalog):
        family = module.__name__.rpartition(".")[2].replace("_", "-")
        if family != OURS:
            found[family] = title, [vendor.name for vendor in vendors]
    return found


def account(family: str) -> str:
    """The user that a family's plugin is to the API server."""
    return accounts.user(f"hami-{family}-plugin", accounts.AGENT_NAMESPACE)


def files(catalog: Catalog) -> dict[str, str]:
    """Path below ``components`` and text of each file."""
    known = families(catalog)
    pairs = [(account(family), name) for family, (_, names) in known.items() for name in names]
    writers = ",\n          ".join(f"'{name}': ['{user}']" for user, name in pairs)
    variable = ",\n            ".join(f"{user}={name}" for user, name in pairs)
    found = {"vendor-plugins/kustomization.yaml": WRITERS.format(writers=writers, variable=variable)}
    for family, (title, _) in known.items():
        found[f"vendor-plugins/{family}/kustomization.yaml"] = FAMILY
        found[f"vendor-plugins/{family}/plugin.yaml"] = PLUGIN.format(family=family, title=title)
    return found
