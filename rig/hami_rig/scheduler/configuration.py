"""The part of a KubeSchedulerConfiguration that the stand-in honours, and the one that the rig generates. Pure.

Fields that are not honoured here are accepted, so that the file that a real kube-scheduler is given can be used as it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import msgspec
from msgspec import Struct

API_VERSION = "kubescheduler.config.k8s.io/v1"
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)")
_UNIT_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


class ConfigurationError(ValueError):
    """A scheduler configuration that cannot be used; the text names the field, what was given and what is accepted."""


class _Part(Struct, frozen=True, kw_only=True, rename="camel"):
    """A part of the file."""


class ManagedResource(_Part, frozen=True, kw_only=True):
    """A resource whose pods go to the extender."""

    name: str
    ignored_by_scheduler: bool = False
    """Whether kube-scheduler's own resource filter leaves it to the extender."""


class ExtenderConfig(_Part, frozen=True, kw_only=True):
    """One extender."""

    url_prefix: str
    filter_verb: str = ""
    prioritize_verb: str = ""
    preempt_verb: str = ""
    bind_verb: str = ""
    weight: int = 1
    node_cache_capable: bool = False
    http_timeout: str = "5s"
    managed_resources: tuple[ManagedResource, ...] = ()

    @property
    def timeout_seconds(self) -> float:
        """``httpTimeout`` in seconds."""
        return parse_duration(self.http_timeout, field="extenders[].httpTimeout")

    @property
    def ignored_resources(self) -> frozenset[str]:
        """Resources that kube-scheduler does not count itself."""
        return frozenset(each.name for each in self.managed_resources if each.ignored_by_scheduler)

    @property
    def resource_names(self) -> frozenset[str]:
        """Resources whose pods go to this extender; empty means all pods do."""
        return frozenset(each.name for each in self.managed_resources)


class Profile(_Part, frozen=True, kw_only=True):
    """Whose pods are scheduled."""

    scheduler_name: str = "default-scheduler"


class SchedulerConfiguration(_Part, frozen=True, kw_only=True):
    """The whole file."""

    api_version: str = API_VERSION
    kind: str = "KubeSchedulerConfiguration"
    profiles: tuple[Profile, ...] = (Profile(),)
    extenders: tuple[ExtenderConfig, ...] = ()
    parallelism: int = 16
    """How many workers look at nodes at once; with one, nodes come in their own order."""
    percentage_of_nodes_to_score: int = 0
    pod_initial_backoff_seconds: float = 1.0
    pod_max_backoff_seconds: float = 10.0

    @property
    def scheduler_names(self) -> tuple[str, ...]:
        """Names that pods may ask for."""
        return tuple(profile.scheduler_name for profile in self.profiles)


def parse_duration(text: str, *, field: str) -> float:
    """A Go duration, as ``30s`` or ``1m30s``, in seconds."""
    parts = _DURATION.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise ConfigurationError(f"{field}: {text!r} is not a duration; accepted: as 5s, 500ms, 1m30s")
    return sum(float(number) * _UNIT_SECONDS[unit] for number, unit in parts)


def load(text: str) -> SchedulerConfiguration:
    """Read a KubeSchedulerConfiguration in YAML or JSON.

    Raises:
        ConfigurationError: it is none, or asks for what does not work.
    """
    try:
        configuration = msgspec.yaml.decode(text, type=SchedulerConfiguration)
    except msgspec.DecodeError as exc:
        raise ConfigurationError(f"scheduler configuration: {exc}") from exc
    if configuration.kind != "KubeSchedulerConfiguration":
        raise ConfigurationError(f"kind: {configuration.kind!r} is not accepted; accepted: 'KubeSchedulerConfiguration'")
    if configuration.parallelism < 1:
        raise ConfigurationError(f"parallelism: {configuration.parallelism} is not accepted; accepted: 1 or more")
    if sum(1 for extender in configuration.extenders if extender.bind_verb) > 1:
        raise ConfigurationError("extenders: at most one may have a bindVerb")
    for extender in configuration.extenders:
        parse_duration(extender.http_timeout, field="extenders[].httpTimeout")
    if len(configuration.extenders) > 1:
        raise ConfigurationError(f"extenders: {len(configuration.extenders)} are given; the stand-in calls at most one")
    return configuration


def generate(managed_resources: Iterable[str], *, extender_url: str, scheduler_name: str = "hami-scheduler") -> dict[str, Any]:
    """The configuration that the rig runs with: the same settings that are recommended for a real kube-scheduler."""
    return {
        "apiVersion": API_VERSION,
        "kind": "KubeSchedulerConfiguration",
        "percentageOfNodesToScore": 100,
        "podInitialBackoffSeconds": 1,
        "podMaxBackoffSeconds": 2,
        "profiles": [{"schedulerName": "default-scheduler"}, {"schedulerName": scheduler_name}],
        "extenders": [
            {
                "urlPrefix": extender_url,
                "filterVerb": "filter",
                "prioritizeVerb": "prioritize",
                "preemptVerb": "preempt",
                "bindVerb": "bind",
                "weight": 1,
                "nodeCacheCapable": True,
                "ignorable": False,
                "httpTimeout": "30s",
                "managedResources": [{"name": name, "ignoredByScheduler": True} for name in managed_resources],
            }
        ],
    }
