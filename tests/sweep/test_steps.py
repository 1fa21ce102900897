"""The steps that the sweeps of all systems share: what their names depend on, and what they refuse."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from idc.config import load
from idc.data.pipeline import run_local
from idc.evaluation import record as ev
from idc.evaluation.config import EvaluateSection
from idc.evaluation.judge import JudgeSection
from idc.sweep.chain import Step, TrialConfig, TrialSteps
from idc.sweep.plan import TrialPlan, spread_out
from idc.sweep.steps import judge_captions, score_baselines, train_step, with_evaluation
from idc.training.config import RunName, TrainConfig, TrainingJob
from tests.chat_server import serving
from tests.folders import write_rows
from tests.vision.scenes import pair_row, write_pairs


class ToyJob(TrainingJob):
    """A training of no system."""

    ENTRY = "m:train"
    name: RunName = "toy"
    pairs: str = "pairs"
    backbone: str | None = None
    width: int = 8
    train: TrainConfig = TrainConfig(steps=5, batch_size=4)


TOY = ToyJob()


def fit(job: ToyJob, data: str = "data", folder: str = "pairs") -> Step:
    return train_step("fit", job, {"pairs": folder}, "store", (data,), models=("backbone",))


def pairs_at(path: Path, content: str) -> str:
    """A folder of no pairs whose fingerprint is ``content``."""
    return write_rows(path, [], fingerprint=content)


def test_a_training_is_named_by_settings_and_data_and_not_by_places_or_how_it_runs() -> None:
    step = fit(ToyJob())
    assert step.name.startswith("fit-")
    assert step.payload["name"] == step.name
    assert (step.payload["pairs"], step.payload["runs"], step.payload["width"]) == ("pairs", "store", 8)
    same = (
        fit(ToyJob(name="other", runs="elsewhere")),
        fit(ToyJob(), folder="moved"),
        fit(ToyJob(train=TrainConfig(steps=5, batch_size=4, num_workers=2, keep_last=3))),
    )
    assert {one.name for one in same} == {step.name}
    others = (
        fit(ToyJob(width=9)),
        fit(ToyJob(), data="other"),
        fit(ToyJob(train=TrainConfig(steps=6, batch_size=4))),
        fit(ToyJob(backbone="org/model")),
    )
    assert len({step.name, *(one.name for one in others)}) == 5


def test_a_training_counts_the_models_it_names_by_content(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "config.json").write_text("{}")
    first = fit(ToyJob(backbone=str(tmp_path / "a"))).name
    moved = shutil.copytree(tmp_path / "a", tmp_path / "b")
    assert fit(ToyJob(backbone=str(moved))).name == first
    (moved / "config.json").write_text('{"other": 1}')
    assert fit(ToyJob(backbone=str(moved))).name != first


def test_evaluation_baselines_and_speed_follow_the_pairs_and_their_settings(tmp_path: Path) -> None:
    def planned(pairs: str, job: ToyJob = TOY, gpus: float = 0.0, **settings: Any) -> TrialSteps:
        evaluate = load(EvaluateSection, None, settings)
        trial = TrialConfig(pairs=pairs, evaluate=evaluate)
        return with_evaluation(trial, [fit(job)], "store", max_tokens=24, gpus=gpus)

    def names(steps: TrialSteps) -> list[str]:
        return [steps.evaluation.name, steps.baselines.name, steps.speed.name]

    first = planned(pairs_at(tmp_path / "a", "one"))
    assert names(planned(pairs_at(tmp_path / "moved", "one"))) == names(first)
    assert set(names(planned(pairs_at(tmp_path / "other", "two")))).isdisjoint(names(first))
    pairs = str(tmp_path / "a")

    def changed(**other: Any) -> list[bool]:
        return [a != b for a, b in zip(names(planned(pairs, **other)), names(first), strict=True)]

    assert changed(job=ToyJob(width=9)) == [True, False, True]  # baselines do not depend on the model
    assert changed(nearest_train_pairs=7) == [False, True, False]  # scored once, not with every trial
    ev.save(tmp_path / "trained", ev.Evaluation(
        fingerprint="t", split="test", pairs=1, references=1, distinct_captions=1, empty_captions=0, scores={},
        subsets={}, baselines={}, protocol={}), [])  # fmt: skip
    trained = {"trained_baseline": str(tmp_path / "trained")}
    assert changed(**trained) == [False, True, False]
    assert planned(pairs, constant_candidates=0, nearest_train_pairs=0, **trained).baselines is not None
    assert changed(split="val") == [True, True, True]
    assert changed(gpus=1.0) == [False, False, True]
    assert changed(speed="exact") == [False, False, True]
    assert planned(pairs, speed="exact").speed.payload["speed"] == "exact"
    assert first.evaluation.payload["job"]["artifact"] == f"store/{first.work[0].name}/artifact"
    assert first.evaluation.payload["job"]["constant_candidates"] == 0
    assert planned(pairs, constant_candidates=0, nearest_train_pairs=0).baselines is None
    on_gpu = planned(pairs, gpus=0.5)
    assert [step.payload["device"] for step in (on_gpu.evaluation, on_gpu.speed)] == ["cuda", "cuda"]
    assert (on_gpu.evaluation.gpus, on_gpu.speed.gpus) == (0.5, 0.5)


def test_without_training_captions_there_are_no_baselines(tmp_path: Path) -> None:
    pairs = write_pairs(tmp_path / "pairs", [pair_row(0, "train", captions=[])])
    with pytest.raises(ValueError, match=r"no captions.*evaluate\.constant_candidates=0"):
        score_baselines({"job": {"pairs": pairs, "split": "test"}}, str(tmp_path / "out"), run_local)


def judged(store: Path, url: str) -> tuple[Step, Path]:
    """The judge's step of an evaluation of four captions, two of each part of OmniDiff."""
    pairs = write_pairs(store.parent / "pairs", [pair_row(0, "test")])
    judge = JudgeSection(url=url, judge="a-judge", baselines=False)
    steps = with_evaluation(TrialConfig(pairs=pairs), [fit(TOY)], str(store), max_tokens=8, gpus=0, judge=judge)
    rows = [
        ev.ScoredCaption(pair_id=f"p{i}", caption=f"car {i}", references=["a car"], part="real" if i % 2 else "render")
        for i in range(4)
    ]
    record = ev.Evaluation(
        fingerprint="f", split="test", pairs=4, references=4, distinct_captions=4, empty_captions=0, scores={},
        subsets={}, baselines={}, protocol={"name": "coco"},
    )  # fmt: skip
    ev.save(store / steps.evaluation.name, record, rows)
    assert steps.scored == (*steps.work, steps.evaluation, steps.judge)
    return steps.judge, store / steps.judge.name


