"""Traces and metrics of one service, through OpenTelemetry. Nothing global: two services in one process do not meet.

A ``Telemetry`` is handed to whoever measures. Without an endpoint nothing leaves the process, and spans are their ids alone, so that one trace
leads from admission through filter, bind and bus to Allocate. ``OFF`` measures nothing: for simulations and tests.
OpenTelemetry's SDK is imported by who measures: the command line starts without it.

Spans and counters are on the way of every pod and every message: what OpenTelemetry does for each is done here only where somebody will see it.
"""

from __future__ import annotations

import functools
import platform
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib import metadata
from types import MappingProxyType
from typing import TYPE_CHECKING

from opentelemetry import context as contexts
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.metrics import CallbackOptions, Histogram, Meter, NoOpMeter, Observation
from opentelemetry.trace import NonRecordingSpan, Span, SpanContext, TraceFlags, Tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from prometheus_client import CollectorRegistry, generate_latest

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.id_generator import IdGenerator

_PROPAGATOR = TraceContextTextMapPropagator()
_SCOPE = "hami"
_SECONDS_BUCKETS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
_EXPORT_SECONDS = 2.0
"""A collector that is away must not hold up a process that stops."""
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Attributes = Mapping[str, str | int | float | bool]
Observed = float | Iterable[tuple[float, Attributes]]
Observe = Callable[[], Observed]


class Counter:
    """How often something has happened, by labels; OpenTelemetry is told the sums when somebody looks."""

    def __init__(self) -> None:
        self._sums: dict[frozenset[tuple[str, str | int | float | bool]], float] = {}

    def add(self, amount: float, labels: Attributes = MappingProxyType({})) -> None:
        """It has happened so many times more."""
        key = frozenset(labels.items())
        self._sums[key] = self._sums.get(key, 0) + amount

    def observations(self, _options: CallbackOptions) -> list[Observation]:
        """The sums."""
        return [Observation(amount, dict(key)) for key, amount in tuple(self._sums.items())]


class Telemetry:
    """One service's spans and instruments.

    Attributes:
        meter: makes instruments. Their names begin with ``hami_``.
        registry: what ``prometheus_text`` shows; a collector of one's own may be registered here, for series that are read when somebody looks.
    """

    def __init__(self, service: str, otlp_endpoint: str | None = None) -> None:
        """Measure ``service``; send traces and metrics to ``otlp_endpoint`` (OTLP over HTTP) where one is given."""
        from opentelemetry.exporter.prometheus import PrometheusMetricReader
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import MetricReader, PeriodicExportingMetricReader
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        resource = Resource.create({"service.name": f"hami-{service}", "service.namespace": "hami"})
        self.registry = CollectorRegistry()
        self._observers: dict[str, list[Observe]] = {}
        self._counters: dict[str, Counter] = {}
        self._pieces: list[Callable[[], Iterator[str]]] = []
        readers: list[MetricReader] = [PrometheusMetricReader(disable_target_info=True, scope_info_enabled=False, registry=self.registry)]
        self._tracing = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._tracer: Tracer | None = None
        """Where nobody will see a span, nobody makes one."""
        if otlp_endpoint:
            from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

            endpoint = otlp_endpoint.rstrip("/")
            readers.append(PeriodicExportingMetricReader(OTLPMetricExporter(endpoint=f"{endpoint}/v1/metrics", timeout=_EXPORT_SECONDS)))
            self._tracing.add_span_processor(
                BatchSpanProcessor(OTLPSpanExporter(endpoint=f"{endpoint}/v1/traces", timeout=_EXPORT_SECONDS))
            )
            self._tracer = self._tracing.get_tracer(_SCOPE)
        self._measuring = MeterProvider(readers, resource=resource, shutdown_on_exit=False)
        self.meter: Meter = self._measuring.get_meter(_SCOPE)
        self.gauge("hami_build_info", "1, with what runs", lambda: [(1, build_info())])

    @property
    def measures(self) -> bool:
        """False for ``OFF``."""
        return True

    def counter(self, name: str, description: str) -> Counter:
        """A counter, the same for the same name; Prometheus shows it as ``<name>_total``."""
        counter = self._counters.get(name)
        if counter is None:
            counter = self._counters[name] = Counter()
            self.meter.create_observable_counter(name, [counter.observations], description=description)
        return counter

    def histogram(self, name: str, description: str, *, buckets: Iterable[float] = _SECONDS_BUCKETS) -> Histogram:
        """A histogram, of seconds by default; the name says the unit."""
        return self.meter.create_histogram(name, description=description, explicit_bucket_boundaries_advisory=tuple(buckets))

    def gauge(self, name: str, description: str, observe: Observe) -> None:
        """A value that is asked for when somebody looks: one number, or one for each set of labels. Several may share a name, by labels."""
        observers = self._observers.setdefault(name, [])
        observers.append(observe)
        if len(observers) > 1:  # OpenTelemetry would not ask a second one
            return

        def observations(_options: CallbackOptions) -> Iterable[Observation]:
            return [each for observer in observers for each in _observed(observer())]

        self.meter.create_observable_gauge(name, [observations], description=description)

    @contextmanager
    def span(self, name: str, traceparent: str | None = None, **attributes: str | float | bool) -> Iterator[Span]:
        """Trace what happens inside; ``traceparent`` continues somebody else's trace, else the current span's."""
        context = _PROPAGATOR.extract({"traceparent": traceparent}) if traceparent else None
        if self._tracer is not None:
            with self._tracer.start_as_current_span(name, context=context, attributes=dict(attributes)) as span:
                yield span
            return
        unseen = _unseen_span(context)
        token = contexts.attach(trace.set_span_in_context(unseen))
        try:
            yield unseen
        finally:
            contexts.detach(token)

    def add_pieces(self, pieces: Callable[[], Iterator[str]]) -> None:
        """Show series of which there are too many to be written at once: ``pieces`` gives them as text, a moment's work each."""
        self._pieces.append(pieces)

    def prometheus_pieces(self) -> Iterator[bytes]:
        """All metrics in Prometheus' text format, in pieces between which others may have their turn."""
        yield generate_latest(self.registry)
        for pieces in self._pieces:
            for piece in pieces():
                yield piece.encode()

    def prometheus_text(self) -> bytes:
        """All metrics in Prometheus' text format, at once."""
        return b"".join(self.prometheus_pieces())

    def close(self) -> None:
        """Send what has not been sent and stop."""
        self._tracing.shutdown()
        self._measuring.shutdown(timeout_millis=1000 * _EXPORT_SECONDS)


