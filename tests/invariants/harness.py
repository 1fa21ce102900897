"""Runs one entry under several training settings, each in fresh processes without Ray, to compare their numbers.

For any system: ``run_cases("module:function", payload, {"one": {}, "two": {"num_workers": 2}}, folder)``.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from idc.training.config import TrainConfig
from tests.folders import read_log

SHARDED = {"zero_optimization": {"stage3_param_persistence_threshold": 0}}
"""Without it ZeRO-3 keeps parameters as small as those of tests whole, and they would show nothing."""
ZERO2: dict[str, Any] = {"engine": "deepspeed", "zero_stage": 2}
ZERO3: dict[str, Any] = {"engine": "deepspeed", "zero_stage": 3, "deepspeed_extra": SHARDED}


@dataclass(frozen=True)
class Run:
    """The folder of a finished run."""

    path: Path

    @property
    def log(self) -> list[dict[str, Any]]:
        return read_log(self.path / "log.jsonl")

    @property
    def losses(self) -> list[float]:
        return [line["loss"] for line in self.log]

    @property
    def state(self) -> dict[str, Tensor]:
        from safetensors.torch import load_file

        return load_file(self.path / "artifact" / "model.safetensors")


def run_cases(entry: str, payload: dict[str, Any], cases: Mapping[str, dict[str, Any]], folder: Path) -> dict[str, Run]:
    """Run ``entry`` once per case, whose settings replace those of ``payload["train"]``.

    Cases with the same number of workers share processes, so that torch and DeepSpeed are loaded once.
    """
    resolved = {name: TrainConfig.model_validate({**payload["train"], **case}) for name, case in cases.items()}
    for workers in sorted({train.num_workers for train in resolved.values()}):
        jobs = [
            (str(folder / name), {**payload, "train": train.model_dump(mode="json")})
            for name, train in resolved.items()
            if train.num_workers == workers
        ]
        _spawn(workers, entry, jobs, folder / f"store_{workers}")
    return {name: Run(folder / name) for name in cases}


def _spawn(workers: int, entry: str, jobs: list[tuple[str, dict[str, Any]]], store: Path) -> None:
    store.unlink(missing_ok=True)  # it may be of earlier processes
    context = multiprocessing.get_context("spawn")
    processes = [
        context.Process(target=_rank, args=(rank, workers, entry, jobs, str(store))) for rank in range(workers)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(600)
    codes = [process.exitcode for process in processes]
    for process in processes:
        if process.is_alive():
            process.kill()
    assert codes == [0] * workers, f"exit codes {codes}"


def _rank(rank: int, workers: int, entry: str, jobs: list[tuple[str, dict[str, Any]]], store: str) -> None:
    from idc.training.context import LocalContext

    if workers > 1:
        os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(workers))
        torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=workers)
    module, _, function = entry.partition(":")
    for run_dir, payload in jobs:
        torch.manual_seed(payload["train"]["seed"])
        getattr(importlib.import_module(module), function)(payload, LocalContext(run_dir))
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
        # All that is compared lies on disk. Threads of gloo's groups, DeepSpeed's among them, may still abort an
        # interpreter that is torn down ("terminate called without an active exception").
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def largest_difference(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> float:
    """The largest difference of any weight; both states must have the same names."""
    assert a.keys() == b.keys()
    return max(float((a[name] - b[name]).abs().max()) for name in a)
