"""A front's metrics in Ray are those of ``GET /metrics``; that they reach the port of a node is Ray's part."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from idc.captioning.contract import Candidate, Description
from serve.backend import PairResult
from serve.context import RequestContext
from serve.prometheus import ServingMetrics


def test_both_have_the_same_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    from ray.serve import metrics as serve_metrics
    from ray.util import metrics

    in_ray: Counter[tuple[str, tuple[str, ...]]] = Counter()
    for kind, method in ((metrics.Counter, "inc"), (metrics.Gauge, "set"), (metrics.Histogram, "observe")):
        plain = getattr(kind, method)

        def both(metric, value, tags, plain=plain):  # type: ignore[no-untyped-def]  # as Ray's own
            plain(metric, value, tags)  # which refuses unknown tags, and counting nothing
            key = metric.info["name"], tuple(tags.values())
            in_ray[key] = value if isinstance(metric, metrics.Gauge) else in_ray[key] + value

        monkeypatch.setattr(kind, method, both)
    served = ServingMetrics(serve_metrics)
    context = RequestContext("one")
    context.route, context.status = "/v1/captions", 200
    captioned = PairResult(Description((Candidate("the red cube moved", -0.1),)))
    served.wait(3)
    served.pairs([captioned, captioned, PairResult(error="after: not an image")])
    served.pairs([])
    served.wait(1)
    served.request(context)
    assert 0 < in_ray.pop(("idc_request_seconds", ("/v1/captions",))) < 60
    assert in_ray == {
        ("idc_requests", ("/v1/captions", "200")): 1,
        ("idc_pairs", ("captioned",)): 2,
        ("idc_pairs", ("refused",)): 1,
        ("idc_pairs_waiting", ()): 1,
    }
    text = served.text([]).decode()
    for (name, _), value in in_ray.items():
        assert re.search(rf"^{name}(_total)?({{.*}})? {value}\.0$", text, re.MULTILINE), name
