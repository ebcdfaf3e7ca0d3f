"""Every annotation and label key of the protocol, each in one place, and who may write it.

Per-vendor assignment keys are in the vendor's spec (``hami_devices``); keys made from a device type are functions here.
"""

from __future__ import annotations

# On pods, written by the scheduler inside the Binding.
ASSIGNED_NODE = "hami.io/vgpu-node"  # annotation, and a label where the node's name is a label value
ASSIGNED_TIME = "hami.io/vgpu-time"
BIND_TIME = "hami.io/bind-time"
# On pods, written by the scheduler as `allocating`, then by the registry as `success` or `failed`.
BIND_PHASE = "hami.io/bind-phase"
MIG_ALLOCATIONS = "hami.io/vgpu-mig-allocations"
# On pods, written by the registry with other sizes of a share: the generation of the resize, so that none overwrites a later one.
RESIZE_GENERATION = "hami.io/vgpu-resize-generation"

# On pods, written by the webhook.
TRACE_PARENT = "hami.io/traceparent"

# On pods, written by users.
NODE_POLICY = "hami.io/node-scheduler-policy"
DEVICE_POLICY = "hami.io/gpu-scheduler-policy"
SCORING_WEIGHTS = "hami.io/device-scoring-weights"
GROUP_SIZE = "hami.io/pod-group-min-member"
"""How many of a pod's group must be placed together, where no PodGroup says it."""

# On pods, by which others name the group that a pod is of.
POD_GROUP = "scheduling.x-k8s.io/pod-group"  # label
OLD_POD_GROUP = "pod-group.scheduling.sigs.k8s.io"  # label
VOLCANO_GROUP = "scheduling.k8s.io/group-name"  # annotation

# On nodes.
NODE_LOCK = "hami.io/mutex.lock"
DEVICE_CORDON = "hami.io/device-cordon"
ALLOCATION_MODE = "hami.io/node-allocation-mode"
LEGACY_HANDSHAKE = "hami.io/node-handshake"
NODE_PAIR_SCORES = "hami.io/node-nvidia-score"

# On pods and namespaces, a label: our webhook leaves these alone.
WEBHOOK = "hami.io/webhook"
WEBHOOK_IGNORE = "ignore"


def register(device_type: str) -> str:
    """Key of a node's registration for one device type (``nvidia``, ``mlu``, ...)."""
    return f"hami.io/node-{device_type}-register"


def handshake(device_type: str) -> str:
    """Key of a node's handshake for one device type."""
    return f"hami.io/node-handshake-{device_type}"


def generation(device_type: str) -> str:
    """Key of the generation of a registration that our agent made, so that a reader can tell which of two copies is newer."""
    return f"hami.io/node-{device_type}-generation"


SYSTEM_POD_KEYS = frozenset({ASSIGNED_NODE, ASSIGNED_TIME, BIND_TIME, BIND_PHASE, MIG_ALLOCATIONS, RESIZE_GENERATION})
"""Pod annotations that only our services write, besides the vendors' assignment keys: refused when a user creates a pod with them."""
