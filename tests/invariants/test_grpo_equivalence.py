"""Both trainings by rewards through their real entries: the same numbers for any number of workers and micro-batches,
on Ray, and after a worker was killed. Captions are drawn: a draw on a border falls on the other side by rounding, and
all steps after it are others. That is so in none of these runs."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from cluster.train import TrainingRun, launch
from idc.rewards.rewards import Row
from idc.systems.grpo import task, words
from idc.training.config import TrainConfig
from idc.training.context import Context
from tests.invariants.harness import ZERO2, Run, largest_difference, run_cases
from tests.systems.adpo.small import KIND, WHOLE, pairs_folder
from tests.systems.grpo.small import grpo_job
from tests.systems.grpo.test_words import words_job
from tests.systems.procap.world import World

ME = "tests.invariants.test_grpo_equivalence"
TRAIN = {
    "steps": 8, "epochs": None, "batch_size": 4, "log_every": 2, "checkpoint_every": 4, "seed": 3, "precision": "fp32",
    "keep_best": None, "group_by_length": 0, "tracking": {"enabled": False},
}  # fmt: skip
CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "accumulated": {"grad_accumulation": 4},
    "two workers": {"num_workers": 2},
    "zero 2, two workers, accumulated": {**ZERO2, "num_workers": 2, "grad_accumulation": 2},
}
KILLED_AT = 7
"""The call of its reward in which rank 1 dies: two pairs each second step, so after step 4."""


class Killing:
    """The file that says that this process's run was killed before; the calls of the reward so far."""

    marker: Path | None = None
    calls = 0


def letters(captions: Sequence[str], row: Row) -> list[float]:
    """Of the caption's letters, and of the pair; negative, because a model that never ends a caption earns no more than
    nothing."""
    Killing.calls += 1
    marker, rank = Killing.marker, torch.distributed.get_rank() if torch.distributed.is_initialized() else 0
    if marker and Killing.calls == KILLED_AT and rank == 1 and not marker.exists():
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    wanted = "aeiou" if len(row["pair_id"]) % 2 else "nrst"
    return [-50.0 - len(caption) + 4.0 * sum(map(caption.count, wanted)) for caption in captions]


def killed_words(payload: dict[str, Any], context: Context) -> dict[str, Any]:
    Killing.marker = Path(payload.pop("marker"))
    return words.train(payload, context)


def killed_task(payload: dict[str, Any], context: Context) -> dict[str, Any]:
    Killing.marker = Path(payload.pop("marker"))
    return task.train(payload, context)


@pytest.fixture(scope="module", params=["words", "task"])
def stack(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def payload(stack: str, captioner_artifact: Path, world: World, tmp_path_factory: pytest.TempPathFactory) -> Any:
    more = {"updates": 2, "rewards": {f"{ME}:letters": 0.05}, "train": TRAIN, "kl": 0.1}
    if stack == "words":
        job: Any = words_job(captioner_artifact, world.pairs, optim={"lr": 1e-3, "final_lr": 1e-4}, **more)
    else:
        pairs = pairs_folder(tmp_path_factory.mktemp("data") / "pairs", train=24)
        job = grpo_job(KIND, pairs, tune=WHOLE, **more)
    return job.model_dump(mode="json")


@pytest.fixture(scope="module")
def runs(stack: str, payload: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    return run_cases(f"idc.systems.grpo.{stack}:train", payload, CASES, tmp_path_factory.mktemp(stack))


def agree(plain: Run, other: Run) -> None:
    """Values step by step, and the weights. What is logged of ratios and divergences is a mean over a micro-batch's
    tokens, and depends on the cut."""
    for key in ("loss", "reward", "grad_norm"):
        values = [[line[key] for line in run.log] for run in (plain, other)]
        assert values[1] == pytest.approx(values[0], rel=1e-4, abs=1e-6), key
    assert largest_difference(plain.state, other.state) < 5e-4


@pytest.mark.slow
@pytest.mark.parametrize("name", list(CASES)[1:])
def test_the_numbers_are_the_same(runs: dict[str, Run], name: str) -> None:
    assert len(runs["plain"].log) == TRAIN["steps"] // 2
    assert len({line["reward"] for line in runs["plain"].log}) == 4
    assert all(line["ratio"] != 1 for line in runs["plain"].log), "a second update of the same captions"
    agree(runs["plain"], runs[name])


@pytest.mark.slow
@pytest.mark.ray
def test_a_worker_killed_while_captions_are_rewarded_changes_nothing(
    ray_session: None, stack: str, payload: dict[str, Any], runs: dict[str, Run], tmp_path: Path
) -> None:
    """On Ray, against the same workers without Ray and undisturbed: not only about equal, but the same numbers."""
    settings, marker = {key: value for key, value in payload.items() if key != "train"}, tmp_path / "killed"
    train = TrainConfig.model_validate({**payload["train"], "num_workers": 2, "max_failures": 1})
    run = TrainingRun.in_folder(f"{ME}:killed_{stack}", {**settings, "marker": str(marker)}, train, tmp_path / "run")
    launch(run)
    assert marker.exists()
    undisturbed, killed = runs["two workers"], Run(tmp_path / "run")
    agree(undisturbed, killed)
    assert [line["loss"] for line in killed.log] == [line["loss"] for line in undisturbed.log]
