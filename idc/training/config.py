"""Settings of the training loop, and the learning-rate schedules as plain functions of the step. Imports no torch."""

from __future__ import annotations

import math
import os
import shlex
from collections.abc import Collection, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal
from urllib.parse import urlsplit

from pydantic import Field

from idc.config import ConfigModel, missing

RunName = Annotated[
    str,
    Field(
        min_length=1,
        pattern=r"^[A-Za-z0-9._-]+$",
        description="Name of the run: its folder under `runs`. The same name resumes it.",
    ),
]
ScheduleName = Literal["constant", "linear_warmup", "linear_warmup_decay", "linear_warmup_cosine", "log_warmup"]


class GroupConfig(ConfigModel):
    """Learning rate, decay and schedule of one group of parameters.

    A task's ``param_groups()`` may spread it: ``{"name": ..., "params": [...], **self.config.encoder.model_dump()}``.
    """

    lr: float = Field(1e-4, ge=0)
    """Peak learning rate."""
    weight_decay: float = Field(0.0, ge=0)
    """Weight decay (decoupled with adamw, added to the gradient with adam)."""
    schedule: ScheduleName = "constant"
    """constant; linear_warmup: then constant; linear_warmup_decay: then linear to final_lr at the last step;
    linear_warmup_cosine: then half a cosine to final_lr; log_warmup: DeepSpeed's WarmupLR (gain log(step) /
    log(warmup)), then constant."""
    warmup_steps: int = Field(0, ge=0)
    """Optimizer steps of warm-up."""
    warmup_share: float = Field(0.0, ge=0, lt=1)
    """Warm-up as a share of all steps, instead of warmup_steps."""
    warmup_lr: float = Field(0.0, ge=0)
    """Learning rate at which the warm-up starts."""
    final_lr: float = Field(0.0, ge=0)
    """Learning rate of the last step of a schedule that decays."""
    clip_norm: float | None = Field(None, ge=0)
    """Largest norm of this group's gradient, which then does not count in `train.clip_norm`; 0 does not clip. For parts
    whose gradients differ in size. ZeRO 1 and 2 gather the gradient once more in every step."""

    def errors(self) -> Iterator[str]:
        if self.warmup_steps and self.warmup_share:
            yield f"warmup_steps={self.warmup_steps} and warmup_share={self.warmup_share}: give only one of them"
        if self.schedule == "constant" and (self.warmup_steps or self.warmup_share):
            yield "schedule: 'constant' has no warm-up; take 'linear_warmup', or set warmup_steps and warmup_share to 0"
        for name in ("warmup_lr", "final_lr"):
            if (rate := getattr(self, name)) > self.lr:
                yield f"{name}={rate} is above lr={self.lr}"
        if self.final_lr and self.schedule not in ("linear_warmup_decay", "linear_warmup_cosine"):
            yield f"final_lr: {self.schedule!r} does not decay; take linear_warmup_decay or linear_warmup_cosine"


def learning_rate(group: GroupConfig, step: int, total_steps: int) -> float:
    """The learning rate of optimizer step ``step`` (from 0) of ``total_steps``.

    Linear warm-up reaches the peak at step ``warmup - 1``, a decay final_lr at the last step. The log warm-up is
    DeepSpeed's ``WarmupLR``: at steps 0 and 1 warmup_lr, then warmup_lr + (lr - warmup_lr) * log(step) / log(warmup).
    """
    warmup = group.warmup_steps or round(group.warmup_share * total_steps)
    gain = 1.0
    if group.schedule == "log_warmup":
        warmup = max(2, warmup)
        if step - 1 < warmup:
            gain = math.log(max(1, step)) / math.log(warmup)
    elif group.schedule != "constant" and step < warmup:
        gain = (step + 1) / warmup
    elif group.schedule in ("linear_warmup_decay", "linear_warmup_cosine"):
        peak, last = max(0, warmup - 1), total_steps - 1
        done = min(1.0, (step - peak) / max(1, last - peak))
        left = 1 - done if group.schedule == "linear_warmup_decay" else 0.5 + 0.5 * math.cos(math.pi * done)
        return group.final_lr + (group.lr - group.final_lr) * left
    return group.warmup_lr + (group.lr - group.warmup_lr) * min(1.0, gain)


class KeepBest(ConfigModel):
    """Keep the weights of the best validation, and export them in the artifact."""

    metric: str | tuple[str, ...]
    """Name of a validation metric, e.g. CIDEr; of several, the first that the validation pairs can give."""
    mode: Literal["max", "min"] = "max"
    """Whether a higher or a lower value is better."""

    def chosen(self, names: Collection[str]) -> str:
        """The metric to compare by.

        Raises:
            ValueError: none of them is measured.
        """
        wanted = (self.metric,) if isinstance(self.metric, str) else self.metric
        for name in wanted:
            if name in names:
                return name
        raise ValueError(
            f"train.keep_best.metric={' or '.join(map(repr, wanted))} is not measured; the validation returns "
            f"{', '.join(sorted(names))}"
        )

    def better(self, value: float, than: float | None) -> bool:
        return than is None or (value > than if self.mode == "max" else value < than)


