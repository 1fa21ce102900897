"""Faults injected into the real commands, in processes of their own. The table in BENCHMARKS.md is of these faults."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

from idc.config import load
from idc.data.pipeline import run_local
from idc.data.rendered.config import RenderJob
from idc.data.store import iter_rows
from tests.faults.injection import Job, TrackingServer, Training, until
from tests.systems.twincap.tiny import MODEL

pytestmark = [pytest.mark.slow, pytest.mark.ray]
STEPS, CHECKPOINT_EVERY, DISTURBED_AT = 30, 5, 12
CHUNKS = 24
"""Of a data build, of two scenes each."""


class Lab:
    """Rendered pairs, jobs on them, and their undisturbed runs, which are made when first needed."""

    def __init__(self, folder: Path):
        self.folder = folder
        self._temp = f"/tmp/idc-faults-{os.getpid()}"
        self.cluster = {
            "num_cpus": 4,
            "num_gpus": 0,
            "object_store_mb": 100,
            "auth": "disabled",
            "temp_dir": self._temp,
        }

    def close(self) -> None:
        shutil.rmtree(self._temp, ignore_errors=True)

    def rendered(self, name: str, scenes: int, chunk_size: int) -> str:
        """Pairs made without Ray."""
        from idc.data.rendered.render import open_rendering

        out = str(self.folder / name)
        job = load(RenderJob, None, {"out": out, **scenes_of(scenes), "chunk_size": chunk_size})
        run_local(*open_rendering(job), progress=False)
        return out

    @cached_property
    def pairs(self) -> str:
        return self.rendered("pairs", 12, 12)

    def training(self, name: str, ray: bool, runs: Path | None = None, **train: Any) -> Training:
        """A run of a tiny TwinCap: on Ray with two workers and ZeRO-2, else in one process."""
        runs = runs or self.folder / "runs"
        settings: dict[str, Any] = {
            "name": name, "runs": str(runs), "pairs": self.pairs, "model": MODEL, "optim": {"lr": 3e-3},
            "train": {
                "steps": STEPS, "epochs": None, "batch_size": 4, "log_every": 1, "checkpoint_every": CHECKPOINT_EVERY,
                "keep_best": {"metric": "CIDEr"}, "tracking": {"enabled": False},
                **({"num_workers": 2, "engine": "deepspeed", "zero_stage": 2} if ray else {}), **train,
            },
            **({"cluster": self.cluster} if ray else {}),
        }  # fmt: skip
        return Training("train_twincap.py", self.folder / name, runs / name, settings, *([] if ray else ["--local"]))

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
        assert states[0].keys() == states[1].keys()
        assert metrics[0].keys() == metrics[1].keys()
        weights = (float((states[0][key].float() - states[1][key].float()).abs().max()) for key in states[0])
        return max(*weights, *(abs(metrics[0][key] - metrics[1][key]) for key in metrics[0]))

    def build(self, name: str) -> Job:
        """A data job on Ray: renders ``CHUNKS`` of two scenes."""
        settings = {"out": str(self.folder / name), **scenes_of(2 * CHUNKS), "chunk_size": 2, "workers": 2}
        return Job("render.py", self.folder / f"{name}-job", {**settings, "cluster": self.cluster})

    @cached_property
    def undisturbed_build(self) -> list[dict[str, Any]]:
        return list(iter_rows(self.rendered("undisturbed-build", 2 * CHUNKS, 2)))


def scenes_of(number: int) -> dict[str, Any]:
    size = {"width": 32, "height": 32, "samples_per_pixel": 4, "min_visible_pixels": 8}
    shares = {"val_share": 0.17, "test_share": 0.17}
    return {"render": {"num_scenes": number, "min_objects": 2, "max_objects": 3, "jitter": "slight", **size, **shares}}


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    made = Lab(tmp_path_factory.mktemp("lab"))
    yield made
    made.close()


# -- trainings -----------------------------------------------------------------------------------------------------


def check(lab: Lab, job: Training, ray: bool, intervals: int = 1) -> None:
    """The run goes on, loses at most that many checkpoint intervals, and ends as if undisturbed."""
    lost = job.goes_on()
    assert 0 < lost <= intervals * CHECKPOINT_EVERY
    assert lab.difference(job.run_dir, ray) < 1e-5


def test_a_worker_killed_is_restarted_by_ray(lab: Lab) -> None:
    with lab.training("worker-killed", ray=True) as job:
        job.start()
        job.until_step(DISTURBED_AT)
        job.workers("RayTrainWorker")[-1].kill()
        check(lab, job, ray=True)


def test_the_driver_killed_goes_on_by_the_same_command(lab: Lab) -> None:
    with lab.training("driver-killed", ray=True) as job:
        job.start()
        job.until_step(DISTURBED_AT)
        job.kill()
        job.start()
        check(lab, job, ray=True)


def test_a_run_goes_on_while_the_tracking_server_is_away_and_all_metrics_arrive(lab: Lab) -> None:
    import mlflow

    from idc.training.loop import read_log

    with TrackingServer(lab.folder / "tracking") as server:
        tracking = {"enabled": True, "uri": server.uri}
        with lab.training("tracking-away", ray=False, tracking=tracking) as job:
            job.start()
            job.until_step(CHECKPOINT_EVERY)
            server.kill()
            back = time.monotonic() + 3.0  # the length of the fault
            until(lambda: time.monotonic() > back or job.process.poll() is not None, "the end of the outage")
            server.start()
            job.end()
        server.kill()
    client = mlflow.MlflowClient(tracking_uri=server.database)
    experiment = client.get_experiment_by_name("idc")
    assert experiment is not None
    (run,) = client.search_runs([experiment.experiment_id])
    assert (run.info.run_name, run.info.status) == ("tracking-away", "FINISHED")
    curves = {name: client.get_metric_history(run.info.run_id, name) for name in run.data.metrics}
    tracked = {(name, point.step) for name, points in curves.items() for point in points}
    lines = read_log(job.run_dir / "log.jsonl")
    logged = {(name.replace("*", ""), line["step"]) for line in lines for name in line.keys() - {"step"}}  # its names
    assert logged <= tracked
    assert lab.difference(job.run_dir, ray=False) == 0


# -- data builds ---------------------------------------------------------------------------------------------------


def parts_of(folder: Path) -> set[str]:
    return {path.name for path in folder.glob("part-*")}


@pytest.mark.parametrize("killed", ["driver", "actor"])
def test_a_disturbed_build_loses_no_row_and_makes_none_twice(lab: Lab, killed: str) -> None:
    name = f"build-{killed}-killed"
    with lab.build(name) as job:
        job.start()
        until(lambda: len(parts_of(lab.folder / name)) >= 2, "two parts", job)
        if killed == "driver":
            job.kill()
            job.start()
        else:
            until(lambda: len(job.workers("MapWorker")) == 2, "two actors", job)
            job.workers("MapWorker")[-1].kill()
        job.end()
    rows = list(iter_rows(str(lab.folder / name)))
    assert len({row["pair_id"] for row in rows}) == len(rows) == 4 * CHUNKS
    assert {row["pair_id"]: row for row in rows} == {row["pair_id"]: row for row in lab.undisturbed_build}
