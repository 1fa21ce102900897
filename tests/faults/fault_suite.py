"""Faults injected into real jobs: the steps lost, the seconds until the job works again, and the distance of the final
numbers from those of an undisturbed run. The table of faults in BENCHMARKS.md was measured with it."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from idc.config import load
from idc.data.pipeline import run_local
from idc.data.rendered.config import RenderJob
from idc.data.store import iter_rows
from tests.faults.injection import Job, TrackingServer, Training, damage, fill, small_disk, until

TRAIN = "train_twincap.py"
MODEL = {
    "height": 32,
    "width": 32,
    "stem_channels": [8, 16],
    "channels": 32,
    "blocks": 1,
    "decoder": {"width": 32, "layers": 1, "heads": 2, "feedforward": 64, "max_length": 20},
}
ON_RAY = {"num_workers": 2, "engine": "deepspeed", "zero_stage": 2}


@dataclass(frozen=True)
class FaultsConfig:
    """Sizes of the jobs of a tiny TwinCap on rendered pairs.

    Attributes:
        steps: of a training run.
        checkpoint_every: steps between checkpoints.
        kill_at: logged step at which a training is disturbed.
        chunks: of a data build, of two scenes each.
        away_s: seconds for which the tracking server is away.
    """

    steps: int = 30
    checkpoint_every: int = 5
    kill_at: int = 12
    chunks: int = 24
    away_s: float = 3.0


@dataclass(frozen=True)
class FaultRow:
    """A fault and its outcome.

    Attributes:
        lost_steps: steps that were done twice; words for what has no steps.
        recovery_s: seconds until the job was at work again; words where it never stopped.
        final_difference: largest absolute difference of any weight or validation metric from the undisturbed run; words
            for data.
    """

    fault: str
    where: str
    lost_steps: float | str
    recovery_s: float | str
    final_difference: float | str | None
    note: str


class Lab:
    """Rendered pairs, jobs on them, and their undisturbed runs, which are made when first needed."""

    def __init__(self, folder: Path, config: FaultsConfig):
        self.folder, self.config = folder, config
        self._temp = f"/tmp/idc-faults-{os.getpid()}"

    def close(self) -> None:
        shutil.rmtree(self._temp, ignore_errors=True)

    @cached_property
    def pairs(self) -> str:
        """24 pairs."""
        from idc.data.rendered.render import open_rendering

        job = load(RenderJob, None, {"out": str(self.folder / "pairs"), **_scenes(12), "chunk_size": 12})
        run_local(*open_rendering(job), progress=False)
        return str(self.folder / "pairs")

    @property
    def cluster(self) -> dict[str, Any]:
        return {"num_cpus": 4, "num_gpus": 0, "object_store_mb": 100, "auth": "disabled", "temp_dir": self._temp}

    def training(self, name: str, ray: bool, runs: Path | None = None, **train: Any) -> Training:
        """A run: on Ray with two workers and ZeRO-2, else in one process."""
        runs = runs or self.folder / "runs"
        settings: dict[str, Any] = {
            "name": name,
            "runs": str(runs),
            "pairs": self.pairs,
            "model": MODEL,
            "optim": {"lr": 3e-3},
            "train": {
                "steps": self.config.steps,
                "epochs": None,
                "batch_size": 4,
                "log_every": 1,
                "checkpoint_every": self.config.checkpoint_every,
                "keep_best": {"metric": "CIDEr"},
                "tracking": {"enabled": False},
                **(ON_RAY if ray else {}),
                **train,
            },
        }
        if ray:
            settings["cluster"] = self.cluster
        return Training(TRAIN, self.folder / name, runs / name, settings, *([] if ray else ["--local"]))

    def difference(self, run_dir: Path, ray: bool) -> float:
        """The largest absolute difference of any weight or metric from the undisturbed run."""
        from safetensors.torch import load_file

        name = f"undisturbed-{'ray' if ray else 'local'}"
        other = self.folder / "runs" / name
        if not (other / "result.json").exists():
            with self.training(name, ray) as job:
                job.start()
                job.end()
        states = [load_file(one / "artifact" / "model.safetensors") for one in (run_dir, other)]
        metrics = [json.loads((one / "result.json").read_text())["metrics"] for one in (run_dir, other)]
        if any(one.keys() != two.keys() for one, two in (states, metrics)):
            raise ValueError(f"{run_dir} and {other} do not have the same weights or metrics")
        weights = (float((states[0][key].float() - states[1][key].float()).abs().max()) for key in states[0])
        return max(*weights, *(abs(metrics[0][key] - metrics[1][key]) for key in metrics[0]))

    def build(self, name: str) -> Job:
        """A data job on Ray: renders ``chunks`` of two scenes."""
        settings = {
            "out": str(self.folder / name),
            **_scenes(2 * self.config.chunks),
            "chunk_size": 2,
            "workers": 2,
            "cluster": self.cluster,
        }
        return Job("render.py", self.folder / f"{name}-job", settings)

    def rows_lost(self, name: str) -> tuple[str, str]:
        """What a build has lost and made twice, and how its rows differ from an undisturbed build without Ray."""
        from idc.data.rendered.render import open_rendering

        other = self.folder / "undisturbed-build"
        if not other.exists():
            scenes = _scenes(2 * self.config.chunks)
            run_local(
                *open_rendering(load(RenderJob, None, {"out": str(other), **scenes, "chunk_size": 2})), progress=False
            )
        found, expected = list(iter_rows(str(self.folder / name))), list(iter_rows(str(other)))
        ids, wanted = [row["pair_id"] for row in found], {row["pair_id"] for row in expected}
        lost, twice = len(wanted - set(ids)), len(ids) - len(set(ids))
        by_id = {row["pair_id"]: row for row in found}
        differing = sum(by_id.get(row["pair_id"]) != row for row in expected)
        return f"{lost} of {len(wanted)} rows, {twice} twice", f"{differing} rows differ"


def _scenes(number: int) -> dict[str, Any]:
    size = {"width": 32, "height": 32, "samples_per_pixel": 4, "min_visible_pixels": 8}
    shares = {"val_share": 0.17, "test_share": 0.17}
    return {"render": {"num_scenes": number, "min_objects": 2, "max_objects": 3, "jitter": "slight", **size, **shares}}


# -- faults --------------------------------------------------------------------------------------------------------


def worker_killed(lab: Lab) -> FaultRow:
    """SIGKILL to one of two training workers; Ray restarts the run by itself."""
    with lab.training("worker-killed", ray=True) as job:
        job.start()
        job.until_step(lab.config.kill_at)
        job.workers("RayTrainWorker")[-1].kill()
        lost, seconds = job.goes_on(time.monotonic())
    return FaultRow(
        fault="a training worker killed, one of two",
        where="Ray Train, DeepSpeed ZeRO-2",
        lost_steps=lost,
        recovery_s=seconds,
        final_difference=lab.difference(job.run_dir, ray=True),
        note="restarted by itself from its last checkpoint",
    )


def driver_killed(lab: Lab) -> FaultRow:
    """SIGKILL to the command; the same command again."""
    with lab.training("driver-killed", ray=True) as job:
        job.start()
        job.until_step(lab.config.kill_at)
        job.kill()
        job.start()
        lost, seconds = job.goes_on(job.started)
    return FaultRow(
        fault="the driver of a training killed",
        where="Ray Train, DeepSpeed ZeRO-2, 2 workers",
        lost_steps=lost,
        recovery_s=seconds,
        final_difference=lab.difference(job.run_dir, ray=True),
        note="from the start of the same command, Ray's own start included",
    )


def data_driver_killed(lab: Lab) -> FaultRow:
    """SIGKILL to the command of a data build; the same command again."""
    name = "build-driver-killed"
    with lab.build(name) as job:
        job.start()
        parts = _parts_until(job, lab.folder / name, 2)
        job.kill()
        job.start()
        seconds = _more_parts(job, lab.folder / name, parts, job.started)
    lost, difference = lab.rows_lost(name)
    return FaultRow(
        fault="the driver of a data build killed",
        where="Ray Data, 2 actors",
        lost_steps=lost,
        recovery_s=seconds,
        final_difference=difference,
        note="the same command made the missing parts only",
    )


def data_actor_killed(lab: Lab) -> FaultRow:
    """SIGKILL to an actor of a data build."""
    name = "build-actor-killed"
    with lab.build(name) as job:
        job.start()
        _parts_until(job, lab.folder / name, 2)
        until(lambda: len(job.workers("MapWorker")) == 2, "two actors", job)
        actors = job.workers("MapWorker")
        actors[-1].kill()
        since, before = time.monotonic(), {actor.pid for actor in actors}
        seconds: float | str = "the other actor made the rest"
        while job.process.poll() is None:
            if isinstance(seconds, str) and {actor.pid for actor in job.workers("MapWorker")} - before:
                seconds = time.monotonic() - since
            time.sleep(0.02)
        job.end()
    lost, difference = lab.rows_lost(name)
    return FaultRow(
        fault="an actor of a data build killed, one of two",
        where="Ray Data, 2 actors",
        lost_steps=lost,
        recovery_s=seconds,
        final_difference=difference,
        note="until a new actor runs; the other one works on meanwhile",
    )


def _parts_until(job: Job, folder: Path, number: int) -> set[str]:
    until(lambda: len(list(folder.glob("part-*"))) >= number, f"{number} parts", job)
    return {path.name for path in folder.glob("part-*")}


def _more_parts(job: Job, folder: Path, before: set[str], since: float) -> float:
    """Seconds until the next part, and the job's end."""
    until(lambda: bool({path.name for path in folder.glob("part-*")} - before), "another part", job)
    seconds = time.monotonic() - since
    job.end()
    return seconds