def unusable_tracking(uri: str | None, field: str, make: bool = False) -> Iterator[str]:
    """A fault of an MLflow tracking URI, by default that of MLFLOW_TRACKING_URI: a folder, which MLflow refuses from
    3.13 on; without ``make`` also a SQLite file that does not exist, of which MLflow would make an empty one."""
    if not uri:
        uri, field = os.environ.get("MLFLOW_TRACKING_URI", ""), "MLFLOW_TRACKING_URI"
    parts, allowed = urlsplit(uri), os.environ.get("MLFLOW_ALLOW_FILE_STORE", "").lower() in ("true", "1")
    if parts.scheme == "sqlite" and not make:
        yield from missing(parts.path.removeprefix("/"), field)
    elif uri not in ("", "databricks") and parts.scheme in ("", "file") and not allowed:
        folder = Path(parts.path)
        target = f"sqlite:///{folder.parent / 'mlflow.db'}"
        yield (
            f"{field}: {uri!r} is a folder, which MLflow refuses from 3.13 on; give {target}, into which "
            f"`mlflow migrate-filestore --source {shlex.quote(str(folder))} --target {target}` moves what it holds"
        )


class TrackingConfig(ConfigModel):
    """Where the run is tracked, in addition to its own log.jsonl."""

    enabled: bool = True
    """Track the run in MLflow."""
    uri: str | None = None
    """MLflow tracking URI. Default: MLFLOW_TRACKING_URI, else the SQLite file mlflow.db next to the run's folder."""
    experiment: str = "idc"
    """MLflow experiment."""
    patience_s: float = Field(120.0, ge=0)
    """Seconds that the end of a run waits for a tracking server that does not answer; the run itself never waits."""

    def preflight(self) -> Iterator[str]:
        if self.enabled:
            yield from unusable_tracking(self.uri, "uri", make=True)


def missing_device(device: str | None, field: str = "device") -> Iterator[str]:
    """A fault if torch has no such device on this machine."""
    if device is None or device == "cpu":
        return  # without the import of torch
    import torch

    kind = torch.accelerator.current_accelerator()
    there = ["cpu:0", *(f"{kind.type}:{n}" for n in range(torch.accelerator.device_count()) if kind is not None)]
    if device not in there and f"{device}:0" not in there:
        yield f"{field}: torch has no {device!r} here, only {', '.join(there)}; give one of these, or leave it out"


