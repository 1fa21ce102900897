"""A front's metrics as metrics of Ray: of all fronts, at their nodes' port for Prometheus (8080 on KubeRay), as
``ray_idc_...`` with the replica as a label. ``GET /metrics`` has those of one front, whichever answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ray.serve import metrics

from serve.backend import PairResult
from serve.context import RequestContext
from serve.prometheus import BUCKETS_S, ServingMetrics, outcomes


class RayMetrics(ServingMetrics):
    """The metrics of a front, counted twice: for ``GET /metrics``, and in Ray. Only inside a replica of Ray Serve."""

    def __init__(self) -> None:
        super().__init__()
        tags: Any = ("route", "status")  # Ray's annotation is of one
        self._ray_requests = metrics.Counter("idc_requests", "Requests answered.", tags)
        self._ray_pairs = metrics.Counter("idc_pairs", "Pairs captioned or refused.", ("outcome",))
        self._ray_latency = metrics.Histogram(
            "idc_request_seconds", "Time from a request's first byte to the end of its response.",
            boundaries=list(BUCKETS_S), tag_keys=("route",),
        )  # fmt: skip
        self._ray_waiting = metrics.Gauge("idc_pairs_waiting", "Pairs accepted and not answered yet.")
        self._ray_waiting.set(0)
        self._pairs_waiting = 0

    def request(self, context: RequestContext) -> None:
        super().request(context)
        self._ray_requests.inc(1, {"route": context.route, "status": str(context.status)})
        self._ray_latency.observe(context.seconds(), {"route": context.route})

    def wait(self, pairs: int) -> None:
        super().wait(pairs)
        self._pairs_waiting += pairs
        self._ray_waiting.set(self._pairs_waiting)

    def pairs(self, results: Sequence[PairResult]) -> None:
        super().pairs(results)
        for outcome, count in outcomes(results).items():
            if count:  # Ray refuses to add nothing
                self._ray_pairs.inc(count, {"outcome": outcome})
