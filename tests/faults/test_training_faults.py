"""Faults injected into the real commands, in processes of their own. The table in BENCHMARKS.md is of these faults."""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from idc.config import load
from idc.data.pipeline import run_local
from idc.data.rendered.config import RenderJob
from idc.data.rendered.render import open_rendering
from idc.training.loop import read_log
from tests.faults.injection import TrackingServer, Training, until
from tests.systems.twincap.tiny import MODEL

pytestmark = [pytest.mark.slow, pytest.mark.ray]
STEPS, CHECKPOINT_EVERY, DISTURBED_AT = 30, 5, 12
RENDER = {
    "num_scenes": 12, "min_objects": 2, "max_objects": 3, "jitter": "slight", "width": 32, "height": 32,
    "samples_per_pixel": 4, "min_visible_pixels": 8, "val_share": 0.17, "test_share": 0.17,
}  # fmt: skip


class Lab:
    """Rendered pairs, and runs of a tiny TwinCap on them."""

    def __init__(self, folder: Path, temp: str):
        self.folder, self.pairs = folder, str(folder / "pairs")
        self.cluster = {
            "num_cpus": 4, "num_gpus": 0, "object_store_mb": 100, "auth": "disabled", "temp_dir": temp,
        }  # fmt: skip
        job = load(RenderJob, None, {"out": self.pairs, "render": RENDER, "chunk_size": 12})
        run_local(*open_rendering(job), progress=False)

    def training(self, name: str, ray: bool, **train: Any) -> Training:
        """A run on Ray with two workers and ZeRO-2, or in one process."""
        runs = self.folder / "runs"
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
        """The largest absolute difference of any weight or metric from an undisturbed run."""
        from safetensors.torch import load_file

        with self.training("undisturbed", ray) as job:
            job.start()
            job.end()
        folders = (run_dir, job.run_dir)
        states = [load_file(folder / "artifact" / "model.safetensors") for folder in folders]
        metrics = [json.loads((folder / "result.json").read_text())["metrics"] for folder in folders]
        assert states[0].keys() == states[1].keys()
        assert metrics[0].keys() == metrics[1].keys()
        weights = (float((states[0][key].float() - states[1][key].float()).abs().max()) for key in states[0])
        return max(*weights, *(abs(metrics[0][key] - metrics[1][key]) for key in metrics[0]))


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    temp = tempfile.mkdtemp(prefix="ray-", dir="/tmp")
    yield Lab(tmp_path, temp)
    shutil.rmtree(temp, ignore_errors=True)


def test_the_driver_killed_goes_on_by_the_same_command(lab: Lab) -> None:
    with lab.training("driver-killed", ray=True) as job:
        job.start()
        job.until_step(DISTURBED_AT)
        job.kill()
        job.start()
        assert 0 < job.goes_on() <= CHECKPOINT_EVERY
    assert lab.difference(job.run_dir, ray=True) < 1e-5


def test_a_run_goes_on_while_the_tracking_server_is_away_and_all_metrics_arrive(lab: Lab) -> None:
    import mlflow

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
