"""A checkpoint of two workers goes on with one and with three."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from idc.training.context import checkpoint_name
from idc.training.data import Loader, Sample
from tests.invariants.harness import largest_difference, run_cases

ENTRY = "tests.training.toy:entry"
TRAIN: dict[str, Any] = {
    "steps": 24,
    "batch_size": 12,
    "checkpoint_every": 14,
    "eval_every": 8,
    "log_every": 1,
    "seed": 3,
}
SHARDED = {"zero_optimization": {"stage3_param_persistence_threshold": 0}}  # else the toy's parameters stay whole
ENGINES: dict[str, dict[str, Any]] = {
    "torch": {},
    "zero 0": {"engine": "deepspeed"},
    "zero 1": {"engine": "deepspeed", "zero_stage": 1},
    "zero 2": {"engine": "deepspeed", "zero_stage": 2},
    "zero 3": {"engine": "deepspeed", "zero_stage": 3, "deepspeed_extra": SHARDED},
    "base, zero 2": {"engine": "deepspeed", "zero_stage": 2},
    "base, zero 3": {"engine": "deepspeed", "zero_stage": 3, "deepspeed_extra": SHARDED},
}
"""By name; those with a base have frozen weights that are not stored."""


@pytest.mark.parametrize("group_by_length", [0, 2])
def test_a_run_that_changes_its_workers_sees_every_sample_once(group_by_length: int) -> None:
    """Two workers, then one, then three, over two epochs of 60 samples."""

    def seen(workers: int, steps: range) -> list[Sample]:
        ranks = [
            Loader(Lengths(), 12, 5, rank, workers, lambda found: {}, group_by_length=group_by_length)
            for rank in range(workers)
        ]
        return [sample for step in steps for rank in ranks for sample in rank.samples(step)]

    samples = seen(2, range(4)) + seen(1, range(4, 7)) + seen(3, range(7, 10))
    assert sorted(samples) == [(index, epoch) for index in range(60) for epoch in (0, 1)]


class Lengths:
    """60 samples of seven lengths."""

    def __len__(self) -> int:
        return 60

    def get(self, index: int, epoch: int) -> int:
        return index

    def length(self, index: int, epoch: int) -> float:
        return float(index % 7)


@pytest.mark.slow
def test_two_workers_checkpoint_goes_on_with_one_and_with_three(tmp_path: Path) -> None:
    (tmp_path / "two").mkdir()
    two = {name: {**engine, "num_workers": 2} for name, engine in ENGINES.items()}
    for kind in ("", "base"):
        payload = {"train": TRAIN, **({"base": {"width": 20}} if kind else {})}
        names = [name for name in ENGINES if name.startswith("base") == bool(kind)]
        runs = run_cases(ENTRY, payload, {name: two[name] for name in names}, tmp_path / "two")
        others = {}
        for name in names:
            for workers in (1, 3):
                case = f"{name} {workers}"
                shutil.copytree(runs[name].path, tmp_path / "on" / case)
                shutil.rmtree(tmp_path / "on" / case / "checkpoints" / checkpoint_name(24))
                shutil.rmtree(tmp_path / "on" / case / "artifact")
                others[case] = {**ENGINES[name], "num_workers": workers}
        again = run_cases(ENTRY, payload, others, tmp_path / "on")
        for case, run in again.items():
            undisturbed = runs[case[:-2]]
            assert [line["step"] for line in run.log] == list(range(1, 25)), case
            assert run.losses[:14] == undisturbed.losses[:14], case
            assert run.losses == pytest.approx(undisturbed.losses, rel=2e-6), case
            assert run.losses[14:] != undisturbed.losses[14:], f"{case}: it went on, with other sums"
            validation = pytest.approx(undisturbed.log[-1]["validation/loss"], rel=2e-6)
            assert run.log[-1]["validation/loss"] == validation, case
            assert largest_difference(undisturbed.state, run.state) < 2e-6, case
