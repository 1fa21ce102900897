"""A tiny captioning-like task and its data set, for tests of the loop, the engines and the launcher."""

from __future__ import annotations

import json
import os
import signal
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from idc.training.artifact import read_artifact, write_artifact
from idc.training.config import TrainConfig
from idc.training.context import Context
from idc.training.data import EvalLoader, Loader, Loaders, sample_rng
from idc.training.loop import fit
from idc.training.task import Batch, Task, mean_per_sample
from tests.folders import read_log

TRAIN: dict[str, Any] = {
    "steps": 24, "batch_size": 8, "checkpoint_every": 5, "eval_every": 6, "log_every": 4,
    "keep_best": {"metric": "loss", "mode": "min"},
}  # fmt: skip
"""Settings of a run with several checkpoints, validations and lines of the log."""


class ToyData:
    """Noisy sequences; the target token of a position is a fixed function of it. Unequal lengths, random masks."""

    def __init__(self, size: int, seed: int = 0, length: int = 6, dim: int = 8, classes: int = 5):
        self.size, self.seed, self.length, self.dim = size, seed, length, dim
        self.rule = np.random.default_rng(1).normal(size=(dim, classes))

    def __len__(self) -> int:
        return self.size

    def get(self, index: int, epoch: int) -> dict[str, np.ndarray]:
        x = np.random.default_rng((7, index)).normal(size=(self.length, self.dim))
        rng = sample_rng(self.seed, epoch, index)
        mask = rng.random(self.length) < 0.5
        mask[index % self.length] = True
        noisy = (x + 0.05 * rng.normal(size=x.shape)).astype(np.float32)
        return {"x": noisy, "mask": mask, "target": (x @ self.rule).argmax(1)}


def collate(samples: list[dict[str, np.ndarray]]) -> dict[str, Tensor]:
    return {key: torch.from_numpy(np.stack([sample[key] for sample in samples])) for key in samples[0]}


class Base(nn.Module):
    """A frozen model with dropout and batch statistics, the same whenever it is built. 19 weights per unit of width."""

    def __init__(self, width: int, dropout: float = 0.0, dtype: str = "float32", dim: int = 8):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(11)
            self.widen, self.narrow = nn.Linear(dim, width), nn.Linear(width, dim)
        self.norm, self.dropout = nn.BatchNorm1d(width), nn.Dropout(dropout)
        self.to(getattr(torch, dtype)).requires_grad_(False)

    def forward(self, x_BLD: Tensor) -> Tensor:
        hidden = self.norm(self.widen(x_BLD).flatten(0, 1)).view(*x_BLD.shape[:2], -1)
        return self.narrow(self.dropout(F.gelu(hidden)))


class ToyTask(Task):
    """Two layers and a head, a frozen projection that is stored, parameters of its own (one never used), dropout by
    setting; on top of a base by setting, which is not stored."""

    def __init__(
        self,
        dim: int = 8,
        hidden: int = 32,
        classes: int = 5,
        dropout: float = 0.0,
        lr: float = 1e-2,
        base: dict[str, Any] | None = None,
    ):
        super().__init__()
        self.lr = lr
        self.clips: dict[str, float] = {}
        """Clip norms of their own, by the name of the group."""
        self.frozen = nn.Linear(dim, dim).requires_grad_(False)
        self.encoder = nn.Sequential(nn.Linear(dim, hidden), nn.GELU(), nn.LayerNorm(hidden), nn.Linear(hidden, hidden))
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(hidden, classes)
        self.shift = nn.Parameter(torch.zeros(dim))  # owned by the task itself
        self.unused = nn.Parameter(torch.ones(3))
        self.base = None if base is None else Base(**base)
        self.kill: tuple[int, int, str] | None = None
        self.huge = False
        self.rank = self.calls = 0
        self.held: Held | None = None

    def logits(self, batch: Batch) -> Tensor:
        x = batch["x"] + 0.1 * self.frozen(batch["x"]) + self.shift
        if self.base is not None:
            x = x + 0.1 * self.base(x)
        return self.head(self.dropout(F.gelu(self.encoder(x))))

    def training_step(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor | float]]:
        self.calls += self.training
        if self.kill is not None and self.training and (self.calls, self.rank) == self.kill[:2]:
            _kill_once(self.kill[2])
        if self.held is not None and self.training:
            self.held(self.calls)
        if self.huge:
            torch.empty(1 << 58)  # an exbibyte
        logits = self.logits(batch)
        loss = F.cross_entropy(logits.float().transpose(1, 2), batch["target"], reduction="none")
        right = (logits.argmax(-1) == batch["target"]).float()
        return mean_per_sample(loss, batch["mask"]), {"accuracy": mean_per_sample(right, batch["mask"])}

    def param_groups(self) -> list[dict[str, Any]]:
        encoder = [*self.encoder.parameters(), *self.frozen.parameters()]
        schedule = {"weight_decay": 0.01, "schedule": "linear_warmup_decay", "warmup_share": 0.2}
        groups: list[dict[str, Any]] = [
            {"name": "encoder", "params": encoder, "lr": self.lr, **schedule},
            {"name": "head", "params": [*self.head.parameters(), self.shift, self.unused], "lr": self.lr / 2},
        ]
        return [{**group, "clip_norm": self.clips.get(group["name"])} for group in groups]

    def base_parts(self) -> list[nn.Module]:
        return [] if self.base is None else [self.base]

    def checkpointed_parts(self) -> list[nn.Module]:
        return [self.encoder, self.dropout]


