"""Objects with every field that the API server may send are read: one that is not would hide the whole list that it is in."""

from typing import Any

import msgspec

from hami_protocol.kubernetes import Node, Pod

FIELD = {"fieldRef": {"apiVersion": "v1", "fieldPath": "status.hostIP"}}
MANAGED = [{"manager": "kubectl", "operation": "Apply", "apiVersion": "v1", "fieldsType": "FieldsV1", "fieldsV1": {"f:spec": {}}}]
CONTAINER: dict[str, Any] = {
    "name": "main",
    "image": "registry/image@sha256:0",
    "command": ["sh"],
    "args": ["-c", "true"],
    "workingDir": "/",
    "ports": [{"name": "http", "containerPort": 80, "protocol": "TCP"}],
    "envFrom": [{"prefix": "A_", "configMapRef": {"name": "c", "optional": True}}, {"secretRef": {"name": "s"}}],
    "env": [
        {"name": "PLAIN", "value": "1"},
        {"name": "EMPTY"},
        {"name": "FIELD", "valueFrom": FIELD},
        {"name": "RESOURCE", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu", "divisor": "0"}}},
        {"name": "MAP", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "k", "optional": False}}},
        {"name": "SECRET", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
        {"name": "FILE", "valueFrom": {"fileKeyRef": {"volumeName": "v", "path": "p", "key": "k"}}},
    ],
    "resources": {"limits": {"cpu": "1", "nvidia.com/gpu": "1"}, "requests": {"cpu": "500m"}, "claims": [{"name": "gpu", "request": "r"}]},
    "resizePolicy": [{"resourceName": "cpu", "restartPolicy": "NotRequired"}],
    "restartPolicy": "Always",
    "restartPolicyRules": [{"action": "Restart", "exitCodes": {"operator": "In", "values": [42]}}],
    "volumeMounts": [{"name": "v", "mountPath": "/v", "readOnly": True, "recursiveReadOnly": "Disabled"}],
    "volumeDevices": [{"name": "d", "devicePath": "/dev/d"}],
    "livenessProbe": {"exec": {"command": ["true"]}, "periodSeconds": 1},
    "lifecycle": {"preStop": {"sleep": {"seconds": 1}}},
    "terminationMessagePath": "/dev/termination-log",
    "imagePullPolicy": "Always",
    "securityContext": {"privileged": False, "capabilities": {"add": ["NET_ADMIN"]}, "seccompProfile": {"type": "RuntimeDefault"}},
    "stdin": True,
    "tty": False,
}
STATUS: dict[str, Any] = {
    "name": "main",
    "ready": False,
    "started": False,
    "restartCount": 3,
    "image": "registry/image",
    "imageID": "sha256:0",
    "containerID": "containerd://0",
    "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off"}},
    "lastState": {
        "terminated": {"exitCode": 137, "signal": 9, "reason": "OOMKilled", "startedAt": None, "finishedAt": "2026-01-01T00:00:00Z"}
    },
    "allocatedResources": {"cpu": "1"},
    "allocatedResourcesStatus": [{"name": "nvidia.com/gpu", "resources": [{"resourceID": "GPU-0", "health": "Healthy"}]}],
    "resources": {"limits": {"cpu": "1"}},
    "volumeMounts": [{"name": "v", "mountPath": "/v"}],
    "user": {"linux": {"uid": 0, "gid": 0, "supplementalGroups": [0]}},
}


