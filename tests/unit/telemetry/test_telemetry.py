import asyncio
import io
import json
import logging

import pytest
import structlog
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from hami_runtime import logs
from hami_runtime.http import serve_app
from hami_runtime.telemetry import OFF, Telemetry, current_traceparent, valid_traceparent

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_two_services_in_one_process_do_not_meet() -> None:
    scheduler, registry = Telemetry("scheduler"), Telemetry("registry")
    scheduler.counter("hami_pods_placed", "pods placed").add(3, {"node": "n1"})
    registry.counter("hami_pods_placed", "pods placed").add(5, {"node": "n1"})
    assert 'hami_pods_placed_total{node="n1"} 3.0' in scheduler.prometheus_text().decode()
    assert 'hami_pods_placed_total{node="n1"} 5.0' in registry.prometheus_text().decode()


def test_counters_of_one_name_count_together_whatever_the_order_of_labels() -> None:
    telemetry = Telemetry("scheduler")
    telemetry.counter("hami_calls", "calls").add(1, {"verb": "get", "code": "200"})
    telemetry.counter("hami_calls", "calls").add(2, {"code": "200", "verb": "get"})
    lines = [line for line in telemetry.prometheus_text().decode().splitlines() if line.startswith("hami_calls")]
    assert lines == ['hami_calls_total{code="200",verb="get"} 3.0']


def test_gauges_are_asked_when_somebody_looks() -> None:
    telemetry = Telemetry("scheduler")
    waiting = [1]
    telemetry.gauge("hami_waiting", "pods that wait", lambda: waiting[0])
    telemetry.gauge("hami_fenced", "nodes that are fenced", lambda: [(1, {"node": "n1"}), (1, {"node": "n2"})])
    waiting[0] = 7
    text = telemetry.prometheus_text().decode()
    assert "hami_waiting 7.0" in text
    assert 'hami_fenced{node="n2"} 1.0' in text


def test_a_gauge_may_be_shared_by_labels() -> None:
    telemetry = Telemetry("scheduler")
    for lease in ("one", "two"):
        telemetry.gauge("hami_leader", "1 while this replica leads", lambda lease=lease: [(1, {"lease": lease})])
    text = telemetry.prometheus_text().decode()
    assert 'hami_leader{lease="one"} 1.0' in text
    assert 'hami_leader{lease="two"} 1.0' in text


def test_histograms_have_buckets_of_seconds() -> None:
    telemetry = Telemetry("scheduler")
    telemetry.histogram("hami_filter_seconds", "how long filter takes").record(0.0015)
    assert 'hami_filter_seconds_bucket{le="0.002"} 1.0' in telemetry.prometheus_text().decode()


def test_a_span_goes_on_with_the_given_trace() -> None:
    telemetry = Telemetry("scheduler")
    with telemetry.span("filter", PARENT, node="n1"):
        ours = current_traceparent()
        with telemetry.span("fit"):
            inner = current_traceparent()
    assert ours.split("-")[1] == inner.split("-")[1] == PARENT.split("-")[1]
    assert len({ours, inner, PARENT}) == 3
    assert current_traceparent() == ""


def test_without_telemetry_there_is_no_trace() -> None:
    with OFF.span("filter", PARENT):
        assert current_traceparent() == ""
    OFF.counter("hami_x", "x").add(1)
    OFF.close()


@given(st.text(max_size=80))
def test_any_text_may_be_offered_as_a_trace(text: str) -> None:
    telemetry = Telemetry("webhook")
    with telemetry.span("review", text):
        assert valid_traceparent(current_traceparent())


@pytest.mark.parametrize(
    ("text", "valid"),
    [(PARENT, True), ("", False), ("00-zz", False), (PARENT.replace("0af7651916cd43dd8448eb211c80319c", "0" * 32), False)],
)
def test_a_trace_context_is_recognised(text: str, valid: bool) -> None:
    assert valid_traceparent(text) is valid


