"""NAMC's pre-training through its real entry: the negatives of its losses are those of all workers, so that the numbers
are the same for any number of them, in float32 to rounding."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.invariants.harness import ZERO2, run_cases
from tests.systems.namc.tiny import described_pairs, pretrain_job
from tests.systems.procap.world import World

TRAIN = {"steps": 4, "epochs": None, "batch_size": 8, "log_every": 1, "checkpoint_every": 4, "seed": 3}
CASES = {
    "plain": {},
    "two workers": {"num_workers": 2},
    "zero 2, two workers": {**ZERO2, "num_workers": 2},
    "accumulated": {"grad_accumulation": 2},
}


@pytest.mark.parametrize("loss", ["sdm", pytest.param("infonce", marks=pytest.mark.slow)])
def test_the_numbers_do_not_depend_on_the_workers(loss: str, world: World, tmp_path: Path) -> None:
    """Losses and gradients of steps that follow each other, with the loss of single tokens too."""
    settings = {"nim.loss": loss, "nim.token_weight": 1.0}
    job = pretrain_job(world, described_pairs(world, tmp_path / "described"), settings)
    payload = {**job.model_dump(mode="json"), "train": TRAIN}
    runs = run_cases("idc.systems.namc.task:pretrain", payload, CASES, tmp_path / "runs")
    for name in ("two workers", "zero 2, two workers"):
        for key in ("nim", "tokens", "mir", "fdg", "loss", "grad_norm"):
            expected = [line[key] for line in runs["plain"].log]
            tolerance = 1e-3 if key == "grad_norm" else 1e-4
            assert [line[key] for line in runs[name].log] == pytest.approx(expected, rel=tolerance), (name, key)
    losses = runs["plain"].losses
    assert losses[-1] != pytest.approx(losses[0], rel=2e-3), "the weights moved by far more than rounding"
    assert runs["accumulated"].losses[0] != pytest.approx(losses[0], rel=1e-2), "half of the negatives, another loss"
