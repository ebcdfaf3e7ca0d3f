import json

import yaml

from .conftest import Api, a_binding, a_pod

POD = """
apiVersion: v1
kind: Pod
metadata: {name: p, labels: {app: x}}
spec:
  containers:
  - {name: c, image: "busybox:1", resources: {limits: {nvidia.com/gpu: "1", nvidia.com/gpumem: "3000"}}}
"""


async def test_apply_creates_then_changes_then_leaves_alone(api: Api) -> None:
    assert await api.kubectl("apply", "-f", "-", stdin=POD) == (0, "pod/p created\n")
    changed = POD.replace("{app: x}", "{tier: z}").replace("busybox:1", "busybox:2").replace('"3000"', '"3k"')
    assert await api.kubectl("apply", "-f", "-", stdin=changed) == (0, "pod/p configured\n")
    assert await api.kubectl("apply", "-f", "-", stdin=changed) == (0, "pod/p unchanged\n")
    pod = (await api.get(f"{api.pods}/p")).body
    assert pod["metadata"]["labels"] == {"tier": "z"}
    assert pod["spec"]["containers"][0]["image"] == "busybox:2"


async def test_replace_keeps_what_the_server_filled_in(api: Api) -> None:
    # What the ServiceAccount plugin would fill in cannot be left out again where it runs.
    manifest = POD.replace("spec:\n", "spec:\n  serviceAccountName: default\n  automountServiceAccountToken: false\n")
    await api.kubectl("apply", "-f", "-", stdin=manifest)
    before = (await api.get(f"{api.pods}/p")).body
    assert await api.kubectl("replace", "-f", "-", stdin=manifest.replace("busybox:1", "busybox:2")) == (0, "pod/p replaced\n")
    after = (await api.get(f"{api.pods}/p")).body
    for name in ("priority", "preemptionPolicy", "tolerations"):
        assert after["spec"][name] == before["spec"][name]


async def test_a_node_is_cordoned_tainted_and_drained(api: Api) -> None:
    name = f"node-{api.namespace}"
    await api.post("/api/v1/nodes", {"metadata": {"name": name}})
    await api.post(api.pods, a_pod())
    await api.post(f"{api.pods}/p/binding", a_binding(node=name))
    assert await api.kubectl("cordon", name) == (0, f"node/{name} cordoned\n")
    assert await api.kubectl("taint", "node", name, "k=v:NoSchedule") == (0, f"node/{name} tainted\n")
    node = (await api.get(f"/api/v1/nodes/{name}")).body
    assert node["spec"]["unschedulable"] is True
    assert {"key": "k", "value": "v", "effect": "NoSchedule"} in node["spec"]["taints"]
    code, output = await api.kubectl("drain", name, "--force", "--grace-period=0", "--timeout=5s")
    await api.delete(f"/api/v1/nodes/{name}")
    assert (code, "pod/p evicted" in output) == (0, True), output
    assert (await api.get(f"{api.pods}/p")).code == 404


async def test_apply_names_the_field_that_is_unknown(api: Api) -> None:
    code, output = await api.kubectl("apply", "-f", "-", stdin=POD.replace("spec:", "spec:\n  nodSelector: {a: b}"))
    assert code == 1
    assert 'unknown field "spec.nodSelector"' in output


async def test_server_side_apply_reports_conflicts(api: Api) -> None:
    document = yaml.safe_dump({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}, "data": {"a": "1"}})
    assert (await api.kubectl("apply", "--server-side", "--field-manager", "one", "-f", "-", stdin=document))[0] == 0
    code, output = await api.kubectl("apply", "--server-side", "--field-manager", "two", "-f", "-", stdin=document.replace("'1'", "'2'"))
    assert code == 1
    assert 'Apply failed with 1 conflict: conflict with "one": .data.a' in output


async def test_get_prints_tables_json_and_names(api: Api) -> None:
    await api.kubectl("apply", "-f", "-", stdin=POD)
    await api.post(f"{api.pods}/p/binding", a_binding())
    code, output = await api.kubectl("get", "pods", "-o", "wide", "--show-labels")
    assert code == 0
    header, row = output.splitlines()
    assert header.split()[:5] == ["NAME", "READY", "STATUS", "RESTARTS", "AGE"]
    assert row.split()[:4] == ["p", "0/1", "Pending", "0"]
    assert "n1" in row.split()
    assert row.endswith("app=x")
    assert json.loads((await api.kubectl("get", "pod", "p", "-o", "json"))[1])["spec"]["nodeName"] == "n1"
    assert yaml.safe_load((await api.kubectl("get", "pods", "-o", "yaml"))[1])["items"][0]["metadata"]["name"] == "p"
    assert await api.kubectl("get", "pods", "-l", "app=x", "-o", "name") == (0, "pod/p\n")
    assert await api.kubectl("get", "pod", "nope") == (1, 'Error from server (NotFound): pods "nope" not found\n')


async def test_describe_shows_a_pod_and_its_events(api: Api) -> None:
    await api.kubectl("apply", "-f", "-", stdin=POD)
    pod = (await api.get(f"{api.pods}/p")).body
    regarding = {"kind": "Pod", "namespace": api.namespace, "name": "p", "uid": pod["metadata"]["uid"]}
    event = {
        "metadata": {"name": "e"},
        "involvedObject": regarding,
        "reason": "Refused",
        "message": "no room",
        "type": "Warning",
        "count": 2,
    }
    assert (await api.post(api.events, {**event, "source": {"component": "hami"}})).code == 201
    code, output = await api.kubectl("describe", "pod", "p")
    assert code == 0
    lines = [line.split() for line in output.splitlines()]
    assert ["nvidia.com/gpumem:", "3k"] in lines
    assert any(line[:2] == ["Warning", "Refused"] and line[-3:] == ["hami", "no", "room"] for line in lines)
    code, output = await api.kubectl("events")
    assert (code, "no room" in output) == (0, True)


