"""Prints ``docs/metrics.md``: every metric of every service, from the calls that make them. ``python -m tools.metrics_page > docs/metrics.md``.

Read from the sources, so that nothing has to run: instruments of a ``Telemetry``, and series that a collector makes itself. Their names, and the
names of a collector's labels, have to be literals, which is how one finds them with grep too.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
SOURCES = {
    "every service": "libs/runtime/hami_runtime",
    "scheduler": "services/scheduler/hami_scheduler",
    "webhook": "services/webhook/hami_webhook",
    "registry": "services/registry/hami_registry",
    "node-agent": "services/node-agent/hami_node_agent",
}
INSTRUMENTS = {"counter": "counter", "histogram": "histogram", "gauge": "gauge"}
FAMILIES = {"GaugeMetricFamily": "gauge", "CounterMetricFamily": "counter", "InfoMetricFamily": "gauge"}
HEADER = """\
# Metrics

Made by `make docs` from the code. Every service serves them as Prometheus text on `/metrics` of its health port, and sends them by OTLP where
`HAMI_OTLP_ENDPOINT` is set. `components/prometheus-operator` scrapes them and brings rules and alerts (`deploy/prometheus`).

Gauges of cards and shares have the names and labels of HAMi's own scheduler, new and old, so that dashboards and alerts keep working; `zone` is
`vGPU`, a `_ratio` of cores is 0 to 100, of memory 0 to 1. Every replica of the scheduler shows them, from a state that it keeps warm: take the
maximum over replicas before a sum (`sum(max by (node, device_uuid) (hami_gpu_memory_allocated_bytes))`). `HAMI_CARD_METRICS` leaves out the earlier
names of the scheduler's (`new`) or all of its series of cards and shares (`none`), which a very large cluster has too many of ([Scale](scale.md)).

| metric | type | labels | of | meaning |
|---|---|---|---|---|
"""


class Metric(NamedTuple):
    """One metric as Prometheus shows it."""

    name: str
    kind: str
    labels: tuple[str, ...]
    service: str
    meaning: str


def metrics(root: Path = ROOT) -> list[Metric]:
    """Every metric, in order of service and name."""
    found: list[Metric] = []
    for service, folder in SOURCES.items():
        of_service = {
            metric.name: metric
            for path in sorted((root / folder).rglob("*.py"))
            for function in ast.walk(ast.parse(path.read_text()))
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
            for metric in _made_in(function, service)
        }
        found += sorted(of_service.values())
    return found


def _made_in(function: ast.FunctionDef | ast.AsyncFunctionDef, service: str) -> Iterator[Metric]:
    known = {
        target.id: node.value
        for node in ast.walk(function)
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for call in ast.walk(function):
        if not isinstance(call, ast.Call) or not call.args or not _is_text(call.args[0]):
            continue
        called = call.func.attr if isinstance(call.func, ast.Attribute) else call.func.id if isinstance(call.func, ast.Name) else ""
        texts = [each.value for each in call.args if isinstance(each, ast.Constant) and isinstance(each.value, str)]
        lists = [labels for each in call.args if (labels := _texts(each, known)) is not None]
        if called in INSTRUMENTS and len(texts) > 1:
            name = f"{texts[0]}_total" if called == "counter" else texts[0]
            yield Metric(name, INSTRUMENTS[called], (), service, texts[1])
        elif called in FAMILIES and len(texts) > 1:
            keyword = next((_texts(each.value, known) for each in call.keywords if each.arg == "labels"), None)
            yield Metric(texts[0], FAMILIES[called], keyword or (), service, texts[1])
        elif called == "_pair" and len(lists) > 1:
            name, old_name, meaning = texts
            yield Metric(name, "gauge", ("zone", *lists[0]), service, meaning)
            yield Metric(old_name, "gauge", ("zone", *lists[1]), service, f"earlier name of `{name}`")


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _texts(node: ast.expr, known: dict[str, ast.expr]) -> tuple[str, ...] | None:
    """The texts of a literal tuple, or of a name that stands for one."""
    if isinstance(node, ast.Name) and node.id in known:
        node = known[node.id]
    if not isinstance(node, ast.Tuple | ast.List):
        return None
    return tuple(str(each.value) for each in node.elts if isinstance(each, ast.Constant))


def document(root: Path = ROOT) -> str:
    """The page."""
    rows = (
        f"| `{each.name}` | {each.kind} | {', '.join(each.labels)} | {each.service} | {each.meaning.replace('|', '/')} |\n"
        for each in metrics(root)
    )
    return HEADER + "".join(rows)


def main() -> None:
    """Print it."""
    sys.stdout.write(document())


if __name__ == "__main__":
    main()
