"""Sweeps as settings: every trial's config is built when the sweep's is read, and all its faults are named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from idc.config import ConfigError, load
from idc.sweep.config import SweepJob
from idc.sweep.search import SearchConfig
from idc.systems import SYSTEMS
from tests.folders import write_rows

SETTINGS = {"pairs": "data/pairs", "procedures": "data/procedures"}


def job(**values: Any) -> SweepJob:
    return load(
        SweepJob,
        None,
        {"name": "one", "system": "procap", "settings": SETTINGS, "rows": [{"label": "paper"}], **values},
    )


def faults(**values: Any) -> list[str]:
    with pytest.raises(ConfigError) as refused:
        job(**values)
    return refused.value.errors


def test_a_trial_is_the_systems_defaults_under_the_sweeps_settings_under_the_rows(tmp_path: Path) -> None:
    base = tmp_path / "finetune.yaml"
    base.write_text(
        yaml.safe_dump({"name": "x", "pretrained": "y", "procedures": "z", "beams": 3, "decoder": {"layers": 4}})
    )
    sweep = job(
        base={"finetune": str(base)},
        settings={**SETTINGS, "finetune.decoder.heads": 4, "finetune.train": {"seed": 9, "batch_size": 8}},
        rows=[{"label": "deep", "settings": {"finetune.decoder.layers": 5}}],
    )
    trial: Any = sweep.trial(sweep.rows[0].settings, seed=2)
    assert (trial.finetune.beams, trial.finetune.decoder.layers, trial.finetune.decoder.heads) == (3, 5, 4)
    assert (trial.finetune.train.seed, trial.pretrain.train.seed) == (2, 2), "the repetition's seed"
    assert (trial.finetune.train.epochs, trial.finetune.train.batch_size) == (40, 8), "the paper's, and the sweep's"
    assert trial.pretrain.train.steps == 200_000
    assert sweep.inlined().base == {}
    assert sweep.inlined().trial(sweep.rows[0].settings, 2) == trial


MASKING = "pretrain.masking.random, entire, in_block and out_of_block"
WORKERS = {"finetune.train.num_workers": 2, "pretrain.train.gpus_per_worker": 1}
LR = {"finetune.decoder_optim.lr": {"low": 1e-5, "high": 1e-3}}
WRONG: dict[str, tuple[dict[str, Any], list[str]]] = {
    "a wrong key with its row and what was meant": (
        {"rows": [{"label": "fine"}, {"label": "typo", "settings": {"pretrain.masking.randm": 0.7}},
                  {"label": "sum", "settings": {"pretrain.masking.random": 0.5}, "published": {"CIDEr": 1.0}}],
         "plot": {"column": "D", "x": "p"}},
        ["rows.2.published.CIDEr: no such column",
         "plot.column: no column has the title 'D'",
         "plot: every row needs an x",
         "rows.1 (typo): pretrain.masking.randm: no such setting; did you mean 'random'?",
         f"rows.2 (sum): {MASKING}: their probabilities add up to 0.8, not 1; to remove one of them set varied"],
    ),
    "what all trials share, once": (
        {"settings": {"pairs": "data/pairs", "finetune.train.steps": 5},
         "rows": [{"label": "one"}, {"label": "two", "settings": {"finetune.beams": 2}}]},
        ["procedures, build: give one of the two",
         "finetune.train.steps=5 and finetune.train.epochs=40.0: give exactly one of them"],
    ),
    "what the chain makes itself": (
        {"settings": {**SETTINGS, "finetune.pretrained": "runs/x", "evaluate.out": "y"}},
        ["evaluate.out: the sweep sets it; remove it", "finetune.pretrained: the sweep sets it; remove it"],
    ),
    "no rows": ({"rows": []}, ["rows, search: give exactly one of the two"]),
    "an unknown system": (
        {"system": "procat"}, [f"system: 'procat' is not one of {', '.join(SYSTEMS)}; did you mean 'procap'?"],
    ),
    "nothing to run": (
        {"rows": [{"label": "a", "quoted": True}, {"label": "a", "quoted": True, "settings": {"x": 1}}]},
        ["rows: two have the label 'a'",
         "rows: all are quoted, so there is nothing to run",
         "rows.1.settings: the row is quoted and never run; remove settings or quoted"],
    ),
    "more than a trial has": (
        {"settings": {**SETTINGS, **WORKERS, "pretrain.train.cpus_per_worker": 2}, "trials": {"gpus": 0.5}},
        ["pretrain.train.cpus_per_worker: 2, but a trial has trials.cpus=1",
         "pretrain.train.gpus_per_worker: 1, but a trial has trials.gpus=0.5",
         "finetune.train.num_workers: 2 workers need trials.mode=ray_train"],
    ),
    "ASHA without validations": (
        {"rows": [], "search": {"space": LR}},
        ["finetune.train.eval_every: 0; search.scheduler=asha needs a validation within search.grace=100 steps"],
    ),
    "a group without rows": ({"groups": {"C": {}}}, ["groups.C: no row is of this group"]),
    "a stage 1 and none": (
        {"settings": {**SETTINGS, "pretrained": "x", "explicit_modeling": False}},
        ["pretrained: explicit_modeling=false trains without a stage 1; give one of the two"],
    ),
    "a base of no section": (
        {"base": {"finetun": "x.yaml", "pretrain": "nowhere.yaml"}},
        ["base.finetun: the chain of procap has no such section; did you mean 'finetune'?",
         "base.pretrain: cannot read "],
    ),
}  # fmt: skip


@pytest.mark.parametrize("reason", WRONG)
def test_all_faults_are_named_when_the_sweep_is_read(reason: str) -> None:
    values, expected = WRONG[reason]
    assert all(fault.startswith(begin) for fault, begin in zip(faults(**values), expected, strict=True))


def test_workers_are_for_ray_trains_trials() -> None:
    assert job(settings={**SETTINGS, **WORKERS}, trials={"mode": "ray_train"})


def test_groups_are_below_the_rows_own_settings() -> None:
    rows = [
        {"label": "a", "group": "B"},
        {"label": "b", "group": "B", "settings": {"finetune.beams": 3}},
        {"label": "c"},
    ]
    sweep = job(groups={"B": {"finetune.beams": 2, "pairs": "other"}}, rows=rows)
    assert [row.settings for row in sweep.table] == [
        {"finetune.beams": 2, "pairs": "other"}, {"finetune.beams": 3, "pairs": "other"}, {}
    ]  # fmt: skip


def test_both_ends_of_every_searched_setting_have_to_be_valid() -> None:
    space = {
        "finetune.beams": {"choice": [0, 1]},
        "finetune.decoder_optim.lr": {"low": 1e-5, "high": 1e-3, "log": True},
        "pretrain.masking.random": {"low": 0.1, "high": 1.0, "rest": ["pretrain.masking.entire"]},
        "build.temperature": {"low": 1.0, "high": 0.5},
        "build.depth": {"low": 3},
    }
    found = faults(rows=[], search={"space": space, "scheduler": "none"})
    assert found[-1] == "search.space.build.depth.choice, low, high: give either choice, or low and high"
    assert "search.space.build.temperature.low: 1.0 is not below high = 0.5" in found
    assert "search.space.finetune.beams=0: finetune.beams: input should be greater than or equal to 1, got 0" in found
    assert any(f"{MASKING}: their probabilities add up to 1.2" in fault for fault in found), (
        "entire alone takes the rest, the other two keep 0.1"
    )


def test_the_rest_is_shared_out_equally() -> None:
    search = {"space": {"pretrain.masking.random": {"low": 0.1, "high": 1.0, "rest": ["a", "b", "c"]}}}
    expanded = load(SearchConfig, None, search).expand({"pretrain.masking.random": 0.7})
    assert expanded == {"pretrain.masking.random": 0.7, **dict.fromkeys("abc", pytest.approx(0.1))}


def test_missing_inputs_are_found_before_anything_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").mkdir()
    sweep = job(
        settings={"pairs": "here", "build.tokenizer": "nowhere"},
        rows=[{"label": "one"}, {"label": "two", "settings": {"pairs": "nor/here"}}],
    )
    assert [fault.split(" (in")[0] for fault in sweep.preflight()] == [
        "build.tokenizer: no such file or folder: 'nowhere'",
        "pairs: no such file or folder: 'nor/here'",
    ]


def test_a_stage_1_that_is_there_is_taken_and_counts_by_its_weights(tmp_path: Path) -> None:
    """No stage 1 is trained; other weights make another stage 2, other noise in the procedures too."""
    for name, kind in (("pairs", "pairs"), ("clean", "procedures"), ("noised", "procedures")):
        write_rows(tmp_path / name, [], kind, fingerprint=name)
    artifact = tmp_path / "artifact"
    artifact.mkdir()
    (artifact / "config.json").write_text("{}")
    (artifact / "model.safetensors").write_bytes(b"one")

    def planned(procedures: str) -> Any:
        own = {"pairs": str(tmp_path / "pairs"), "procedures": str(tmp_path / procedures), "pretrained": str(artifact)}
        return job(settings=own).trial({}, seed=0).steps("store")

    first = planned("clean")
    assert [step.name.split("-")[0] for step in first.work] == ["finetune"]
    assert (first.work[0].payload["pretrained"], first.work[0].payload["encoder"]) == (str(artifact), None)
    assert planned("noised").work[0].name != first.work[0].name
    (artifact / "model.safetensors").write_bytes(b"two")
    assert planned("clean").work[0].name != first.work[0].name