def test_a_judge_scores_the_captions_and_each_part_of_the_data_set(tmp_path: Path) -> None:
    with serving() as server:
        step, folder = judged(tmp_path / "store", server.url)
        assert step.name.startswith("judge-")
        server.answer = lambda number, prompt: (200, f"Score: {10 * int(prompt.rsplit('car ', 1)[1].strip())}")
        assert judge_captions(step.payload, str(folder), run_local) == {"": 15.0, "render": 10.0, "real": 20.0}
        assert judge_captions(step.payload, str(folder), run_local)[""] == 15.0
        assert len(server.requests) == 4, "nothing is asked twice"
        silent, folder = judged(tmp_path / "other", server.url)
        server.answer = lambda number, prompt: (200, "As a model I cannot say.")
        with pytest.raises(ValueError, match=r"4 answers of a-judge have no score, the first for p0.*I cannot say"):
            judge_captions(silent.payload, str(folder), run_local)


def test_the_judges_step_depends_on_what_it_is_asked_and_not_on_how(tmp_path: Path) -> None:
    pairs = write_pairs(tmp_path / "pairs", [pair_row(0, "test")])

    def name(**settings: Any) -> str:
        judge = JudgeSection(**{"url": "http://x/v1", "judge": "a", **settings})
        step = with_evaluation(TrialConfig(pairs=pairs), [fit(TOY)], "s", max_tokens=8, gpus=0, judge=judge).judge
        return step.name

    (tmp_path / "prompt.txt").write_text("{standard_answer} {assistant_response}")
    assert name(concurrency=8, timeout_s=9.0) == name()
    assert len({name(), name(judge="b"), name(prompt=str(tmp_path / "prompt.txt")), name(max_pairs=3)}) == 4


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
