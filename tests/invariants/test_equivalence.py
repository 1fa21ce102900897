"""The numbers do not depend on how a batch is cut, on the number of workers, or on the engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.invariants.harness import ZERO2, ZERO3, Run, largest_difference, run_cases

TRAIN = {"steps": 30, "batch_size": 8, "eval_every": 10, "checkpoint_every": 20, "log_every": 1, "seed": 3}
CASES = {
    "plain": {},
    "accumulated": {"grad_accumulation": 4},
    "no prefetch": {"prefetch": 0},
    "three threads": {"prefetch": 5, "loader_threads": 3},
    "recomputed": {"activation_checkpointing": True},
    "two workers accumulated": {"num_workers": 2, "grad_accumulation": 2},
    "deepspeed": {"engine": "deepspeed"},
    "deepspeed, two workers": {"engine": "deepspeed", "num_workers": 2},
    "zero 1": {"engine": "deepspeed", "zero_stage": 1},
    "zero 2 accumulated": {**ZERO2, "grad_accumulation": 4},
    "zero 2, two workers": {**ZERO2, "num_workers": 2},
    "zero 3, two workers recomputed": {**ZERO3, "num_workers": 2, "activation_checkpointing": True},
    "zero 3, two workers accumulated": {**ZERO3, "num_workers": 2, "grad_accumulation": 2},
    "bf16": {"precision": "bf16"},
    "bf16 zero 2, two workers": {**ZERO2, "precision": "bf16", "num_workers": 2},
    # last, because DeepSpeed replaces torch.nn.functional.linear for the rest of the process
    "zero 3": ZERO3,
    "bf16 zero 3": {**ZERO3, "precision": "bf16"},
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    return run_cases("tests.training.toy:entry", {"train": TRAIN}, CASES, tmp_path_factory.mktemp("runs"))


BACKGROUND = ["no prefetch", "three threads"]
FP32 = [name for name in list(CASES)[1:] if not name.startswith("bf16") and name not in BACKGROUND]


@pytest.mark.parametrize("name", FP32)
def test_fp32_runs_agree_to_rounding(runs: dict[str, Run], name: str) -> None:
    plain, other = runs["plain"], runs[name]
    assert len(other.log) == TRAIN["steps"]
    assert other.losses == pytest.approx(plain.losses, rel=2e-6)
    for key in ("grad_norm", "accuracy", "lr/encoder", "lr/head"):
        assert [line[key] for line in other.log] == pytest.approx([line[key] for line in plain.log], rel=1e-5), key
    assert other.log[-1]["validation/loss"] == pytest.approx(plain.log[-1]["validation/loss"], rel=2e-6)
    assert largest_difference(plain.state, other.state) < 2e-6


@pytest.mark.parametrize("name", BACKGROUND)
def test_preparing_batches_in_the_background_changes_nothing(runs: dict[str, Run], name: str) -> None:
    assert runs[name].losses == runs["plain"].losses
    assert largest_difference(runs["plain"].state, runs[name].state) == 0


@pytest.mark.parametrize("name", ["bf16 zero 2, two workers", "bf16 zero 3"])
def test_bf16_runs_agree(runs: dict[str, Run], name: str) -> None:
    """Where fp32 differs in the last bit, bf16 may round a weight the other way."""
    assert runs[name].losses == pytest.approx(runs["bf16"].losses, rel=1e-2)
    assert largest_difference(runs["bf16"].state, runs[name].state) < 5e-2


def test_bf16_is_not_fp32_but_near(runs: dict[str, Run]) -> None:
    assert runs["bf16"].losses != runs["plain"].losses
    assert runs["bf16"].losses == pytest.approx(runs["plain"].losses, rel=3e-2)


CLIPPED = {"optimizer": "adam", "clip_norm": 0.05, "steps": 12, "eval_every": 12}
CLIPPED_CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "two workers accumulated": {"num_workers": 2, "grad_accumulation": 2},
    "deepspeed": {"engine": "deepspeed"},
    "zero 2, two workers accumulated": {**ZERO2, "num_workers": 2, "grad_accumulation": 2},
    "zero 3, two workers": {**ZERO3, "num_workers": 2},
}


@pytest.fixture(scope="module")
def clipped(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    """The encoder has a norm of its own, the head that of the run."""
    payload = {"train": {**TRAIN, **CLIPPED}, "clips": {"encoder": 0.2}}
    return run_cases("tests.training.toy:entry", payload, CLIPPED_CASES, tmp_path_factory.mktemp("clipped"))


@pytest.mark.parametrize("name", list(CLIPPED_CASES)[1:])
def test_groups_are_clipped_by_their_own_norms_in_every_engine_with_adam(clipped: dict[str, Run], name: str) -> None:
    plain, other = clipped["plain"], clipped[name]
    assert other.losses == pytest.approx(plain.losses, rel=2e-6)
    norms = [line["grad_norm"] for line in plain.log]
    assert [line["grad_norm"] for line in other.log] == pytest.approx(norms, rel=1e-5)
    assert largest_difference(plain.state, other.state) < 2e-6


def test_a_run_writes_its_artifact_without_the_loops_wrapper(runs: dict[str, Run], tmp_path: Path) -> None:
    from idc.training.artifact import read_artifact
    from tests.training.toy import ToyTask

    assert runs["plain"].losses[-1] < 0.5 * runs["plain"].losses[0]
    for name in ("plain", "zero 3, two workers accumulated"):
        read_artifact(runs[name].path / "artifact", system="toy").load_into(ToyTask())
