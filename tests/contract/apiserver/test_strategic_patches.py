import pytest

from .conftest import STRATEGIC, Api, a_map, a_pod


@pytest.mark.parametrize(
    ("before", "patch", "after"),
    [
        (["a", "b"], {"finalizers": ["hami.io/c"]}, ["a", "b", "c"]),
        (["a", "b"], {"$deleteFromPrimitiveList/finalizers": ["hami.io/a"]}, ["b"]),
        (["a", "b"], {"$deleteFromPrimitiveList/finalizers": ["hami.io/a"], "finalizers": ["hami.io/c"]}, ["b", "c"]),
    ],
)
async def test_lists_of_plain_values_are_sets(api: Api, before: list[str], patch: dict[str, list[str]], after: list[str]) -> None:
    await api.post(api.maps, a_map(metadata={"finalizers": [f"hami.io/{each}" for each in before]}))
    body = (await api.patch(f"{api.maps}/m", {"metadata": patch}, STRATEGIC)).body
    assert sorted(body["metadata"]["finalizers"]) == [f"hami.io/{each}" for each in after]
    await api.patch(f"{api.maps}/m", {"metadata": {"finalizers": None}}, STRATEGIC)


CONDITIONS = [{"type": name, "status": "True"} for name in ("A", "B", "C")]


@pytest.mark.parametrize(
    ("patch", "after"),
    [
        ({"conditions": [{"type": "D", "status": "True"}]}, "DABC"),
        ({"conditions": [{"type": each, "status": "False"} for each in "EBD"]}, "EABDC"),
        ({"$setElementOrder/conditions": [{"type": each} for each in "DBA"], "conditions": [{"type": "D", "status": "True"}]}, "DBAC"),
        ({"conditions": [{"$patch": "delete", "type": "B"}]}, "AC"),
        ({"conditions": [{"$patch": "replace"}, {"type": "D", "status": "True"}]}, "D"),
        (
            {
                "$setElementOrder/conditions": [{"type": "C"}, {"type": "A"}, {"type": "B"}],
                "conditions": [{"type": "A", "status": "False"}],
            },
            "CAB",
        ),
        ({"$setElementOrder/conditions": [{"type": "C"}, {"type": "A"}]}, "BCA"),
        ({"conditions": None}, ""),
    ],
)
async def test_keyed_lists_are_merged_by_key(api: Api, patch: dict[str, object], after: str) -> None:
    await api.post(api.pods, a_pod())
    await api.patch(f"{api.pods}/p/status", {"status": {"conditions": CONDITIONS}}, STRATEGIC)
    body = (await api.patch(f"{api.pods}/p/status", {"status": patch}, STRATEGIC)).body
    assert "".join(each["type"] for each in body["status"].get("conditions", ())) == after


async def test_directives_on_maps(api: Api) -> None:
    await api.post(api.maps, a_map(x="1", y="2"))
    path = f"{api.maps}/m"
    assert (await api.patch(path, {"data": {"$retainKeys": ["y", "z"], "z": "3"}}, STRATEGIC)).body["data"] == {"y": "2", "z": "3"}
    assert (await api.patch(path, {"data": {"$patch": "replace", "only": "4"}}, STRATEGIC)).body["data"] == {"only": "4"}
    assert "data" not in (await api.patch(path, {"data": {"$patch": "delete"}}, STRATEGIC)).body


@pytest.mark.parametrize("patch", [{"data": {"$patch": "sometimes"}}, {"metadata": {"ownerReferences": [{"name": "without-uid"}]}}])
async def test_a_patch_that_cannot_be_merged_is_refused(api: Api, patch: dict[str, object]) -> None:
    await api.post(api.maps, a_map(x="1"))
    assert (await api.patch(f"{api.maps}/m", patch, STRATEGIC)).code in (400, 422, 500)
    assert (await api.get(f"{api.maps}/m")).body["data"] == {"x": "1"}
