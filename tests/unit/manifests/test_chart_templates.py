"""How the variants of an object become one template."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from tools.chart.templates import Inline, Tree, With, condition, template

A, B, AB, NONE = frozenset({"a"}), frozenset({"b"}), frozenset({"a", "b"}), frozenset[str]()
EVERY = (NONE, A, B, AB)


@pytest.mark.parametrize(
    ("chosen", "expression"),
    [
        ((A, AB), ".Values.components.a"),
        ((NONE, B), "not .Values.components.a"),
        ((AB,), "and .Values.components.a .Values.components.b"),
        ((A, B, AB), "or (.Values.components.a) (.Values.components.b)"),
        ((A,), "and .Values.components.a (not .Values.components.b)"),
    ],
)
def test_a_condition_holds_for_what_was_chosen(chosen: tuple[frozenset[str], ...], expression: str) -> None:
    assert condition(chosen, EVERY) == expression


def test_what_all_variants_have_is_plain_and_neighbours_share_a_condition() -> None:
    text = template(
        {NONE: {"kind": "K", "list": [{"name": "x"}]}, A: {"kind": "K", "list": [{"name": "x"}, {"name": "y"}], "p": 1, "q": 2}}
    )
    assert text.count("{{- if .Values.components.a }}") == 2
    plain = "\n".join(line for line in text.splitlines() if not line.startswith("{{"))
    assert yaml.safe_load(plain) == {"kind": "K", "list": [{"name": "x"}, {"name": "y"}], "p": 1, "q": 2}


def test_items_that_several_components_append_are_merged_into_one_list() -> None:
    """Each of two components puts its item before the last one, which all have."""
    lists = {NONE: ["x", "z"], A: ["x", "a", "z"], B: ["x", "b", "z"], AB: ["x", "a", "b", "z"]}
    text = template({choice: {"list": [{"name": each} for each in names]} for choice, names in lists.items()})
    plain = "\n".join(line for line in text.splitlines() if not line.startswith("{{"))
    assert [each["name"] for each in yaml.safe_load(plain)["list"]] == ["x", "a", "b", "z"]


def test_values_that_differ_stand_beside_each_other() -> None:
    text = template({NONE: {"replicas": 1}, A: {"replicas": 2}})
    assert text == "---\n{{- if .Values.components.a }}\nreplicas: 2\n{{- else }}\nreplicas: 1\n{{- end }}\n"


def test_an_object_that_only_some_have_is_in_a_condition_whole() -> None:
    assert template({NONE: None, A: {"kind": "K"}}) == "{{- if .Values.components.a }}\n---\nkind: K\n{{- end }}\n"


def test_what_looks_like_an_action_is_text() -> None:
    text = template({NONE: {"data": {"rule": "{{ $labels.node }}"}}})
    assert '{{ "{{" }} $labels.node }}' in text


def test_expressions_stand_where_values_would() -> None:
    body: dict[str, Any] = {"image": Inline(".Values.i"), "resources": Tree(".Values.r"), "env": [{"name": "x"}, With(".Values.e")]}
    text = template({NONE: body | {"secrets": With(".Values.s")}})
    assert "image: {{ .Values.i }}" in text
    assert "resources: {{- toYaml .Values.r | nindent 2 }}" in text
    assert "{{- with .Values.e }}\n{{- toYaml . | nindent 2 }}\n{{- end }}" in text
    assert "{{- with .Values.s }}\nsecrets: {{- toYaml . | nindent 2 }}\n{{- end }}" in text


def test_lists_in_orders_that_contradict_each_other_are_not_merged() -> None:
    first, second = [{"name": "x"}, {"name": "y"}], [{"name": "y"}, {"name": "x"}]
    text = template({NONE: {"list": first}, A: {"list": second}})
    assert "{{- else }}" in text
