"""Metrics of a front replica for Prometheus (``GET /metrics``): requests, pairs, latencies, models, replicas. On Ray,
``serve/deployment/ray_metrics.py`` adds those of all fronts to the metrics of their nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from serve.backend import ModelStatus, PairResult
from serve.context import RequestContext

BUCKETS_S = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)


class ServingMetrics:
    """The counters of one front, in a collector registry of their own: two fronts in one process stay separate."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "idc_requests", "Requests answered.", ("route", "status"), registry=self._registry
        )  # fmt: skip
        self._pairs = Counter("idc_pairs", "Pairs captioned or refused.", ("outcome",), registry=self._registry)
        self._latency = Histogram(
            "idc_request_seconds", "Time from a request's first byte to the end of its response.", ("route",),
            buckets=BUCKETS_S, registry=self._registry,
        )  # fmt: skip
        self._waiting = Gauge("idc_pairs_waiting", "Pairs accepted and not answered yet.", registry=self._registry)
        self._models = Gauge(
            "idc_model_info", "1 for the current version of a model name.", ("model", "version"),
            registry=self._registry,
        )  # fmt: skip
        self._replicas = Gauge("idc_replicas", "Running replicas.", ("deployment",), registry=self._registry)

    def request(self, context: RequestContext) -> None:
        """Count a request that has ended."""
        self._requests.labels(context.route, context.status).inc()
        self._latency.labels(context.route).observe(context.seconds())

    def wait(self, pairs: int) -> None:
        """Add accepted pairs to those that are not answered yet; negative: answered ones."""
        self._waiting.inc(pairs)

    def pairs(self, results: Sequence[PairResult]) -> None:
        """Count answered pairs."""
        for outcome, count in outcomes(results).items():
            self._pairs.labels(outcome).inc(count)

    def text(self, models: Sequence[ModelStatus], replicas: Mapping[str, int]) -> bytes:
        """All metrics in Prometheus' text format."""
        self._models.clear()
        for model in models:
            self._models.labels(model.name, model.version).set(1)
        for name, count in replicas.items():
            self._replicas.labels(name).set(count)
        return generate_latest(self._registry)


def outcomes(results: Sequence[PairResult]) -> dict[str, int]:
    """Number of pairs by outcome."""
    refused = sum(result.error is not None for result in results)
    return {"captioned": len(results) - refused, "refused": refused}
