"""What a server has done so far, for Prometheus."""

from __future__ import annotations

from importlib.metadata import version

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Info,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from mercer.serve.registry import Entry

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
COUNTS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Counters:
    """Counters of one server."""

    media_type = CONTENT_TYPE_PLAIN_0_0_4

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)
        Info("mercer", "The version of Mercer.", registry=registry).info({"version": version("mercer")})
        self._requests = Counter(
            "mercer_requests",
            "Requests for predictions, by model and status.",
            ["model", "status"],
            registry=registry,
        )
        self._seconds = Histogram(
            "mercer_request_seconds",
            "Time from the first byte of a request for predictions to its answer.",
            ["model"],
            buckets=SECONDS,
            registry=registry,
        )
        self._rows = Counter("mercer_rows", "Rows predicted.", ["model"], registry=registry)
        self._batches = Histogram(
            "mercer_batch_requests",
            "Requests that were predicted in one call.",
            buckets=COUNTS,
            registry=registry,
        )
        self._waiting = Gauge(
            "mercer_requests_in_work", "Requests in work, those that wait among them.", registry=registry
        )
        self._loads = Counter(
            "mercer_loads",
            "Times that a replaced file was read, by model and outcome.",
            ["model", "outcome"],
            registry=registry,
        )
        self._loaded = Gauge(
            "mercer_model_loaded_timestamp_seconds",
            "When the model that is served was read, since 1970.",
            ["model"],
            registry=registry,
        )

    def request(self, model: str, status: int, seconds: float) -> None:
        self._requests.labels(model, str(status)).inc()
        self._seconds.labels(model).observe(seconds)

    def rows(self, model: str, count: int) -> None:
        self._rows.labels(model).inc(count)

    def batch(self, requests: int, rows: int) -> None:
        self._batches.observe(requests)

    def first(self, entry: Entry) -> None:
        self._loaded.labels(entry.served.name).set(entry.served.loaded)

    def load(self, entry: Entry) -> None:
        outcome = "failure" if entry.problem else "success"
        self._loads.labels(entry.served.name, outcome).inc()
        self.first(entry)

    def text(self, in_work: int) -> bytes:
        self._waiting.set(in_work)
        return generate_latest(self._registry)