def test_a_pod_with_every_field() -> None:
    body = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "p",
            "generateName": "p-",
            "namespace": "default",
            "uid": "u",
            "resourceVersion": "1",
            "generation": 2,
            "creationTimestamp": None,
            "deletionTimestamp": "2026-01-01T00:00:00Z",
            "deletionGracePeriodSeconds": 0,
            "labels": {"a": ""},
            "annotations": {"b": "c"},
            "finalizers": ["f"],
            "ownerReferences": [{"apiVersion": "v1", "kind": "K", "name": "n", "uid": "u", "controller": True, "blockOwnerDeletion": True}],
            "managedFields": MANAGED,
        },
        "spec": {
            "containers": [CONTAINER],
            "initContainers": [CONTAINER],
            "ephemeralContainers": [{**CONTAINER, "targetContainerName": "main"}],
            "volumes": [{"name": "v", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}}],
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 30,
            "activeDeadlineSeconds": 1,
            "nodeSelector": {"a": "b"},
            "nodeName": "n",
            "hostNetwork": True,
            "securityContext": {"runAsUser": 0},
            "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "k"}]}},
            "schedulerName": "hami-scheduler",
            "tolerations": [{"key": "k", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}, {}],
            "priorityClassName": "high",
            "priority": 1000,
            "preemptionPolicy": "PreemptLowerPriority",
            "overhead": {"cpu": "1"},
            "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "k", "whenUnsatisfiable": "DoNotSchedule"}],
            "setHostnameAsFQDN": False,
            "os": {"name": "linux"},
            "hostUsers": False,
            "schedulingGates": [{"name": "g"}],
            "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "t"}],
            "resources": {"limits": {"cpu": "2"}},
            "runtimeClassName": "nvidia",
            "readinessGates": [{"conditionType": "c"}],
        },
        "status": {
            "observedGeneration": 2,
            "phase": "Running",
            "conditions": [{"type": "Ready", "status": "False", "lastProbeTime": None, "lastTransitionTime": "t", "observedGeneration": 2}],
            "message": "m",
            "reason": "r",
            "nominatedNodeName": "n",
            "hostIPs": [{"ip": "10.0.0.1"}],
            "podIPs": [{"ip": "10.0.0.2"}],
            "startTime": "2026-01-01T00:00:00Z",
            "containerStatuses": [STATUS],
            "initContainerStatuses": [{**STATUS, "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}}],
            "ephemeralContainerStatuses": [STATUS],
            "qosClass": "Burstable",
            "resize": "Proposed",
            "resourceClaimStatuses": [{"name": "gpu", "resourceClaimName": "c"}],
            "allocatedResources": {"cpu": "1"},
        },
    }
    pod = msgspec.json.decode(msgspec.json.encode(body), type=Pod)
    env = pod.spec.containers[0].env or ()
    assert {each.name for each in env if each.value_from is not None} == {"FIELD", "RESOURCE", "MAP", "SECRET", "FILE"}
    assert pod.status.container_statuses is not None
    assert pod.status.container_statuses[0].restart_count == 3
    assert msgspec.json.decode(msgspec.json.encode(pod), type=Pod) == pod


def test_a_node_with_every_field() -> None:
    condition = {"type": "Ready", "status": "True", "lastHeartbeatTime": "t", "lastTransitionTime": "t", "reason": "r", "message": "m"}
    body = {
        "metadata": {
            "name": "n",
            "uid": "u",
            "resourceVersion": "1",
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "managedFields": MANAGED,
        },
        "spec": {
            "podCIDR": "10.0.0.0/24",
            "podCIDRs": ["10.0.0.0/24"],
            "providerID": "p",
            "unschedulable": True,
            "taints": [{"key": "k", "effect": "NoSchedule", "timeAdded": "2026-01-01T00:00:00Z"}],
            "configSource": {"configMap": {"name": "c", "namespace": "n", "kubeletConfigKey": "k"}},
        },
        "status": {
            "capacity": {"cpu": "64", "memory": "528346648Ki", "nvidia.com/gpu": "80"},
            "allocatable": {"cpu": "63500m"},
            "conditions": [condition],
            "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}},
            "nodeInfo": {"kubeletVersion": "v1.37.0", "containerRuntimeVersion": "containerd://2.4.0", "swap": {"capacity": 1}},
            "images": [{"names": ["registry/image"], "sizeBytes": 1}],
            "volumesInUse": ["v"],
            "runtimeHandlers": [{"name": "runc", "features": {"userNamespaces": True}}],
            "features": {"supplementalGroupsPolicy": True},
            "declaredFeatures": ["A"],
        },
    }
    node = msgspec.json.decode(msgspec.json.encode(body), type=Node)
    assert node.spec.unschedulable
    assert node.status.node_info is not None
    assert node.status.node_info.kubelet_version == "v1.37.0"