async def test_a_collector_gets_traces_and_metrics_by_the_end() -> None:
    received: dict[str, bytes] = {}

    async def collect(request: web.Request) -> web.Response:
        received[request.path] = await request.read()
        return web.Response(content_type="application/x-protobuf")

    app = web.Application()
    app.router.add_post("/v1/{what}", collect)
    async with serve_app(app) as port:
        telemetry = Telemetry("scheduler", f"http://127.0.0.1:{port}/")
        telemetry.counter("hami_pods_placed", "pods placed").add(1)
        with telemetry.span("filter"):
            pass
        await asyncio.to_thread(telemetry.close)
    assert b"hami-scheduler" in received["/v1/traces"]
    assert b"filter" in received["/v1/traces"]
    assert b"hami_pods_placed" in received["/v1/metrics"]


@pytest.fixture
def _restored_logging() -> None:
    root, handlers, level = logging.getLogger(), logging.getLogger().handlers[:], logging.getLogger().level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()


@pytest.mark.usefixtures("_restored_logging")
def test_log_lines_are_json_with_service_and_trace() -> None:
    out = io.StringIO()
    logs.configure("info", "scheduler", stream=out)
    with Telemetry("scheduler").span("filter", PARENT):
        structlog.get_logger().info("share placed", memory_mib=4096)
    structlog.get_logger().debug("not shown")
    logging.getLogger("aiohttp").warning("lost %d", 3)
    first, second = (json.loads(line) for line in out.getvalue().splitlines())
    assert (first["event"], first["memory_mib"], first["service"], first["level"]) == ("share placed", 4096, "scheduler", "info")
    assert first["trace_id"] == PARENT.split("-")[1]
    assert (second["event"], second["logger"], second["service"]) == ("lost 3", "aiohttp", "scheduler")


@pytest.mark.usefixtures("_restored_logging")
def test_a_line_names_the_module_that_asked_for_the_logger_and_tells_what_only_json_of_old_can() -> None:
    out = io.StringIO()
    logs.configure("info", "scheduler", stream=out)
    structlog.get_logger().info("pod %s", "p", uid="half  ", large=2**70, where=logs)
    structlog.get_logger("named").warning("lost")
    first, second = (json.loads(line) for line in out.getvalue().splitlines())
    assert (first["event"], first["logger"], first["uid"], first["large"]) == ("pod p", __name__, "half  ", 2**70)
    assert "hami_runtime.logs" in first["where"]
    assert (second["logger"], second["level"]) == ("named", "warning")


@pytest.mark.usefixtures("_restored_logging")
def test_below_the_level_nothing_is_looked_at() -> None:
    class Unspeakable:
        def __repr__(self) -> str:
            raise AssertionError

    out = io.StringIO()
    logs.configure("warning", "scheduler", stream=out)
    structlog.get_logger().info("pod bound", pod=Unspeakable())
    assert out.getvalue() == ""


@pytest.mark.usefixtures("_restored_logging")
def test_a_logger_that_is_made_for_good_is_made_once() -> None:
    earlier, later = io.StringIO(), io.StringIO()
    logs.configure("info", "scheduler", stream=earlier, for_good=True)
    log = structlog.get_logger()
    log.info("one")
    logs.configure("info", "scheduler", stream=later)
    log.info("two")
    assert [json.loads(line)["event"] for line in earlier.getvalue().splitlines()] == ["one", "two"]
    assert later.getvalue() == ""


@pytest.mark.usefixtures("_restored_logging")
def test_an_exception_stays_on_its_line() -> None:
    out = io.StringIO()
    logs.configure("info", "scheduler", stream=out)
    try:
        raise ValueError("no")
    except ValueError:
        structlog.get_logger().exception("pod not read")
    (line,) = out.getvalue().splitlines()
    assert "ValueError: no" in json.loads(line)["exception"]


def test_a_level_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="'loud' is not accepted; accepted: debug"):
        logs.configure("loud", "scheduler")


def test_every_service_says_what_runs() -> None:
    (line,) = [line for line in Telemetry("registry").prometheus_text().decode().splitlines() if line.startswith("hami_build_info{")]
    for label in ("version", "revision", "build_date", "go_version", "compiler", "platform"):
        assert f'{label}="' in line
    assert line.endswith("} 1.0")
