"""Label selectors of Kubernetes objects (``matchLabels`` and ``matchExpressions``), read as the API server reads them. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, field


class LabelRequirement(Struct, frozen=True, kw_only=True, rename="camel"):
    """One of ``matchExpressions``."""

    key: str
    operator: str
    values: tuple[str, ...] = ()

    def admits(self, labels: Mapping[str, str]) -> bool:
        """Whether ``labels`` meet it. An operator that nobody knows admits nothing."""
        value = labels.get(self.key)
        match self.operator:
            case "In":
                return value in self.values
            case "NotIn":
                return value not in self.values
            case "Exists":
                return value is not None
            case "DoesNotExist":
                return value is None
            case _:
                return False


class LabelSelector(Struct, frozen=True, kw_only=True, rename="camel"):
    """A selector. An empty one selects everything; where there is none, nothing is selected."""

    match_labels: dict[str, str] = field(default_factory=dict)
    match_expressions: tuple[LabelRequirement, ...] = ()

    def selects(self, labels: Mapping[str, str]) -> bool:
        """Whether an object with ``labels`` is selected."""
        if any(labels.get(key) != value for key, value in self.match_labels.items()):
            return False
        return all(requirement.admits(labels) for requirement in self.match_expressions)
