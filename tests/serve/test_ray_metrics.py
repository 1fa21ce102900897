"""A front's metrics in Ray are those of ``GET /metrics``; that they reach the port of a node is Ray's part."""

from __future__ import annotations

import math
import re

import pytest

from idc.captioning.contract import Candidate, Description
from serve.backend import PairResult
from serve.context import RequestContext
from serve.deployment.ray_metrics import RayMetrics

Counted = dict[tuple[str, tuple[str, ...]], float]


@pytest.fixture
def in_ray(monkeypatch: pytest.MonkeyPatch) -> Counted:
    """What is counted in Ray: (metric, its tags' values) -> the sum, or the last value of a gauge."""
    from ray.util import metrics

    found: Counted = {}

    def note(metric: metrics.Metric, value: float, tags: dict[str, str] | None = None) -> None:
        key = metric.info["name"], tuple(sorted((tags or {}).values()))
        found[key] = value if isinstance(metric, metrics.Gauge) else found.get(key, 0) + value

    for kind, method in ((metrics.Counter, "inc"), (metrics.Gauge, "set"), (metrics.Histogram, "observe")):
        plain = getattr(kind, method)

        def both(metric, value=1, tags=None, plain=plain):  # type: ignore[no-untyped-def]  # as Ray's own
            plain(metric, value, tags)  # which refuses unknown tags, and counting nothing
            note(metric, value, tags)

        monkeypatch.setattr(kind, method, both)
    return found


def test_both_have_the_same_numbers(in_ray: Counted) -> None:
    metrics = RayMetrics()
    context = RequestContext("one")
    context.route, context.status = "/v1/captions", 200
    captioned = PairResult(
        Description((Candidate("the red cube moved", math.log(0.9)), Candidate("no", math.log(0.1))))
    )
    metrics.wait(3)
    metrics.pairs([captioned, captioned, PairResult(error="after: not an image")])
    metrics.pairs([])
    metrics.wait(-2)
    metrics.request(context)
    seconds = in_ray.pop(("idc_request_seconds", ("/v1/captions",)))
    assert 0 < seconds < 60
    assert in_ray == {
        ("idc_requests", ("/v1/captions", "200")): 1,
        ("idc_pairs", ("captioned",)): 2,
        ("idc_pairs", ("refused",)): 1,
        ("idc_pairs_waiting", ()): 1,
    }
    text = metrics.text([], {}).decode()
    for (name, _), value in in_ray.items():
        assert re.search(rf"^{name}(_total)?({{.*}})? {value}\.0$", text, re.MULTILINE), name
