"""What ``GET /metrics`` tells Prometheus: requests, pairs, times, models, replicas, as a front replica sees them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from serve.schema import Served

if TYPE_CHECKING:
    from serve.gate import Visit

_BUCKETS_S = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)


class Metrics:
    """The counters of one front, in a registry of their own, so that two fronts of a process do not mix."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "idc_requests", "Requests answered.", ("route", "status"), registry=self._registry
        )  # fmt: skip
        self._pairs = Counter("idc_pairs", "Pairs captioned, or not.", ("outcome",), registry=self._registry)
        self._latency = Histogram(
            "idc_request_seconds", "From a request's first byte to the end of its answer.", ("route",),
            buckets=_BUCKETS_S, registry=self._registry,
        )  # fmt: skip
        self.waiting = Gauge("idc_pairs_waiting", "Pairs taken and not answered yet.", registry=self._registry)
        self._models = Gauge(
            "idc_model_info", "1 for the version that a name stands for.", ("model", "version"),
            registry=self._registry,
        )  # fmt: skip
        self._replicas = Gauge("idc_replicas", "Replicas that run.", ("deployment",), registry=self._registry)

    def request(self, visit: Visit) -> None:
        """Count a request that has ended."""
        self._requests.labels(visit.route, visit.status).inc()
        self._latency.labels(visit.route).observe(visit.seconds())

    def pairs(self, captioned: int, refused: int) -> None:
        """Count pairs that were answered."""
        self._pairs.labels("captioned").inc(captioned)
        self._pairs.labels("refused").inc(refused)

    def text(self, models: Sequence[Served], replicas: Mapping[str, int]) -> bytes:
        """All of it, in Prometheus' text format."""
        self._models.clear()
        for model in models:
            self._models.labels(model.name, model.version).set(1)
        for name, count in replicas.items():
            self._replicas.labels(name).set(count)
        return generate_latest(self._registry)
