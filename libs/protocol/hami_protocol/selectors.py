"""Label selectors of Kubernetes objects (``matchLabels`` and ``matchExpressions``), read as the API server reads them. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct


class LabelRequirement(Struct, frozen=True, kw_only=True, rename="camel"):
    """One of ``matchExpressions``, of a label selector or of a node selector."""

    key: str
    operator: str
    values: tuple[str, ...] | None = None

    def admits(self, labels: Mapping[str, str]) -> bool:
        """Whether ``labels`` meet the requirement. An unknown operator admits nothing."""
        value, values = labels.get(self.key), self.values or ()
        match self.operator:
            case "In":
                return value in values
            case "NotIn":
                return value not in values
            case "Exists":
                return value is not None
            case "DoesNotExist":
                return value is None
            case "Gt" | "Lt":
                return _compares(value, values, greater=self.operator == "Gt")
            case _:
                return False


def _compares(value: str | None, values: Sequence[str], *, greater: bool) -> bool:
    """Whether ``value`` is greater, or less, than the only one of ``values``; false where either is no integer."""
    try:
        left, right = int(value or ""), int(values[0] if len(values) == 1 else "")
    except ValueError:
        return False
    return left > right if greater else left < right


class LabelSelector(Struct, frozen=True, kw_only=True, rename="camel"):
    """A selector. An empty one selects everything; where there is none, nothing is selected."""

    match_labels: dict[str, str] | None = None
    match_expressions: tuple[LabelRequirement, ...] | None = None

    def selects(self, labels: Mapping[str, str]) -> bool:
        """Whether an object with ``labels`` is selected."""
        if any(labels.get(key) != value for key, value in (self.match_labels or {}).items()):
            return False
        return all(requirement.admits(labels) for requirement in self.match_expressions or ())
