"""The figures of a training in Prometheus, of a Ray with a dashboard."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.shell import SHELL
from tests.training import toy

WAIT_S = 120.0

_TRAINING = """
import json, sys, threading, time, urllib.request
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path
from cluster.config import ClusterConfig
from cluster.session import session
from cluster.train import launch
from idc.training.config import TrainConfig

folder = Path(sys.argv[1])
train = {"steps": 4, "batch_size": 8, "log_every": 2, "tracking": {"enabled": False}}
config = ClusterConfig(dashboard=True, num_cpus=4, num_gpus=0, object_store_mb=100, auth="disabled")
with session(config):
    import ray

    found = {}

    def scrape():
        while "ray_idc_train_validation" not in found.get("metrics", ""):
            port = ray.nodes()[0]["MetricsExportPort"]
            # Ray's agent, which names the port and answers, starts a little after Ray; it may close a first connection.
            with suppress(OSError, HTTPException):
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
                    found["metrics"] = answer.read().decode()
            time.sleep(0.2)
        (folder / "seen").touch()

    threading.Thread(target=scrape, daemon=True).start()
    payload = {"seen": str(folder / "seen")}
    launch("tests.cluster.test_train_metrics:entry", payload, TrainConfig(**train), folder / "one")
    (folder / "found.json").write_text(json.dumps(found))
"""


def entry(payload: dict[str, Any], context: Any) -> dict[str, Any]:
    """Train, and stay until the metrics were read: those of a process that has ended are gone."""
    result = toy.entry(payload, context)
    last = time.monotonic() + WAIT_S
    while not Path(payload["seen"]).exists() and time.monotonic() < last:
        time.sleep(0.1)
    return result


@pytest.mark.slow
def test_a_training_exports_its_figures(ray_session: None, tmp_path: Path) -> None:
    environment = {**SHELL, "RAY_metrics_report_interval_ms": "500"}
    command = [sys.executable, "-c", _TRAINING, str(tmp_path)]
    done = subprocess.run(command, env=environment, check=True, stderr=subprocess.PIPE, text=True)
    assert "Traceback" not in done.stderr, "none of Ray's helpers asks the other Ray of this machine"
    found = json.loads((tmp_path / "found.json").read_text())
    lines = [line for line in found["metrics"].splitlines() if line.startswith("ray_idc_train_")]
    values = {line.partition("{")[0]: float(line.rpartition(" ")[2]) for line in lines}
    assert values["ray_idc_train_step"] == values["ray_idc_train_steps"] == 4
    assert values["ray_idc_train_loss"] > 0
    assert values["ray_idc_train_samples_per_second"] > 0
    assert all('run="one"' in line for line in lines)
    assert any('metric="loss"' in line for line in lines if line.startswith("ray_idc_train_validation"))