class Held:
    """Writes down every training step, and holds a run in the steps that have a gate until the test opens it.

    Args:
        folder: of ``steps-RANK.jsonl`` (time, step, world size) and the gates' files ``open-STEP``.
        gates: the steps.
        pace: seconds that each step takes at least.
    """

    def __init__(self, context: Context, folder: str, gates: list[int], pace: float = 0.0):
        self.context, self.folder, self.gates, self.pace = context, Path(folder), gates, pace
        last = context.latest_checkpoint()
        self.start = 0 if last is None else int(last.name[5:13])

    def __call__(self, calls: int) -> None:
        step = self.start + calls
        line = {"time": time.time(), "step": step, "world": self.context.world_size}
        with (self.folder / f"steps-{self.context.rank}.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")
        while step in self.gates and not (self.folder / f"open-{step}").exists():
            time.sleep(0.02)
        time.sleep(self.pace)


def _kill_once(marker: str) -> None:
    """SIGKILL for this process, or an exception if the name begins so, if the file ``marker`` is not there yet. If it
    is a FIFO: wait until somebody has written to it."""
    if os.path.exists(marker) and stat.S_ISFIFO(os.stat(marker).st_mode):
        with open(marker) as fifo:
            fifo.read()
    if not os.path.exists(marker):
        with open(marker, "x"):
            if os.path.basename(marker).startswith("raise"):
                raise RuntimeError("killed by the test")
            os.kill(os.getpid(), signal.SIGKILL)


def loaders(train: TrainConfig, context: Context, size: int = 50) -> Loaders:
    rank, world_size = context.rank, context.world_size
    return Loaders(
        Loader(ToyData(size), collate, train, rank, world_size), EvalLoader(ToyData(21), 4, rank, world_size, collate)
    )


def build(payload: dict[str, Any]) -> ToyTask:
    task = ToyTask(hidden=payload.get("hidden", 32), dropout=payload.get("dropout", 0.0), base=payload.get("base"))
    if "kill_step" in payload:
        task.kill = (payload["kill_step"], payload.get("kill_rank", 0), payload["kill_marker"])
    task.huge = payload.get("huge", False)
    task.clips = payload.get("clips", {})
    return task


def entry(payload: dict[str, Any], context: Context) -> dict[str, Any]:
    """An entry for ``cluster.train.launch``. Payload: ``train``, and optionally ``size``, ``hidden``, ``dropout``,
    ``base``, ``clips``, ``kill_*``, ``huge`` (more memory than there is), ``held`` (of :class:`Held`)."""
    train = TrainConfig.model_validate(payload["train"])
    if "attempts" in payload:
        with open(payload["attempts"], "a") as attempts:
            attempts.write("attempt\n")
    torch.manual_seed(train.seed)
    task = build(payload)
    parts = loaders(train, context, payload.get("size", 50))
    task.rank = context.rank
    if "held" in payload:
        task.held = Held(context, **payload["held"])

    def export(state: dict[str, Tensor], metrics: dict[str, float]) -> None:
        write_artifact(context.run_dir / "artifact", system="toy", config=payload, state_dict=state, metrics=metrics)

    return fit(task, parts, context, train, export=export)


def check_resume(
    task: type[Task], start: Callable[[Path], object], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that is killed in its fifth call of ``training_step``, and started again, has the losses and the weights of
    an undisturbed one.

    Args:
        start: runs a job in this process, in the folder that it is given; with a checkpoint before the fifth step.
    """
    start(folder / "whole")
    real, calls = task.training_step, []

    def killed(self: Task, batch: Batch) -> Any:
        calls.append(1)
        if len(calls) == 5:
            raise KeyboardInterrupt
        return real(self, batch)

    monkeypatch.setattr(task, "training_step", killed)
    with pytest.raises(KeyboardInterrupt):
        start(folder / "killed")
    monkeypatch.undo()
    start(folder / "killed")
    whole, resumed = (read_artifact(folder / name / "artifact").state_dict() for name in ("whole", "killed"))
    assert whole.keys() == resumed.keys()
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)
    losses = [[line["loss"] for line in read_log(folder / name / "log.jsonl")] for name in ("whole", "killed")]
    assert losses[0] == losses[1]