class TrainConfig(ConfigModel):
    """How long, how large, how fast, and on what."""

    steps: int | None = Field(None, ge=1)
    """Optimizer steps; give this or epochs."""
    epochs: float | None = Field(None, gt=0)
    """Passes over the training split; give this or steps."""
    batch_size: int = Field(32, ge=1)
    """Samples in one optimizer step: over all workers and all accumulated micro-batches together."""
    grad_accumulation: int = Field(1, ge=1)
    """Micro-batches in one optimizer step: less memory, the same losses."""
    optimizer: Literal["adam", "adamw"] = "adamw"
    """adam adds weight decay to the gradient, adamw decouples it."""
    betas: tuple[float, float] = (0.9, 0.999)
    """Decay of Adam's two averages."""
    eps: float = Field(1e-8, gt=0)
    """Adam's epsilon."""
    clip_norm: float = Field(1.0, ge=0)
    """Largest norm of the whole gradient, without the groups that have a `clip_norm` of their own; 0 does not clip."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """bf16: autocast over fp32 trained weights, in both engines; frozen weights may be bf16. fp32 needs all in fp32."""
    activation_checkpointing: bool = False
    """Recompute activations in the backward pass instead of storing them: less memory, slower, the same losses."""
    engine: Literal["torch", "deepspeed"] = "torch"
    """Implementation of parameters and optimizer."""
    zero_stage: int = Field(0, ge=0, le=3)
    """DeepSpeed's ZeRO stage: 1 shards the optimizer, 2 gradients too, 3 parameters too."""
    deepspeed_extra: dict[str, Any] = Field(default_factory=dict)
    """Merged last into the generated DeepSpeed config."""
    checkpoint_every: int = Field(500, ge=1)
    """Steps between checkpoints for resume; there is always one at the end."""
    keep_last: int = Field(2, ge=1)
    """Checkpoints kept."""
    keep_best: KeepBest | None = None
    """Export the weights of the best validation; empty: those of the last step."""
    eval_every: int = Field(0, ge=0)
    """Steps between validations; 0: only at the end."""
    log_every: int = Field(10, ge=1)
    """Steps between lines of log.jsonl, of means, and between looks for announced losses of Ray's nodes."""
    seed: int = Field(0, ge=0)
    """Seed of the initial weights, of the order of samples, of dropout."""
    prefetch: int = Field(2, ge=0)
    """Batches prepared ahead in the background; 0 prepares them in the loop."""
    loader_threads: int = Field(1, ge=1)
    """Threads that prepare batches, per worker."""
    loader_processes: int = Field(0, ge=0)
    """Processes that prepare batches instead of threads, per worker, each with a copy of the data set's objects: for
    image work that threads do not speed up."""
    group_by_length: int = Field(0, ge=0)
    """Sort each epoch by length within windows of this many steps, for less padding, and shuffle the steps; 0: no."""
    num_workers: int = Field(1, ge=1)
    """Training processes."""
    min_workers: int | None = Field(None, ge=1)
    """Go on with as few workers as this when Ray loses nodes, from the last checkpoint with the same numbers, and take
    new ones up to num_workers. Default: wait for a replacement."""
    cpus_per_worker: int = Field(1, ge=1)
    """Cores, and torch threads, of one worker."""
    gpus_per_worker: float = Field(0, ge=0)
    """GPUs of one worker."""
    max_failures: int = Field(3, ge=0)
    """How often Ray restarts the run after a worker or node was lost; an announced loss does not count."""
    storage_patience_s: float = Field(600.0, ge=0, le=1500)
    """Seconds that a run on object storage (``runs=s3://...``) waits for a store that does not answer, then fails."""
    tracking: TrackingConfig = TrackingConfig()
    """MLflow."""

    def errors(self) -> Iterator[str]:
        if (self.steps is None) == (self.epochs is None):
            yield f"steps={self.steps} and epochs={self.epochs}: give exactly one of them"
        parts = self.grad_accumulation * self.num_workers
        if self.batch_size % parts:
            near = max(1, round(self.batch_size / parts)) * parts
            yield (
                f"batch_size={self.batch_size} is not divisible by grad_accumulation * num_workers = "
                f"{self.grad_accumulation} * {self.num_workers} = {parts}; take {near}"
            )
        elif self.min_workers is not None and self.min_workers > self.num_workers:
            yield f"min_workers={self.min_workers} is above num_workers={self.num_workers}"
        elif uneven := [n for n in self._worker_counts if self.micro_batch_size % n]:
            whole = math.lcm(*self._worker_counts) * self.grad_accumulation
            near = max(1, round(self.batch_size / whole)) * whole
            yield (
                f"min_workers={self.min_workers} allows {uneven[0]} workers, which cannot share micro-batches of "
                f"{self.micro_batch_size} samples equally; take batch_size={near}, or set "
                f"min_workers={self.num_workers}"
            )
        if self.engine == "torch" and self.zero_stage:
            yield f"zero_stage={self.zero_stage} needs engine=deepspeed, the engine is torch"
        if self.engine == "torch" and self.deepspeed_extra:
            yield "deepspeed_extra is set, and the engine is torch; take engine=deepspeed"
        if self.loader_processes and self.loader_threads > 1:
            yield (
                f"loader_processes={self.loader_processes} and loader_threads={self.loader_threads}: processes replace "
                "threads; leave one of the settings at its default"
            )
        if self.loader_processes and not self.prefetch:
            yield f"loader_processes={self.loader_processes} prepare batches ahead, and prefetch is 0; raise prefetch"
        for beta in self.betas:
            if not 0 <= beta < 1:
                yield f"betas: {beta} is not in [0, 1)"
        if self.precision == "fp32" and any(
            isinstance(section := self.deepspeed_extra.get(key), dict) and section.get("enabled")
            for key in ("bf16", "fp16", "torch_autocast")
        ):
            yield "deepspeed_extra switches on a lower precision, and precision is fp32"

    @property
    def _worker_counts(self) -> range:
        return range(self.min_workers or self.num_workers, self.num_workers + 1)

    @property
    def micro_batch_size(self) -> int:
        """Samples of one micro-batch over all workers."""
        return self.batch_size // self.grad_accumulation

    def total_steps(self, num_samples: int) -> int:
        """Optimizer steps of the whole run on a training split of ``num_samples``."""
        if self.steps is not None:
            return self.steps
        assert self.epochs is not None
        return math.ceil(self.epochs * num_samples / self.batch_size)

    def preflight(self) -> Iterator[str]:
        if self.engine == "deepspeed" and find_spec("deepspeed") is None:
            yield "engine: deepspeed is not installed; pip install 'idc[gpu]', or set engine=torch zero_stage=0"


class TrainingJob(ConfigModel):
    """What the config of every training has, besides ``train``, the settings of the loop."""

    ENTRY: ClassVar[str]
    """``"module:function"`` of the training, as :mod:`cluster.train` calls it."""

    name: RunName
    runs: str = "runs"
    """Folder of all runs."""


OPERATIONAL = frozenset({
    "num_workers", "min_workers", "cpus_per_worker", "gpus_per_worker", "max_failures", "prefetch", "loader_threads",
    "loader_processes", "keep_last", "log_every", "activation_checkpointing", "storage_patience_s", "tracking",
})  # fmt: skip
"""Fields of TrainConfig that do not change what is learned: a run may be resumed with other values of them."""