def disk_full(lab: Lab, ray: bool = False) -> FaultRow:
    """Another program fills the disk of the runs between two checkpoints; then there is room again."""
    name = f"disk-full-{'ray' if ray else 'local'}"
    with small_disk(megabytes=24) as disk, lab.training(name, ray, runs=disk / "runs") as job:
        job.start()
        until(lambda: bool(job.complete_checkpoints()), "a checkpoint", job)
        filler = fill(disk, leave=128 << 10)
        job.end(fails=True)
        if f"the disk of {disk}" not in job.output():
            raise RuntimeError(f"the error does not name the folder:\n{job.output()}")
        filler.unlink()
        job.start()
        lost, seconds = job.goes_on(job.started)
        difference = lab.difference(job.run_dir, ray)
    return FaultRow(
        fault="the disk full while a checkpoint is written",
        where="Ray Train, DeepSpeed ZeRO-2, 2 workers" if ray else "one process (--local)",
        lost_steps=lost,
        recovery_s=seconds,
        final_difference=difference,
        note="the run ends with an error that names the folder and the remedy; seconds from the start of the same "
        "command after there was room again",
    )


def checkpoint_damaged(lab: Lab, how: str = "truncate", ray: bool = False) -> FaultRow:
    """The newest checkpoint of a killed run is damaged before the same command goes on."""
    with lab.training(f"checkpoint-{how}", ray) as job:
        job.start()
        job.until_step(lab.config.kill_at)
        job.kill()
        newest = job.complete_checkpoints()[-1]
        file = max((path for path in newest.rglob("*.pt")), key=lambda path: (path.stat().st_size, path.name))
        damage(file, how)
        job.start()
        lost, seconds = job.goes_on(job.started)
    (line,) = {line for line in job.output().splitlines() if "is damaged" in line}
    return FaultRow(
        fault={"truncate": "the newest checkpoint truncated", "flip": "one bit of the newest checkpoint flipped"}[how],
        where="Ray Train, DeepSpeed ZeRO-2, 2 workers" if ray else "one process (--local)",
        lost_steps=lost,
        recovery_s=seconds,
        final_difference=lab.difference(job.run_dir, ray),
        note=f'the one before is used, and it is said: "{line.partition("is damaged (")[2].partition(")")[0]}"',
    )


