"""Two Grafana dashboards, as code: cards and who holds them, and how the services do. ``python -m tools.manifests`` writes their JSON.

A panel is a row of data below; ``dashboards`` lays the rows out. Queries ask for metrics as services show them, without recording rules, so that
the dashboards work wherever the metrics are scraped. Every replica of the scheduler shows all cards: the maximum over replicas comes before a sum.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

from grafana_foundation_sdk.builders import bargauge, common, dashboard, prometheus, stat, table, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common as models
from grafana_foundation_sdk.models.dashboard import DashboardCursorSync, DataSourceRef, VariableRefresh, VariableSort
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

DATASOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")


class Query(NamedTuple):
    """One expression and how its series are called."""

    expr: str
    legend: str = ""


class Panel(NamedTuple):
    """One picture."""

    title: str
    kind: Literal["lines", "stacked", "bars", "number", "table"]
    queries: tuple[Query, ...]
    unit: str = "short"
    span: int = 8
    """Of 24 columns."""
    about: str = ""


CARD = "node, device_uuid, device_index, device_type"
LIMIT = 'max by (node, device_uuid) (hami_gpu_memory_limit_bytes{node=~"$node"})'
BOOKED = 'max by (node, device_uuid) (hami_gpu_memory_allocated_bytes{node=~"$node"})'
SHARE = "namespace, node, pod, container_index, device_uuid"
HELD = f'max by ({SHARE}) (hami_vgpu_memory_allocated_bytes{{node=~"$node", namespace=~"$namespace"}})'
CONTAINER = "namespace, pod, container, device_uuid"
OF_CONTAINERS = '{namespace=~"$namespace"}'


def _quantiles(name: str, by: str = "") -> tuple[Query, ...]:
    """Median and 99th percentile of a histogram."""
    labels, legend = (f"le, {by}", f" {{{{{by}}}}}") if by else ("le", "")
    return tuple(
        Query(f"histogram_quantile({part}, sum by ({labels}) (rate({name}_bucket[$__rate_interval])))", f"{word}{legend}")
        for part, word in ((0.5, "p50"), (0.99, "p99"))
    )


def _rate(name: str, by: str) -> tuple[Query, ...]:
    """How often a second, by a label."""
    return (Query(f"sum by ({by}) (rate({name}[$__rate_interval]))", " ".join(f"{{{{{each}}}}}" for each in by.split(", "))),)


CARDS: dict[str, tuple[Panel, ...]] = {
    "Cluster": (
        Panel("Nodes with cards", "number", (Query(f"count(count by (node) ({LIMIT}))"),), span=4),
        Panel("Cards", "number", (Query(f"count({LIMIT})"),), span=4),
        Panel("Memory booked", "number", (Query(f"sum({BOOKED}) / sum({LIMIT})"),), "percentunit", 4),
        Panel(
            "Compute booked",
            "number",
            (
                Query(
                    'sum(max by (node, device_uuid) (hami_gpu_core_allocated_ratio{node=~"$node"}))'
                    ' / sum(max by (node, device_uuid) (hami_gpu_core_limit_ratio{node=~"$node"}))'
                ),
            ),
            "percentunit",
            4,
        ),
        Panel(
            "Free memory beside others",
            "number",
            (Query(f"sum(({LIMIT} - {BOOKED}) * ({BOOKED} > bool 0)) / sum({LIMIT} - {BOOKED})"),),
            "percentunit",
            4,
            "Free memory on cards of which pods hold a part: no whole card can be made of it.",
        ),
        Panel("Pods with a share", "number", (Query(f"count(count by (namespace, pod) ({HELD}))"),), span=4),
    ),
    "Cards": (
        Panel(
            "Memory booked, by node",
            "lines",
            (Query(f"sum by (node) ({BOOKED}) / sum by (node) ({LIMIT})", "{{node}}"),),
            "percentunit",
            12,
        ),
        Panel(
            "Memory in use, by node",
            "lines",
            (Query('sum by (node) (hami_host_gpu_memory_used_bytes{node=~"$node"})', "{{node}}"),),
            "bytes",
            12,
            "As the driver counts it, with what is used without a share.",
        ),
        Panel(
            "Memory booked, by card",
            "bars",
            (
                Query(
                    f'max by ({CARD}) (hami_node_gpu_memory_allocated_ratio{{node=~"$node"}})', "{{node}} {{device_index}} {{device_type}}"
                ),
            ),
            "percentunit",
        ),
        Panel(
            "Compute booked, by card",
            "bars",
            (Query(f'max by ({CARD}) (hami_gpu_core_allocated_ratio{{node=~"$node"}})', "{{node}} {{device_index}} {{device_type}}"),),
            "percent",
        ),
        Panel(
            "Shares, by card",
            "bars",
            (Query(f'max by ({CARD}) (hami_gpu_shared_count{{node=~"$node"}})', "{{node}} {{device_index}} {{device_type}}"),),
        ),
        Panel(
            "Time in use, by card",
            "lines",
            (Query('max by (node, device_index) (hami_host_gpu_utilization_ratio{node=~"$node"})', "{{node}} {{device_index}}"),),
            "percent",
            12,
        ),
        Panel(
            "MIG instances",
            "table",
            (
                Query(
                    "count by (node, device_index, profile) (max by (node, device_index, mig_uuid, profile)"
                    ' (hami_node_gpu_mig_instance_info{node=~"$node"}))'
                ),
            ),
            span=12,
        ),
    ),
    "Namespaces": (
        Panel("Memory held, by namespace", "stacked", (Query(f"sum by (namespace) ({HELD})", "{{namespace}}"),), "bytes", 12),
        Panel(
            "Quotas used",
            "bars",
            (
                Query(
                    'max by (namespace, quota_name) (hami_resource_quota_used{namespace=~"$namespace", limit!="none"})'
                    ' / max by (namespace, quota_name) (hami_resource_quota_limit{namespace=~"$namespace"} > 0)',
                    "{{namespace}} {{quota_name}}",
                ),
            ),
            "percentunit",
            12,
        ),
        Panel(
            "Who holds most memory",
            "table",
            (Query(f"topk(20, sum by (namespace, pod, node) ({HELD}))"),),
            "bytes",
            24,
        ),
    ),
    "Containers": (
        Panel(
            "Memory used of what is held",
            "lines",
            (
                Query(
                    f"max by ({CONTAINER}) (hami_vgpu_memory_used_bytes{OF_CONTAINERS})"
                    f" / max by ({CONTAINER}) (hami_vgpu_memory_limit_bytes{OF_CONTAINERS} > 0)",
                    "{{namespace}}/{{pod}} {{container}}",
                ),
            ),
            "percentunit",
        ),
        Panel(
            "Memory used",
            "stacked",
            (Query(f"max by ({CONTAINER}) (hami_vgpu_memory_used_bytes{OF_CONTAINERS})", "{{namespace}}/{{pod}} {{container}}"),),
            "bytes",
        ),
        Panel(
            "Compute used",
            "lines",
            (
                Query(
                    f"max by ({CONTAINER}) (hami_container_device_utilization_ratio{OF_CONTAINERS})", "{{namespace}}/{{pod}} {{container}}"
                ),
            ),
            "percent",
        ),
    ),
}
SERVICES: dict[str, tuple[Panel, ...]] = {
    "Now": (
        Panel("Leaders", "number", (Query("sum by (lease) (hami_leader)", "{{lease}}"),), span=6, about="One for each lease."),
        Panel("Without the bus", "number", (Query("count(hami_bus_connected == 0) or vector(0)"),), span=3, about="Processes."),
        Panel("Nodes fenced", "number", (Query("max(hami_scheduler_fenced_nodes)"),), span=3),
        Panel("Nodes registered", "number", (Query("max by (state) (hami_registry_nodes)", "{{state}}"),), span=4),
        Panel("Cards that are out", "number", (Query('sum(hami_agent_devices{healthy="false"}) or vector(0)'),), span=4),
        Panel("Unenforced containers", "number", (Query("sum(hami_agent_unenforced_containers)"),), span=4),
    ),
    "Placing": (
        Panel("Filter calls", "lines", _rate("hami_scheduler_verdicts_total", "verdict"), "ops"),
        Panel("Filter takes", "lines", _quantiles("hami_scheduler_filter_seconds"), "s"),
        Panel("Binds", "lines", _rate("hami_scheduler_binds_total", "outcome"), "ops"),
        Panel("Bind takes", "lines", _quantiles("hami_scheduler_bind_seconds"), "s"),
        Panel(
            "Woken, evicted, forwarded",
            "lines",
            tuple(
                Query(f"sum(rate(hami_scheduler_{name}_total[$__rate_interval])) or vector(0)", name)
                for name in ("wakings", "evictions", "forwarded")
            ),
            "ops",
        ),
        Panel("Reviews", "lines", (*_rate("hami_webhook_reviews_total", "path, outcome"),), "ops"),
        Panel("A review takes", "lines", _quantiles("hami_webhook_review_seconds", "path"), "s"),
        Panel("Webhook's certificate is renewed in", "number", (Query("min(hami_webhook_certificate_renewal_seconds)"),), "s"),
    ),
    "Nodes": (
        Panel("Allocate and PreStartContainer", "lines", _rate("hami_agent_allocations_total", "call, outcome"), "ops"),
        Panel("They take", "lines", _quantiles("hami_agent_allocation_seconds", "call"), "s"),
        Panel("Cards, by health", "stacked", (Query("sum by (healthy) (hami_agent_devices)", "healthy {{healthy}}"),)),
        Panel("What the registry writes", "lines", _rate("hami_registry_writes_total", "kind, outcome"), "ops"),
        Panel("Outcomes written", "lines", _rate("hami_registry_outcomes_total", "type, result"), "ops"),
        Panel(
            "What cannot be read",
            "lines",
            tuple(
                Query(f"sum(increase({name}[$__rate_interval])) or vector(0)", legend)
                for name, legend in (
                    ("hami_scheduler_unreadable_records_total", "records, scheduler"),
                    ("hami_scheduler_unreadable_messages_total", "messages, scheduler"),
                    ("hami_registry_unreadable_records_total", "records, registry"),
                    ("hami_registry_unreadable_messages_total", "messages, registry"),
                )
            ),
        ),
    ),
    "Bus and API server": (
        Panel("Messages published", "lines", _rate("hami_bus_publishes_total", "outcome"), "ops"),
        Panel("Events that wait for the bus", "lines", (Query("sum(hami_outbox_pending)"),)),
        Panel(
            "Events lost",
            "lines",
            (
                Query("sum(increase(hami_outbox_dropped_total[$__rate_interval])) or vector(0)", "of the bus"),
                Query("sum(increase(hami_events_dropped_total[$__rate_interval])) or vector(0)", "Kubernetes Events"),
            ),
        ),
        Panel("Requests to the API server", "lines", _rate("hami_kube_requests_total", "verb, resource"), "ops"),
        Panel(
            "Requests that fail",
            "lines",
            (
                Query(
                    'sum by (verb, resource, code) (rate(hami_kube_requests_total{code!~"2.."}[$__rate_interval])) or vector(0)',
                    "{{verb}} {{resource}} {{code}}",
                ),
            ),
            "ops",
        ),
        Panel("The API server takes", "lines", _quantiles("hami_kube_request_seconds", "verb"), "s"),
        Panel("What runs", "table", (Query("count by (version, compiler, platform) (hami_build_info)"),), span=24),
    ),
}


def dashboards() -> dict[str, str]:
    """Each dashboard's name and JSON."""
    node = _values("node", "hami_gpu_memory_limit_bytes", "node")
    namespace = _values("namespace", "hami_vgpu_memory_allocated_bytes", "namespace")
    found = {
        "cards": _dashboard("hami-cards", "HAMi / Cards", "Cards, and who holds how much of them.", CARDS, node, namespace),
        "services": _dashboard("hami-services", "HAMi / Services", "How webhook, scheduler, registry and agents do.", SERVICES),
    }
    return {name: json.dumps(each.build(), cls=JSONEncoder, indent=2, sort_keys=True) + "\n" for name, each in found.items()}