async def test_describe_shows_a_node(api: Api) -> None:
    name = f"node-{api.namespace}"
    await api.post("/api/v1/nodes", {"metadata": {"name": name}, "status": {"capacity": {"nvidia.com/gpu": "10"}}})
    code, output = await api.kubectl("describe", "node", name)
    await api.delete(f"/api/v1/nodes/{name}")
    assert code == 0
    assert "nvidia.com/gpu:  10" in output


async def test_wait_sees_a_condition_and_a_deletion(api: Api) -> None:
    await api.post(api.pods, a_pod())
    ready = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
    await api.patch(f"{api.pods}/p/status", ready)
    assert await api.kubectl("wait", "--for=condition=Ready", "pod/p", "--timeout=5s") == (0, "pod/p condition met\n")
    code, output = await api.kubectl("delete", "pod", "p")
    assert (code, output.startswith('pod "p" deleted')) == (0, True)
    assert (await api.kubectl("wait", "--for=delete", "pod/p", "--timeout=5s"))[0] == 0


async def test_labels_annotations_and_patches(api: Api) -> None:
    await api.post(api.pods, a_pod())
    assert await api.kubectl("label", "pod", "p", "a=b") == (0, "pod/p labeled\n")
    assert await api.kubectl("annotate", "pod", "p", "hami.io/x=1") == (0, "pod/p annotated\n")
    assert await api.kubectl("patch", "pod", "p", "-p", '{"metadata":{"labels":{"c":"d"}}}') == (0, "pod/p patched\n")
    assert await api.kubectl("patch", "pod", "p", "--type=json", "-p", '[{"op":"remove","path":"/metadata/labels/a"}]') == (
        0,
        "pod/p patched\n",
    )
    metadata = (await api.get(f"{api.pods}/p")).body["metadata"]
    assert (metadata["labels"], metadata["annotations"]) == ({"c": "d"}, {"hami.io/x": "1"})


async def test_what_kubectl_sends_in_protobuf_is_read(api: Api) -> None:
    other = f"{api.namespace}-made"
    assert await api.kubectl("create", "namespace", other) == (0, f"namespace/{other} created\n")
    assert (await api.kubectl("delete", "namespace", other, "--wait=false"))[0] == 0
    assert await api.kubectl("create", "configmap", "m", "--from-literal=a=b") == (0, "configmap/m created\n")
    assert (await api.get(f"{api.maps}/m")).body["data"] == {"a": "b"}
    assert await api.kubectl("create", "secret", "generic", "s", "--from-literal=k=v") == (0, "secret/s created\n")
    assert await api.kubectl("create", "quota", "q", "--hard=pods=3,limits.nvidia.com/gpumem=3000") == (0, "resourcequota/q created\n")
    quota = (await api.get(f"/api/v1/namespaces/{api.namespace}/resourcequotas/q")).body
    assert quota["spec"]["hard"] == {"pods": "3", "limits.nvidia.com/gpumem": "3k"}


async def test_explain_describes_a_field(api: Api) -> None:
    code, output = await api.kubectl("explain", "pod.spec.containers.resources")
    assert code == 0
    assert "FIELD: resources <ResourceRequirements>" in output
    assert "  limits\t<map[string]Quantity>" in output or "  limits\t<map[string]string>" in output


async def test_discovery_knows_short_names_and_what_may_be_done(api: Api) -> None:
    assert (await api.kubectl("get", "po,no,ns,cm,pdb,pc,quota,leases.coordination.k8s.io", "--ignore-not-found"))[0] == 0
    assert (await api.kubectl("auth", "can-i", "create", "pods")) == (0, "yes\n")
    code, output = await api.kubectl("version", "-o", "json")
    assert code == 0
    answer, _ = json.JSONDecoder().raw_decode(output)  # behind it, kubectl may warn of a server that is older than itself
    assert answer["serverVersion"]["major"] == "1"


REPLICA_SET = """
apiVersion: apps/v1
kind: ReplicaSet
metadata: {name: r}
spec:
  replicas: 2
  selector: {matchLabels: {app: x}}
  template: {metadata: {labels: {app: x}}, spec: {containers: [{name: c, image: "i:1"}]}}
"""


async def test_a_replica_set_is_applied_only_with_the_labels_that_it_selects(api: Api) -> None:
    assert await api.kubectl("apply", "-f", "-", stdin=REPLICA_SET) == (0, "replicaset.apps/r created\n")
    assert await api.kubectl("apply", "-f", "-", stdin=REPLICA_SET) == (0, "replicaset.apps/r unchanged\n")
    code, output = await api.kubectl("get", "rs")
    assert (code, output.split()[:7]) == (0, ["NAME", "DESIRED", "CURRENT", "READY", "AGE", "r", "2"])
    strange = REPLICA_SET.replace("labels: {app: x}", "labels: {app: z}").replace("name: r", "name: s")
    code, output = await api.kubectl("apply", "-f", "-", stdin=strange)
    assert code == 1
    assert "`selector` does not match template `labels`" in output