def build_info() -> Attributes:
    """What runs, under the labels that HAMi's services have; a Python package has no revision, date or Go of its own."""
    return {
        "version": metadata.version("hami"),
        "revision": "none",
        "build_date": "none",
        "go_version": "none",
        "compiler": f"{platform.python_implementation()} {platform.python_version()}",
        "platform": f"{platform.system().lower()}/{platform.machine()}",
    }


class _Off(Telemetry):
    """Measures nothing and costs nothing."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._counters = {}
        self._pieces = []
        self.meter = NoOpMeter(_SCOPE)

    @property
    def measures(self) -> bool:
        return False

    def gauge(self, name: str, description: str, observe: Observe) -> None:
        pass

    @contextmanager
    def span(self, name: str, traceparent: str | None = None, **attributes: str | float | bool) -> Iterator[Span]:
        yield trace.INVALID_SPAN

    def close(self) -> None:
        pass


@functools.cache
def _ids() -> IdGenerator:
    from opentelemetry.sdk.trace.id_generator import RandomIdGenerator

    return RandomIdGenerator()


def _unseen_span(context: Context | None) -> Span:
    """A span that goes nowhere: its ids, in the trace of ``context``, or in the current one, or in one of its own."""
    parent = trace.get_current_span(context).get_span_context()
    known = parent.is_valid
    return NonRecordingSpan(
        SpanContext(
            trace_id=parent.trace_id if known else _ids().generate_trace_id(),
            span_id=_ids().generate_span_id(),
            is_remote=False,
            trace_flags=parent.trace_flags if known else TraceFlags(TraceFlags.SAMPLED),
            trace_state=parent.trace_state,
        )
    )


OFF: Telemetry = _Off()
"""Measures nothing."""


def _observed(found: Observed) -> list[Observation]:
    if isinstance(found, int | float):
        return [Observation(found)]
    return [Observation(value, dict(labels)) for value, labels in found]


def current_traceparent() -> str:
    """The W3C ``traceparent`` of the current span, empty where there is none."""
    carrier: dict[str, str] = {}
    _PROPAGATOR.inject(carrier)
    return carrier.get("traceparent", "")


def valid_traceparent(text: str) -> bool:
    """Whether ``text``, which anybody may have written, is a trace context that can be continued."""
    return trace.get_current_span(_PROPAGATOR.extract({"traceparent": text})).get_span_context().is_valid
