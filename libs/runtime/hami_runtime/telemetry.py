"""Traces and metrics of one service, through OpenTelemetry. Nothing global: two services in one process do not meet.

A ``Telemetry`` is handed to whoever measures. Without an endpoint nothing leaves the process, yet spans have their ids, so that one trace
leads from admission through filter, bind and bus to Allocate. ``OFF`` measures nothing: for simulations and tests.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib import metadata

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.metrics import CallbackOptions, Counter, Histogram, Meter, NoOpMeter, Observation
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import MetricReader, PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import NoOpTracer, Span, Tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from prometheus_client import CollectorRegistry, generate_latest

_PROPAGATOR = TraceContextTextMapPropagator()
_SCOPE = "hami"
_SECONDS_BUCKETS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
_EXPORT_SECONDS = 2.0
"""A collector that is away must not hold up a process that stops."""
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Attributes = Mapping[str, str | int | float | bool]
Observed = float | Iterable[tuple[float, Attributes]]
Observe = Callable[[], Observed]


class Telemetry:
    """One service's tracer and meter.

    Attributes:
        tracer: makes spans.
        meter: makes instruments. Their names begin with ``hami_``.
        registry: what ``prometheus_text`` shows; a collector of one's own may be registered here, for series that are read when somebody looks.
    """

    def __init__(self, service: str, otlp_endpoint: str | None = None) -> None:
        """Measure ``service``; send traces and metrics to ``otlp_endpoint`` (OTLP over HTTP) where one is given."""
        resource = Resource.create({"service.name": f"hami-{service}", "service.namespace": "hami"})
        self.registry = CollectorRegistry()
        self._observers: dict[str, list[Observe]] = {}
        self._pieces: list[Callable[[], Iterator[str]]] = []
        readers: list[MetricReader] = [PrometheusMetricReader(disable_target_info=True, scope_info_enabled=False, registry=self.registry)]
        self._tracing = TracerProvider(resource=resource, shutdown_on_exit=False)
        if otlp_endpoint:
            endpoint = otlp_endpoint.rstrip("/")
            readers.append(PeriodicExportingMetricReader(OTLPMetricExporter(endpoint=f"{endpoint}/v1/metrics", timeout=_EXPORT_SECONDS)))
            self._tracing.add_span_processor(
                BatchSpanProcessor(OTLPSpanExporter(endpoint=f"{endpoint}/v1/traces", timeout=_EXPORT_SECONDS))
            )
        self._measuring = MeterProvider(readers, resource=resource, shutdown_on_exit=False)
        self.tracer: Tracer = self._tracing.get_tracer(_SCOPE)
        self.meter: Meter = self._measuring.get_meter(_SCOPE)
        self.gauge("hami_build_info", "1, with what runs", lambda: [(1, build_info())])

    @property
    def measures(self) -> bool:
        """False for ``OFF``."""
        return True

    def counter(self, name: str, description: str) -> Counter:
        """A counter; Prometheus shows it as ``<name>_total``."""
        return self.meter.create_counter(name, description=description)

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
        with self.tracer.start_as_current_span(name, context=context, attributes=dict(attributes)) as span:
            yield span

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
        self._pieces = []
        self.tracer = NoOpTracer()
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