def tracking_away(lab: Lab, away_s: float | None = None) -> FaultRow:
    """The MLflow server is killed and comes back while a run trains."""
    import mlflow

    from idc.training.loop import read_log

    away_s = lab.config.away_s if away_s is None else away_s
    with TrackingServer(lab.folder / "tracking") as server:
        tracking = {"enabled": True, "uri": server.uri}
        with lab.training("tracking-away", ray=False, tracking=tracking) as job:
            job.start()
            job.until_step(lab.config.checkpoint_every)
            server.kill()
            back = time.monotonic() + away_s
            until(lambda: time.monotonic() > back or job.process.poll() is not None, "the end of the outage")
            went_on = job.step()
            server.start()
            job.end()
        server.kill()
    client = mlflow.MlflowClient(tracking_uri=server.database)
    experiment = client.get_experiment_by_name("idc")
    assert experiment is not None
    (run,) = client.search_runs([experiment.experiment_id])
    curves = {name: client.get_metric_history(run.info.run_id, name) for name in run.data.metrics}
    tracked = {(name, point.step) for name, points in curves.items() for point in points}
    expected = [
        (name.replace("*", ""), line["step"])  # as MLflow has it
        for line in read_log(job.run_dir / "log.jsonl")
        for name in line.keys() - {"step"}
    ]
    missing = len(set(expected) - tracked)
    if run.info.run_name != "tracking-away":
        raise RuntimeError(f"MLflow has the run as {run.info.run_name!r}")
    return FaultRow(
        fault=f"the tracking server away for {away_s:.0f} s",
        where="MLflow server, one process (--local)",
        lost_steps=f"0 steps, {missing} of {len(expected)} points",
        recovery_s=f"the run never stopped, and was at step {went_on} when the server came back",
        final_difference=lab.difference(job.run_dir, ray=False),
        note=f"the run's status in MLflow: {run.info.status}",
    )


def tracking_away_at_start(lab: Lab) -> FaultRow:
    """A run is started while its MLflow server is away."""
    server = TrackingServer(lab.folder / "no-tracking")
    with lab.training("tracking-none", ray=False, tracking={"enabled": True, "uri": server.uri}) as job:
        job.start()
        job.end(fails=True)
        seconds = time.monotonic() - job.started
    if "train.tracking.uri: the MLflow server at" not in job.output():
        raise RuntimeError(f"the error does not name the setting:\n{job.output()}")
    return FaultRow(
        fault="the tracking server away when a run starts",
        where="MLflow server, one process (--local)",
        lost_steps="nothing was begun",
        recovery_s=seconds,
        final_difference=None,
        note="the command ends after that time with an error that names train.tracking.uri, the cause and the remedies",
    )


FAULTS: dict[str, Callable[[Lab], FaultRow]] = {
    "worker_killed": worker_killed,
    "driver_killed": driver_killed,
    "data_actor_killed": data_actor_killed,
    "data_driver_killed": data_driver_killed,
    "disk_full": disk_full,
    "disk_full_ray": lambda lab: disk_full(lab, ray=True),
    "checkpoint_truncated": checkpoint_damaged,
    "checkpoint_flipped_ray": lambda lab: checkpoint_damaged(lab, "flip", ray=True),
    "tracking_away": tracking_away,
    "tracking_away_at_start": tracking_away_at_start,
}
