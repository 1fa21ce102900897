"""Replicas are scaled by pairs: calls with many pairs count as many."""

from __future__ import annotations

from typing import Any

import pytest
from ray.serve.config import AutoscalingConfig, AutoscalingContext

from serve.deployment.scaling import PAIRS, by_pairs


def wanted(pairs: dict[str, float] | None, queued: float = 0.0) -> float:
    """The policy's answer with a target of 16 pairs per replica."""
    values: dict[str, Any] = dict.fromkeys(
        ("deployment_id", "deployment_name", "app_name", "running_replicas", "raw_metrics", "policy_state"),
    )
    context = AutoscalingContext(
        **values,
        current_num_replicas=2,
        target_num_replicas=2,
        total_num_requests=3,
        total_queued_requests=queued,
        aggregated_metrics=None if pairs is None else {PAIRS: pairs},  # type: ignore[dict-item]  # keys are not read
        capacity_adjusted_min_replicas=0,
        capacity_adjusted_max_replicas=9,
        last_scale_up_time=None,
        last_scale_down_time=None,
        current_time=None,
        config=AutoscalingConfig(target_ongoing_requests=16),
    )
    return by_pairs(context)[0]


def test_pairs_of_all_replicas_and_calls_that_wait_decide() -> None:
    assert wanted({"one": 32.0, "other": 16.0}) == pytest.approx(3.0)
    assert wanted({"one": 8.0, "other": 0.0}, queued=8.0) == pytest.approx(1.0)
    assert wanted(None) == 0.0
