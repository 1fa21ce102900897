"""What the main commands print: every line is ours in the plain form, and a JSON object with IDC_LOG=json."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from idc import logs
from tests.serve.command import serving
from tests.sweep.small import small_sweep, write_yaml
from tests.systems.procap.world import ENCODER, World

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]

NEXT = r"next: (python jobs/\w+\.py|make serve) .*"
TRACKED = r"tracked in MLflow: mlflow ui --backend-store-uri sqlite:///.*/mlflow.db, then http://127.0.0.1:5000/#/.*"
PROGRESS = r"(\w+: )?(step|chunk|pair|row) \d+/\d+  .*s/\w+  \d+:\d\d left"
OURS = {
    "pretrain_procap": [PROGRESS, TRACKED, r"quiet: 6 steps, .* s each, best at 6; validation .*; artifact .*",
                        NEXT],
    "robustness": [PROGRESS, r"robustness: fog of severity 5 on .*", r"fog: 24 rows .*, rejected: 0 \{\}",
                NEXT],
    "sweep": [
        PROGRESS, TRACKED, r"scoring \d+ captions",
        r"small: 2 trials, 0 of them done before",
        r"begun: \d layers", r"trial \d of 2: \d layers: CIDEr \d+\.\d",
        r"\|.*\|", r"- Cost: .*", r"",
        r"/.*/report.html", NEXT,
    ],
    "evaluate": [r".*"],
    "caption": [PROGRESS, r"captions: 24 rows, 24 with a caption", r"24 rows in \d+ s .*", r"page: .*", NEXT],
}  # fmt: skip
"""Job -> its lines as regular expressions."""
FOREIGN = re.compile(r"pid=|Traceback|Warning|WARNING|ERROR|INFO|ray::|gloo|[Dd]eep[Ss]peed|\.(py|cc|cpp):\d+|\x1b")
"""What none of our lines has."""


def command(name: str, folder: Path, *settings: str, form: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run a job as a user does, on a local Ray with its own authentication."""
    hidden = (logs.VARIABLE, "RAY_AUTH_MODE", "OMP_NUM_THREADS")
    environment = {key: value for key, value in os.environ.items() if key not in hidden}
    if form is not None:
        environment[logs.VARIABLE] = form
    return subprocess.run(
        [sys.executable, str(ROOT / "jobs" / f"{name}.py"), *settings],
        capture_output=True, text=True, cwd=folder, env=environment, check=False,
    )  # fmt: skip


def unknown(name: str, done: subprocess.CompletedProcess[str]) -> list[str]:
    """The lines that are not the job's own."""
    lines = [*done.stdout.splitlines(), *done.stderr.splitlines()]
    return [
        line for line in lines
        if FOREIGN.search(line) or not any(re.fullmatch(one, line) for one in OURS[name])
    ]  # fmt: skip


def train_settings(folder: Path, world: World, name: str, **train: Any) -> list[str]:
    settings = {
        "name": name, "runs": "runs", "procedures": world.procedures, "encoder": ENCODER,
        "optim": {"lr": 1e-3, "warmup_steps": 2},
        "train": {"steps": 6, "epochs": None, "batch_size": 4, "log_every": 2, "num_workers": 2, "seed": 5,
                  "eval_every": 3, "checkpoint_every": 3, **train},
    }  # fmt: skip
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(settings))
    return ["--config", str(path)]


def test_a_training_by_two_workers_with_deepspeed(world: World, tmp_path: Path) -> None:
    settings = train_settings(tmp_path, world, "quiet", engine="deepspeed", zero_stage=2)
    done = command("pretrain_procap", tmp_path, *settings)
    assert done.returncode == 0, done.stderr
    assert unknown("pretrain_procap", done) == []


def test_a_data_build(world: World, tmp_path: Path) -> None:
    done = command("robustness", tmp_path, f"pairs={world.pairs}", "out=fog", "kind=fog", "severity=5")
    assert done.returncode == 0, done.stderr
    assert unknown("robustness", done) == []


def test_a_sweep(world: World, tmp_path: Path) -> None:
    rows = [
        {"label": f"{n} layers", "settings": {"explicit_modeling": False, "finetune.decoder.layers": n}} for n in (1, 2)
    ]
    trials = {"concurrent": 2, "cpus": 0.5}
    job = small_sweep(world, tmp_path / "runs", rows=rows, trials=trials, tracking={"enabled": True})
    done = command("sweep", tmp_path, "--config", write_yaml(tmp_path / "sweep.yaml", job))
    assert done.returncode == 0, done.stderr
    assert unknown("sweep", done) == []


def test_an_evaluation_and_captions(world: World, captioner_artifact: Path, tmp_path: Path) -> None:
    done = command(
        "evaluate", tmp_path, f"artifact={captioner_artifact}", f"pairs={world.pairs}", "out=scores", "spice=false",
        "metrics=[CIDEr]", "constant_candidates=0", "nearest_train_pairs=0", "actors=2",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert unknown("evaluate", done) == []
    done = command(
        "caption", tmp_path, "--input", world.pairs, "--out", "captions", "--artifact", str(captioner_artifact)
    )
    assert done.returncode == 0, done.stderr
    assert unknown("caption", done) == []


KEYS = {"time", "level", "event", "node", "pid"}


def entries(text: str) -> list[dict[str, Any]]:
    """Every line is an entry with the keys of all."""
    found = [json.loads(line) for line in text.splitlines()]
    for entry in found:
        assert entry.keys() >= KEYS, entry
        assert entry["level"] in ("info", "warning", "error"), entry
    return found


def test_a_training_by_two_workers_in_json(world: World, tmp_path: Path) -> None:
    done = command("pretrain_procap", tmp_path, *train_settings(tmp_path, world, "loud"), form="json")
    assert done.returncode == 0, done.stderr
    out, err = entries(done.stdout), entries(done.stderr)
    result, following = out
    assert following["message"].startswith("next: python jobs/")
    assert (result["event"], result["job"]) == ("output", "pretrain_procap")
    assert result["message"].startswith("loud: 6 steps")
    steps = [entry for entry in err if entry["event"] == "step"]
    assert steps, "the lines of workers arrive"
    assert [entry["step"] for entry in steps] == [2, 3, 4, 6][: len(steps)], "Ray may drop the last ones at its end"
    assert {(entry["run"], entry["rank"], entry["steps"]) for entry in steps} == {("loud", 0, 6)}
    assert all(entry["pid"] != out[0]["pid"] for entry in steps), "a worker's"
    assert {entry["step"] for entry in err if entry["event"] == "checkpoint"} <= {3, 6}
    assert not [entry for entry in err if entry["event"] == "output"], "nothing but our events"


def test_a_served_request_in_json(
    world: World, captioner_artifact: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(logs.VARIABLE, "json")
    with serving(tmp_path, f"models.demo={captioner_artifact}") as served:
        with served.client() as client:
            answer = client.get("/v1/nothing", headers={"X-Request-ID": "quiet-1"})
        assert answer.status_code == 404
    found = entries(served.log.read_text(encoding="utf-8"))
    [request] = [entry for entry in found if entry.get("request_id") == "quiet-1"]
    assert (request["event"], request["status"], request["level"]) == ("request", 404, "info")
    assert {entry["event"] for entry in found} <= {"command", "request", "output", "model", "refused"}
