"""Supervised tuning of a vision-language model, through its real entry: the same numbers however the batch is cut,
whatever the engine, with and without recomputed activations, for every family.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from idc.config import load
from idc.systems.sft.config import SftJob
from idc.training.artifact import ADAPTER
from idc.vlm.config import FAMILIES
from tests.invariants.harness import Run, largest_difference, run_cases
from tests.vlm.folders import write_pairs
from tests.vlm.models import tiny_folder

pytestmark = pytest.mark.slow
TRAIN = {
    "steps": 20, "epochs": None, "batch_size": 4, "log_every": 1, "checkpoint_every": 20, "seed": 3,
    "precision": "fp32", "group_by_length": 0, "keep_best": None,
}  # fmt: skip
SHARDED = {"zero_optimization": {"stage3_param_persistence_threshold": 0}}
"""Without it ZeRO-3 keeps parameters as small as these whole, and the test would show nothing."""
ZERO2 = {"engine": "deepspeed", "zero_stage": 2}
ZERO3 = {"engine": "deepspeed", "zero_stage": 3, "deepspeed_extra": SHARDED}
CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "accumulated": {"grad_accumulation": 4},
    "recomputed": {"activation_checkpointing": True},
    "two workers": {"num_workers": 2},
    "zero 2": ZERO2,
    "zero 2, two workers": {**ZERO2, "num_workers": 2},
    "zero 3": ZERO3,
    "zero 3, recomputed": {**ZERO3, "activation_checkpointing": True},
    "zero 3, two workers": {**ZERO3, "num_workers": 2, "grad_accumulation": 2},
}
OTHERS = [name for name in CASES if name != "plain"]


def payload_of(kind: str, folder: Path) -> dict[str, Any]:
    """Adapters with dropout off, tower and projector trained whole: all kinds of parameters there are. Dropout depends
    on the micro-batch and the rank, so that no two layouts of a run share it."""
    part = {"lr": 1e-2, "warmup_share": 0.1}
    job = load(SftJob, None, {
        "pairs": str(folder), "base.source": str(tiny_folder(kind)), "captions": "one", "validation_samples": 4,
        "tune": {"lora": {"rank": 4, "alpha": 8, "dropout": 0.0}, "language_optim": part, "tower": part,
                 "projector": part}, "generation.max_new_tokens": 8, "train": TRAIN,
    })  # fmt: skip
    return job.model_dump(mode="json")


@pytest.fixture(scope="module", params=FAMILIES)
def kind(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def runs(kind: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    folder = tmp_path_factory.mktemp(kind)
    pairs = write_pairs(folder / "pairs", train=24, val=4)
    return run_cases("idc.systems.sft.task:train", payload_of(kind, pairs), CASES, folder / "runs")


def weights(run: Run) -> dict[str, torch.Tensor]:
    """Everything that was trained."""
    from safetensors.torch import load_file

    return run.state | load_file(run.path / "artifact" / ADAPTER / "adapter_model.safetensors")


@pytest.mark.parametrize("name", OTHERS)
def test_the_numbers_are_the_same(runs: dict[str, Run], name: str) -> None:
    plain, other = runs["plain"], runs[name]
    assert len(other.log) == TRAIN["steps"]
    norms = [[line["grad_norm"] for line in run.log] for run in (plain, other)]
    print("LOSS", name, max(abs(a / b - 1) for a, b in zip(other.losses, plain.losses, strict=True)))
    print("NORM", name, max(abs(a / b - 1) for a, b in zip(norms[1], norms[0], strict=True)))
    print("WEIGHT", name, largest_difference(weights(plain), weights(other)))
    print("VAL", name, [line.get("validation/loss") for line in (plain.log[-1], other.log[-1])])


def test_the_runs_moved_far_more_than_the_tolerances(runs: dict[str, Run]) -> None:
    losses = runs["plain"].losses
    print("MOVED", losses[0], losses[-1])
    assert losses[-1] < 0.8 * losses[0]
