from .conftest import STRATEGIC, Api, a_binding, a_map, a_pod


async def test_a_watch_from_a_list_misses_nothing(api: Api) -> None:
    await api.post(api.maps, a_map("before"))
    since = (await api.get(api.maps)).body["metadata"]["resourceVersion"]
    await api.post(api.maps, a_map("m", x="1"))
    async with api.watch(api.maps, resourceVersion=since, fieldSelector="metadata.name=m") as watch:
        kind, first = await watch.next()
        assert (kind, first["data"]) == ("ADDED", {"x": "1"})
        await api.patch(f"{api.maps}/m", {"data": {"x": "2"}})
        kind, second = await watch.next()
        assert (kind, second["data"]) == ("MODIFIED", {"x": "2"})
        await api.delete(f"{api.maps}/m")
        kind, last = await watch.next()
        assert (kind, last["data"]) == ("DELETED", {"x": "2"})
    versions = [int(each["metadata"]["resourceVersion"]) for each in (first, second, last)]
    assert versions == sorted(set(versions))


async def test_a_watch_without_a_version_starts_with_what_is_there(api: Api) -> None:
    await api.post(api.maps, a_map("m"))
    for version in ({}, {"resourceVersion": "0"}):
        async with api.watch(api.maps, fieldSelector="metadata.name=m", **version) as watch:
            kind, body = await watch.next()
            assert (kind, body["kind"], body["metadata"]["name"]) == ("ADDED", "ConfigMap", "m")


async def test_what_stops_matching_is_deleted_and_what_starts_is_added(api: Api) -> None:
    since = (await api.post(api.pods, a_pod(metadata={"labels": {"app": "x"}}))).body["metadata"]["resourceVersion"]
    async with (
        api.watch(api.pods, resourceVersion=since, labelSelector="app=x") as by_label,
        api.watch(api.pods, resourceVersion=since, fieldSelector="spec.nodeName=n1") as by_node,
    ):
        await api.post(f"{api.pods}/p/binding", a_binding())
        kind, pod = await by_node.next()
        assert (kind, pod["spec"]["nodeName"]) == ("ADDED", "n1")
        assert (await by_label.next())[0] == "MODIFIED"
        changed = (await api.patch(f"{api.pods}/p", {"metadata": {"labels": {"app": "y"}}})).body
        kind, left = await by_label.next()
        assert (kind, left["metadata"]["labels"]) == ("DELETED", {"app": "x"})
        assert left["metadata"]["resourceVersion"] == changed["metadata"]["resourceVersion"]


async def test_a_streamed_list_ends_with_a_bookmark(api: Api) -> None:
    await api.post(api.maps, a_map("m"))
    query = {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan", "allowWatchBookmarks": "true"}
    async with api.watch(api.maps, fieldSelector="metadata.name=m", **query) as watch:
        assert (await watch.next())[0] == "ADDED"
        kind, mark = await watch.next()
        assert (kind, mark["kind"], mark["metadata"]["annotations"]) == ("BOOKMARK", "ConfigMap", {"k8s.io/initial-events-end": "true"})
    refused = await api.get(api.maps, watch="true", sendInitialEvents="true")
    assert refused.error == (422, "Invalid")


async def test_a_watch_ends_when_its_time_is_over(api: Api) -> None:
    since = (await api.get(api.maps)).body["metadata"]["resourceVersion"]
    async with api.watch(api.maps, resourceVersion=since, fieldSelector="metadata.name=nope", timeoutSeconds="1") as watch:
        assert await watch.rest() == []


async def test_an_update_that_changes_nothing_is_no_event(api: Api) -> None:
    since = (await api.post(api.pods, a_pod(metadata={"annotations": {"a": "1"}}))).body["metadata"]["resourceVersion"]
    async with api.watch(api.pods, resourceVersion=since) as watch:
        await api.patch(f"{api.pods}/p", {"metadata": {"annotations": {"a": "1"}}}, STRATEGIC)
        await api.patch(f"{api.pods}/p", {"metadata": {"annotations": {"a": "2"}}}, STRATEGIC)
        assert (await watch.next())[1]["metadata"]["annotations"] == {"a": "2"}