def _dashboard(
    uid: str, title: str, about: str, rows: dict[str, tuple[Panel, ...]], *variables: dashboard.QueryVariable
) -> dashboard.Dashboard:
    made = (
        dashboard.Dashboard(title)
        .uid(uid)
        .description(about)
        .tags(["hami"])
        .readonly()
        .tooltip(DashboardCursorSync.CROSSHAIR)
        .time("now-1h", "now")
        .refresh("30s")
        .with_variable(dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus"))
    )
    for variable in variables:
        made = made.with_variable(variable)
    for row, panels in rows.items():
        made = made.with_row(dashboard.Row(row))
        for panel in panels:
            made = made.with_panel(_panel(panel))
    return made


def _values(name: str, metric: str, label: str) -> dashboard.QueryVariable:
    """A variable with all values of a label."""
    return (
        dashboard.QueryVariable(name)
        .label(name.capitalize())
        .datasource(DATASOURCE)
        .query(f"label_values({metric}, {label})")
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(VariableSort.ALPHABETICAL_ASC)
        .multi(True)
        .include_all(True)
        .all_value(".*")
    )


def _panel(panel: Panel) -> Any:
    makers: dict[str, Callable[[], Any]] = {
        "lines": lambda: timeseries.Panel().min(0).legend(_legend()).tooltip(_tooltip()),
        "stacked": lambda: (
            timeseries.Panel()
            .min(0)
            .fill_opacity(30)
            .stacking(common.StackingConfig().mode(models.StackingMode.NORMAL))
            .legend(_legend())
            .tooltip(_tooltip())
        ),
        "bars": lambda: bargauge.Panel().min(0).orientation(models.VizOrientation.HORIZONTAL).reduce_options(_last()),
        "number": lambda: stat.Panel().reduce_options(_last()).graph_mode(models.BigValueGraphMode.NONE),
        "table": lambda: table.Panel().show_header(True),
    }
    made = makers[panel.kind]().title(panel.title).datasource(DATASOURCE).unit(panel.unit).span(panel.span)
    made = made.height(4 if panel.kind == "number" else 8)
    if panel.about:
        made = made.description(panel.about)
    if panel.kind == "bars" and panel.unit.startswith("percent"):
        made = made.max(1 if panel.unit == "percentunit" else 100)
    for place, query in enumerate(panel.queries):
        target = prometheus.Dataquery().expr(query.expr).legend_format(query.legend or "__auto").ref_id(chr(ord("A") + place))
        if panel.kind in {"bars", "number", "table"}:
            target = target.instant()
        if panel.kind == "table":
            target = target.format(PromQueryFormat.TABLE)
        made = made.with_target(target)
    return made


def _last() -> common.ReduceDataOptions:
    return common.ReduceDataOptions().calcs(["lastNotNull"])


def _legend() -> common.VizLegendOptions:
    return common.VizLegendOptions().show_legend(True).placement(models.LegendPlacement.BOTTOM).display_mode(models.LegendDisplayMode.LIST)


def _tooltip() -> common.VizTooltipOptions:
    return common.VizTooltipOptions().mode(models.TooltipDisplayMode.MULTI)
