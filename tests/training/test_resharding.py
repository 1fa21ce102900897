"""A checkpoint of two workers goes on with one and with three."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from idc.training.run_storage import checkpoint_name
from tests.invariants.harness import ZERO2, ZERO3, largest_difference, run_cases

ENTRY = "tests.training.toy:entry"
TRAIN = {"steps": 24, "batch_size": 12, "checkpoint_every": 14, "eval_every": 8, "log_every": 1, "seed": 3}
ENGINES: dict[str, dict[str, Any]] = {
    "torch": {}, "zero 0": {"engine": "deepspeed"}, "zero 1": {"engine": "deepspeed", "zero_stage": 1},
    "zero 2": ZERO2, "zero 3": ZERO3, "base, zero 2": ZERO2, "base, zero 3": ZERO3,
}  # fmt: skip
"""By name; those with a base have frozen weights that are not stored."""


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
