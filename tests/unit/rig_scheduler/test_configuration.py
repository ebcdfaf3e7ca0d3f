"""A KubeSchedulerConfiguration is read as a real kube-scheduler would be given it."""

from __future__ import annotations

import msgspec
import pytest

from hami_rig.scheduler import configuration
from hami_rig.scheduler.configuration import ConfigurationError

FILE = """
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
leaderElection: {leaderElect: false}
clientConnection: {kubeconfig: /etc/kubeconfig, qps: 1000}
percentageOfNodesToScore: 100
podMaxBackoffSeconds: 2
profiles: [{schedulerName: hami-scheduler}]
extenders:
- urlPrefix: "http://127.0.0.1:18080"
  filterVerb: filter
  bindVerb: bind
  nodeCacheCapable: true
  httpTimeout: 1m30s
  managedResources:
  - {name: nvidia.com/gpu, ignoredByScheduler: true}
  - {name: nvidia.com/other}
"""


def test_a_deployed_file_is_read() -> None:
    read = configuration.load(FILE)
    assert read.scheduler_names == ("hami-scheduler",)
    assert (read.pod_initial_backoff_seconds, read.pod_max_backoff_seconds) == (1, 2)
    assert read.extenders[0].timeout_seconds == 90
    assert read.extenders[0].ignored_resources == {"nvidia.com/gpu"}
    assert read.extenders[0].resource_names == {"nvidia.com/gpu", "nvidia.com/other"}


def test_what_the_rig_generates_is_what_is_recommended() -> None:
    read = configuration.load(msgspec.json.encode(configuration.generate(["nvidia.com/gpu"], extender_url="http://127.0.0.1:1")).decode())
    assert read.percentage_of_nodes_to_score == 100
    assert read.pod_max_backoff_seconds == 2
    assert read.extenders[0].node_cache_capable
    assert read.scheduler_names == ("default-scheduler", "hami-scheduler")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("1m30s", "soon"), "httpTimeout: 'soon' is not a duration; accepted: as 5s"),
        (("kind: KubeSchedulerConfiguration", "kind: Pod"), "kind: 'Pod' is not accepted"),
        (("filterVerb: filter", "filterVerb: 3"), r"extenders\[0\].filterVerb"),
        (("podMaxBackoffSeconds: 2", "parallelism: 0"), "parallelism: 0 is not accepted; accepted: 1 or more"),
    ],
)
def test_what_cannot_be_used_is_refused_by_name(change: tuple[str, str], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        configuration.load(FILE.replace(*change))
