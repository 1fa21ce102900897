"""Metrics of a front replica: requests, pairs, latencies, models, replicas. ``GET /metrics`` has those of one front,
whichever answers; on a cluster those of all fronts are also at their nodes' port for Prometheus (8080 on KubeRay), as
``ray_idc_...`` with the replica as a label."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import prometheus_client
from prometheus_client import CollectorRegistry, Gauge, generate_latest

from serve.backend import ModelStatus, PairResult
from serve.context import RequestContext

BUCKETS_S = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
_RECORD = {"Counter": "inc", "Gauge": "set", "Histogram": "observe"}
"""The method of a kind of metric, in both libraries."""


class ServingMetrics:
    """The metrics of one front, in a collector registry of their own: two fronts in one process stay separate.

    Args:
        in_ray: the module ``ray.serve.metrics``, for the same as metrics of Ray; only inside a replica of Ray Serve.
    """

    def __init__(self, in_ray: Any = None) -> None:
        self._registry, self._in_ray = CollectorRegistry(), in_ray
        self._requests = self._metric("Counter", "idc_requests", "Requests answered.", ("route", "status"))
        self._pairs = self._metric("Counter", "idc_pairs", "Pairs captioned or refused.", ("outcome",))
        text = "Time from a request's first byte to the end of its response."
        self._latency = self._metric("Histogram", "idc_request_seconds", text, ("route",))
        self._waiting = self._metric("Gauge", "idc_pairs_waiting", "Pairs accepted and not answered yet.")
        self._pairs_waiting = 0
        self.wait(0)
        text = "1 for the current version of a model name."
        self._models = Gauge("idc_model_info", text, ("model", "version"), registry=self._registry)
        self._replicas = Gauge("idc_replicas", "Running replicas.", ("deployment",), registry=self._registry)

    def _metric(
        self, kind: Literal["Counter", "Gauge", "Histogram"], name: str, text: str, labels: tuple[str, ...] = ()
    ) -> _Metric:
        buckets: dict[str, Any] = {"buckets": BUCKETS_S} if kind == "Histogram" else {}
        metric = getattr(prometheus_client, kind)(name, text, labels, registry=self._registry, **buckets)
        if self._in_ray is None:
            return _Metric(kind, labels, metric)
        boundaries: dict[str, Any] = {"boundaries": list(BUCKETS_S)} if kind == "Histogram" else {}
        return _Metric(kind, labels, metric, getattr(self._in_ray, kind)(name, text, tag_keys=labels, **boundaries))

    def request(self, context: RequestContext) -> None:
        """Count a request that has ended."""
        self._requests.record(1, context.route, str(context.status))
        self._latency.record(context.seconds(), context.route)

    def wait(self, pairs: int) -> None:
        """Add accepted pairs to those that are not answered yet; negative: answered ones."""
        self._pairs_waiting += pairs
        self._waiting.record(self._pairs_waiting)

    def pairs(self, results: Sequence[PairResult]) -> None:
        """Count answered pairs."""
        refused = sum(result.error is not None for result in results)
        self._pairs.record(len(results) - refused, "captioned")
        self._pairs.record(refused, "refused")

    def text(self, models: Sequence[ModelStatus], replicas: Mapping[str, int]) -> bytes:
        """All metrics in Prometheus' text format."""
        self._models.clear()
        for model in models:
            self._models.labels(model.name, model.version).set(1)
        for name, count in replicas.items():
            self._replicas.labels(name).set(count)
        return generate_latest(self._registry)


class _Metric:
    """A metric of ``GET /metrics`` and perhaps of Ray."""

    def __init__(self, kind: str, labels: tuple[str, ...], metric: Any, in_ray: Any = None):
        self._method, self._labels, self._metric, self._in_ray = _RECORD[kind], labels, metric, in_ray

    def record(self, value: float, *labels: str) -> None:
        """Add to a counter or a histogram, or set a gauge."""
        getattr(self._metric.labels(*labels) if labels else self._metric, self._method)(value)
        if self._in_ray is not None and (value or self._method == "set"):  # Ray refuses to add nothing
            getattr(self._in_ray, self._method)(value, dict(zip(self._labels, labels, strict=True)))
