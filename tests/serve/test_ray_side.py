"""What a front and a replica tell Ray: metrics, the pairs by which it scales, and log lines, which come back."""

from __future__ import annotations

import inspect
import json
import re
from collections import Counter
from typing import Any

import pytest
from ray.serve.config import AutoscalingConfig, AutoscalingContext

from idc.captioning.contract import Candidate, Description
from serve.backend import PairResult
from serve.deployment.scaling import PAIRS, by_pairs
from serve.log import RequestContext, forward, log
from serve.prometheus import ServingMetrics


def test_ray_gets_the_numbers_of_the_metrics_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """That they reach the port of a node is Ray's part."""
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


@pytest.mark.parametrize(
    ("pairs", "queued", "replicas"),
    [({"one": 32.0, "other": 16.0}, 0, 3), ({"one": 8.0, "other": 0.0}, 8, 1), (None, 0, 0)],
)
def test_pairs_of_all_replicas_and_calls_that_wait_decide_how_many_there_are(
    pairs: dict[str, float] | None, queued: float, replicas: float
) -> None:
    """With a target of 16 pairs for each."""
    parameters = inspect.signature(AutoscalingContext).parameters.values()
    values: dict[str, Any] = {each.name: None for each in parameters if each.default is each.empty}
    values |= {"total_queued_requests": queued, "aggregated_metrics": pairs and {PAIRS: pairs}}
    values |= {"config": AutoscalingConfig(target_ongoing_requests=16)}
    assert by_pairs(AutoscalingContext(**values))[0] == pytest.approx(replicas)


def test_log_lines_of_replicas_stay_as_they_are_and_others_become_entries(capsys: pytest.CaptureFixture[str]) -> None:
    """Without ``verbose`` only failures are printed, a line that was cut off among them."""
    log(event="request", status=200)
    log(event="request", status=422, error="not_an_image")
    log(event="request", status=500, failure="Traceback ...")
    log(event="model_failed", model="demo", error="damaged")
    lines = capsys.readouterr().out.splitlines()
    cut = lines[0][:40]
    others = ["\x1b[33mWARNING\x1b[0m 2026 a replica died", "", '{"time": 3']
    batch = {"lines": [*lines, *others], "actor_name": "Front", "pid": 7}
    forward(batch)
    forward({"lines": ["======== Autoscaler status"], "pid": "autoscaler"})
    forward({**batch, "lines": [*lines, "noise of a worker", cut]}, verbose=False)
    printed = capsys.readouterr()
    same, added = printed.out.splitlines()[: len(lines)], map(json.loads, printed.out.splitlines()[len(lines) :])
    assert (same, printed.err.splitlines()) == (lines, [*lines[2:], cut])
    fields = [(entry["event"], entry["process"], entry["message"]) for entry in added]
    assert fields == [("output", "Front", "WARNING 2026 a replica died"), ("output", "Front", '{"time": 3')]
