"""Metrics of a front replica: requests, pairs, latencies, models. ``GET /metrics`` has those of one front, whichever
answers; on a cluster those of all fronts are also at their nodes' port for Prometheus (8080 on KubeRay), as
``ray_idc_...`` with the replica as a label."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import prometheus_client
from prometheus_client import CollectorRegistry, Gauge, generate_latest

from serve.backend import ModelStatus, PairResult
from serve.log import RequestContext

_METRICS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "idc_requests": ("Counter", "Requests answered.", ("route", "status")),
    "idc_pairs": ("Counter", "Pairs captioned or refused.", ("outcome",)),
    "idc_request_seconds": ("Histogram", "Time from a request's first byte to the end of its response.", ("route",)),
    "idc_pairs_waiting": ("Gauge", "Pairs accepted and not answered yet.", ()),
}
"""Name -> kind, text and labels, in both libraries."""
_RECORD = {"Counter": "inc", "Gauge": "set", "Histogram": "observe"}
"""The method of a kind, in both."""
_BUCKETS_S = [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0]


class ServingMetrics:
    """The metrics of one front, in a collector registry of their own: two fronts in one process stay separate.

    Args:
        in_ray: the module ``ray.serve.metrics``, for the same as metrics of Ray; only inside a replica of Ray Serve.
    """

    def __init__(self, in_ray: Any = None) -> None:
        self._registry = CollectorRegistry()
        self._here, self._in_ray = {}, {}
        for name, (kind, text, labels) in _METRICS.items():
            bounds = {"buckets": _BUCKETS_S} if kind == "Histogram" else {}
            self._here[name] = getattr(prometheus_client, kind)(name, text, labels, registry=self._registry, **bounds)
            if in_ray is not None:
                bounds = {"boundaries": _BUCKETS_S} if kind == "Histogram" else {}
                self._in_ray[name] = getattr(in_ray, kind)(name, text, tag_keys=labels, **bounds)
        self.wait(0)
        text = "1 for the current version of a model name."
        self._models = Gauge("idc_model_info", text, ("model", "version"), registry=self._registry)

    def _record(self, name: str, value: float, *labels: str) -> None:
        """Add to a counter or a histogram, or set a gauge."""
        (kind, _, names), metric = _METRICS[name], self._here[name]
        getattr(metric.labels(*labels) if labels else metric, _RECORD[kind])(value)
        if self._in_ray and (value or kind == "Gauge"):  # Ray refuses to add nothing
            getattr(self._in_ray[name], _RECORD[kind])(value, dict(zip(names, labels, strict=True)))

    def request(self, context: RequestContext) -> None:
        """Count a request that has ended."""
        self._record("idc_requests", 1, context.route, str(context.status))
        self._record("idc_request_seconds", context.seconds(), context.route)

    def wait(self, pairs: int) -> None:
        """So many pairs are accepted and not answered yet."""
        self._record("idc_pairs_waiting", pairs)

    def pairs(self, results: Sequence[PairResult]) -> None:
        """Count answered pairs."""
        refused = sum(result.error is not None for result in results)
        self._record("idc_pairs", len(results) - refused, "captioned")
        self._record("idc_pairs", refused, "refused")

    def text(self, models: Sequence[ModelStatus]) -> bytes:
        """All metrics in Prometheus' text format."""
        self._models.clear()
        for model in models:
            self._models.labels(model.name, model.version).set(1)
        return generate_latest(self._registry)
