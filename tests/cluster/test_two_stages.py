"""ProCap's two stages on Ray as `make demo` runs them, with a worker killed in the middle of stage 1."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from cluster.train import launch
from idc.systems import load_system
from idc.training.loop import read_log
from tests.invariants.harness import Run, largest_difference, run_cases
from tests.systems.procap.world import World

WORKERS = {"num_workers": 2, "engine": "deepspeed", "zero_stage": 2, "max_failures": 2}
STEPS, KILL_AT = 60, 25
STAGE_1: dict[str, Any] = {
    "steps": STEPS,
    "epochs": None,
    "batch_size": 4,
    "checkpoint_every": 10,
    "eval_every": 30,
    "log_every": 5,
    "seed": 1,
    "tracking": {"enabled": False},
    **WORKERS,
}
STAGE_2 = {**STAGE_1, "steps": 10, "checkpoint_every": 5, "eval_every": 0, "keep_best": {"metric": "CIDEr"}}


class Killer(threading.Thread):
    """Sends SIGKILL to one of two training workers once the run's log has reached a step, and only once."""

    def __init__(self, log: Path, step: int):
        super().__init__(daemon=True)
        self.log, self.step = log, step
        self.killed: int | None = None
        self.at = 0
        self.over = threading.Event()

    def run(self) -> None:
        while not self.over.is_set():
            self.at = max((line["step"] for line in _lines(self.log)), default=0)
            if self.at >= self.step and (workers := training_workers()):
                self.killed = max(workers)
                os.kill(self.killed, signal.SIGKILL)
                return
            time.sleep(0.01)


def _lines(log: Path) -> list[dict[str, Any]]:
    try:
        return read_log(log)
    except (OSError, ValueError):  # not there yet, or a line half written
        return []


def training_workers() -> list[int]:
    """Process ids of the Ray Train workers of this test's Ray, which are descendants of this process."""
    import psutil

    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            if "RayTrainWorker" in "".join(process.cmdline()[:1]):
                found.append(process.pid)
        except psutil.Error:
            continue
    return found


@pytest.mark.slow
@pytest.mark.ray
def test_two_stages_on_ray_with_a_worker_killed_in_the_middle(ray_session: None, world: World, tmp_path: Path) -> None:
    """Two workers, ZeRO-2. The loss curve, the weights and the final CIDEr are those of the same two ranks without Ray
    and undisturbed: to 1e-6, since a restart repeats the same sums."""
    stage_1 = world.pretrain({"optim.lr": 1e-3})
    payload = stage_1.model_dump(mode="json", exclude={"train"})
    on_ray = tmp_path / "runs" / "pretrain"
    killer = Killer(on_ray / "log.jsonl", KILL_AT)
    killer.start()
    result = launch("idc.systems.procap.task:pretrain", payload, stage_1.train.model_validate(STAGE_1), on_ray)
    killer.over.set()
    killer.join()
    assert killer.killed is not None, "the run was over before its worker could be killed"
    assert KILL_AT <= killer.at < STEPS
    assert result["steps"] == STEPS
    plain = run_cases("idc.systems.procap.task:pretrain", {**payload, "train": STAGE_1}, {"plain": {}}, tmp_path)
    undisturbed, disturbed = plain["plain"], Run(on_ray)
    assert [line["step"] for line in disturbed.log] == list(range(5, STEPS + 1, 5))
    for key in ("loss", "msm", "align", "consistency", "grad_norm"):
        assert [line[key] for line in disturbed.log] == pytest.approx(
            [line[key] for line in undisturbed.log], rel=1e-6
        ), key
    assert largest_difference(disturbed.state, undisturbed.state) < 1e-6
    assert result["metrics"]["loss"] == pytest.approx(undisturbed.log[-1]["validation/loss"], rel=1e-6)

    # Stage 2 from what the disturbed run left, on Ray; and from what the undisturbed one left, without.
    stage_2 = world.finetune({"encoder_optim.lr": 1e-3}, pretrained=str(on_ray / "artifact"))
    payload = stage_2.model_dump(mode="json", exclude={"train"})
    finetuned = tmp_path / "runs" / "finetune"
    result = launch("idc.systems.procap.task:finetune", payload, stage_2.train.model_validate(STAGE_2), finetuned)
    payload["pretrained"] = str(undisturbed.path / "artifact")
    plain = run_cases("idc.systems.procap.task:finetune", {**payload, "train": STAGE_2}, {"plain 2": {}}, tmp_path)
    undisturbed, disturbed = plain["plain 2"], Run(finetuned)
    assert disturbed.losses == pytest.approx(undisturbed.losses, rel=1e-5)
    assert largest_difference(disturbed.state, undisturbed.state) < 1e-5
    assert result["metrics"]["CIDEr"] == pytest.approx(undisturbed.log[-1]["validation/CIDEr"], rel=1e-6)

    captioner, other = (load_system("procap").load_captioner(run.path / "artifact") for run in (disturbed, undisturbed))
    from idc.data.images import decode_image
    from idc.data.store import iter_rows

    rows = list(iter_rows(world.pairs, split="val"))
    images = [[decode_image(row[name]) for row in rows] for name in ("before", "after")]
    assert captioner(*images) == other(*images)

    again = launch("idc.systems.procap.task:finetune", {**payload, "pretrained": str(on_ray / "artifact")},
                   stage_2.train.model_validate(STAGE_2), finetuned)  # fmt: skip
    assert again["done_before"]
