"""The kinds that the object store knows, as one table: where each is served, whether it lives in a namespace, what it is called.

Decides nothing about requests. Invariant: a ``Resource`` is found by its group and plural, and every kind appears once.
"""

from msgspec import Struct

__all__ = [
    "CONFIG_MAPS",
    "EVENTS",
    "LEASES",
    "MUTATING_WEBHOOKS",
    "NAMESPACES",
    "NODES",
    "PODS",
    "POD_DISRUPTION_BUDGETS",
    "PRIORITY_CLASSES",
    "REPLICA_SETS",
    "RESOURCES",
    "RESOURCE_QUOTAS",
    "SECRETS",
    "SERVICE_ACCOUNTS",
    "VALIDATING_WEBHOOKS",
    "Resource",
]


class Resource(Struct, frozen=True, kw_only=True):
    """One kind of object and how the API serves it."""

    group: str = ""
    """Empty for the core group."""
    version: str = "v1"
    plural: str
    kind: str
    short_names: tuple[str, ...] = ()
    namespaced: bool = True
    has_status: bool = False
    """Whether ``status`` is written through its own subresource only."""
    counts_generation: bool = False
    """Whether ``metadata.generation`` counts the changes of what the user wants."""
    graceful: bool = False
    """Whether a deletion waits for the grace period."""
    unconditional_update: bool = True
    """Whether an object may be replaced without naming the version that is replaced."""

    @property
    def group_version(self) -> str:
        """``v1`` or ``policy/v1``: what ``apiVersion`` says."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def qualified(self) -> str:
        """``pods`` or ``poddisruptionbudgets.policy``: how error messages name the resource."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def qualified_kind(self) -> str:
        """``Pod`` or ``PodDisruptionBudget.policy``: how messages about invalid objects name the kind."""
        return f"{self.kind}.{self.group}" if self.group else self.kind


PODS = Resource(plural="pods", kind="Pod", short_names=("po",), has_status=True, counts_generation=True, graceful=True)
NODES = Resource(plural="nodes", kind="Node", short_names=("no",), namespaced=False, has_status=True)
NAMESPACES = Resource(plural="namespaces", kind="Namespace", short_names=("ns",), namespaced=False, has_status=True)
EVENTS = Resource(plural="events", kind="Event", short_names=("ev",))
CONFIG_MAPS = Resource(plural="configmaps", kind="ConfigMap", short_names=("cm",))
SECRETS = Resource(plural="secrets", kind="Secret")
SERVICE_ACCOUNTS = Resource(plural="serviceaccounts", kind="ServiceAccount", short_names=("sa",))
RESOURCE_QUOTAS = Resource(plural="resourcequotas", kind="ResourceQuota", short_names=("quota",), has_status=True)
LEASES = Resource(group="coordination.k8s.io", plural="leases", kind="Lease", unconditional_update=False)
MUTATING_WEBHOOKS = Resource(
    group="admissionregistration.k8s.io",
    plural="mutatingwebhookconfigurations",
    kind="MutatingWebhookConfiguration",
    namespaced=False,
    counts_generation=True,
    unconditional_update=False,
)
VALIDATING_WEBHOOKS = Resource(
    group="admissionregistration.k8s.io",
    plural="validatingwebhookconfigurations",
    kind="ValidatingWebhookConfiguration",
    namespaced=False,
    counts_generation=True,
    unconditional_update=False,
)
POD_DISRUPTION_BUDGETS = Resource(
    group="policy",
    plural="poddisruptionbudgets",
    kind="PodDisruptionBudget",
    short_names=("pdb",),
    has_status=True,
    counts_generation=True,
    unconditional_update=False,
)
PRIORITY_CLASSES = Resource(
    group="scheduling.k8s.io", plural="priorityclasses", kind="PriorityClass", short_names=("pc",), namespaced=False, counts_generation=True
)
REPLICA_SETS = Resource(group="apps", plural="replicasets", kind="ReplicaSet", short_names=("rs",), has_status=True, counts_generation=True)

RESOURCES: tuple[Resource, ...] = (
    PODS,
    NODES,
    NAMESPACES,
    EVENTS,
    CONFIG_MAPS,
    SECRETS,
    SERVICE_ACCOUNTS,
    RESOURCE_QUOTAS,
    LEASES,
    MUTATING_WEBHOOKS,
    VALIDATING_WEBHOOKS,
    POD_DISRUPTION_BUDGETS,
    PRIORITY_CLASSES,
    REPLICA_SETS,
)
"""In the order of discovery."""
