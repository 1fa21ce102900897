"""What commands on Ray print: in the plain form every line is ours, with IDC_LOG=json every line is a JSON object."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from idc import logs
from tests.systems.procap.world import ENCODER, World

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
NEXT = r"next: (python jobs/\w+\.py|make serve) .*"
TRACKED = r"tracked in MLflow: mlflow ui --backend-store-uri sqlite:///.*/mlflow.db, then http://127.0.0.1:5000/#/.*"
PROGRESS = r"(\w+: )?(step|chunk|pair|row) \d+/\d+  .*s/\w+  \d+:\d\d left"
OURS = {
    "pretrain_procap": [PROGRESS, TRACKED, r"quiet: 6 steps, .* s each, best at 6; validation .*; artifact .*", NEXT],
}
"""Job -> its lines as regular expressions."""
FOREIGN = re.compile(r"pid=|Traceback|Warning|WARNING|ERROR|INFO|ray::|gloo|[Dd]eep[Ss]peed|\.(py|cc|cpp):\d+|\x1b")
"""What none of our lines has."""


def command(name: str, folder: Path, *settings: str, form: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run a job as a user does, on a local Ray with its own authentication; it must end well."""
    hidden = (logs.VARIABLE, "RAY_AUTH_MODE", "OMP_NUM_THREADS")
    environment = {key: value for key, value in os.environ.items() if key not in hidden}
    if form is not None:
        environment[logs.VARIABLE] = form
    script = str(ROOT / "jobs" / f"{name}.py")
    done = subprocess.run(
        [sys.executable, script, *settings], capture_output=True, text=True, cwd=folder, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr
    return done


def unknown(name: str, done: subprocess.CompletedProcess[str]) -> list[str]:
    """The lines that are neither the job's own nor the one that Ray's core writes of the actors of a data job."""
    lines = [*done.stdout.splitlines(), *done.stderr.splitlines()]
    return [
        line for line in lines
        if FOREIGN.search(line) or not any(re.fullmatch(pattern, line) for pattern in OURS[name])
        if not re.search(r"core_worker\.cc:\d+: Actor with class name: .* has constructor arguments", line)
    ]  # fmt: skip


def train_settings(folder: Path, world: World) -> list[str]:
    """Of a training by two workers with DeepSpeed."""
    settings = {
        "name": "quiet", "runs": "runs", "procedures": world.procedures, "encoder": ENCODER,
        "optim": {"lr": 1e-3, "warmup_steps": 2},
        "train": {"steps": 6, "epochs": None, "batch_size": 4, "log_every": 2, "num_workers": 2, "seed": 5,
                  "eval_every": 3, "checkpoint_every": 3, "engine": "deepspeed", "zero_stage": 2},
    }  # fmt: skip
    (folder / "quiet.yaml").write_text(yaml.safe_dump(settings))
    return ["--config", "quiet.yaml"]


def test_a_training_by_two_workers(world: World, tmp_path: Path) -> None:
    done = command("pretrain_procap", tmp_path, *train_settings(tmp_path, world))
    assert unknown("pretrain_procap", done) == []
    assert re.search(PROGRESS, done.stderr), "the lines of workers arrive"


def test_a_training_by_two_workers_in_json(world: World, tmp_path: Path) -> None:
    done = command("pretrain_procap", tmp_path, *train_settings(tmp_path, world), form="json")
    out, err = ([json.loads(line) for line in text.splitlines()] for text in (done.stdout, done.stderr))
    for entry in (*out, *err):
        assert entry.keys() >= {"time", "level", "event", "node", "pid"}, entry
        assert entry["level"] in ("info", "warning", "error"), entry
    result, following = out
    assert (result["event"], result["job"]) == ("output", "pretrain_procap")
    assert result["message"].startswith("quiet: 6 steps")
    assert following["message"].startswith("next: python jobs/")
    steps = [entry for entry in err if entry["event"] == "step"]
    assert steps, "the lines of workers arrive"
    assert [entry["step"] for entry in steps] == [2, 3, 4, 6][: len(steps)], "Ray may drop the last ones at its end"
    assert {(entry["run"], entry["rank"], entry["steps"]) for entry in steps} == {("quiet", 0, 6)}
    assert all(entry["pid"] != out[0]["pid"] for entry in steps), "a worker's"
    assert not [entry for entry in err if entry["event"] == "output"], "nothing but our events"
