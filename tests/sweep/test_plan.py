"""The order in which trials run."""

from __future__ import annotations

from idc.sweep.chain import Step, TrialSteps
from idc.sweep.plan import TrialPlan, spread_out


def plan(key: str, *names: str) -> TrialPlan:
    steps = [Step(name, "m:f", {}) for name in (*names, f"evaluation-{key}", f"speed-{key}")]
    return TrialPlan(key, key, 0, 0, TrialSteps(tuple(steps[:-2]), steps[-2], None, steps[-1]))


def test_trials_that_need_the_same_step_do_not_run_side_by_side_if_it_can_be_helped() -> None:
    plans = [plan("a", "s1"), plan("b", "s1"), plan("c", "s2"), plan("d", "s2"), plan("e", "s3")]
    assert "".join(each.key for each in spread_out(plans)) == "acebd", "not ab: b would wait for a"
    assert "".join(each.key for each in spread_out([plan(key, "s") for key in "abc"])) == "abc"
    seeds = [plan("a", "all", "s1"), plan("b", "all", "s1"), plan("c", "all", "s2"), plan("d", "all", "s2")]
    assert "".join(each.key for each in spread_out(seeds)) == "acbd", "all wait for the first step; then b would for a"
    assert spread_out([]) == []
