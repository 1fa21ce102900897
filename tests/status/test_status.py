"""What runs, how far, and what died: of real trainings, data jobs and a sweep."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from cluster.train import launch
from idc import heartbeat
from idc.atomic import write_json
from idc.data.pipeline import ChunkResult, StageSpec, run_local
from idc.status import readers
from idc.status.config import StatusJob
from idc.status.scan import find_work
from idc.status.status_table import duration, status_table
from idc.status.work import Work
from idc.sweep.progress import mark_started, write_plan
from idc.training.config import TrainConfig
from tests.data.test_pipeline import Make, Numbers, folder

ROOT = Path(__file__).parents[2]
ENTRY = "tests.training.toy:entry"
TRAIN: dict[str, Any] = {
    "steps": 40, "batch_size": 8, "log_every": 2, "checkpoint_every": 20, "eval_every": 10,
    "tracking": {"enabled": False},
}  # fmt: skip
START = (
    "import json, sys; from cluster.train import launch; from idc.training.config import TrainConfig\n"
    "train, payload = json.loads(sys.argv[2]), json.loads(sys.argv[3])\n"
    f"launch({ENTRY!r}, payload, TrainConfig.model_validate(train), sys.argv[1], local=True)"
)


def status(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-X", "importtime", str(ROOT / "jobs" / "status.py"), *arguments]
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT), "RAY_API_SERVER_ADDRESS": ""},
        check=False,
    )


def seen(run: Path, later: float = 0.0) -> Work:
    return readers.training(run, "run", 5.0, time.time() + later)


def test_a_training_that_is_killed_and_continues(tmp_path: Path) -> None:
    """The process kills itself at step 31; before that it is stopped for a moment, so that it is seen alive."""
    run = tmp_path / "runs" / "one"
    payload = {"kill_step": 31, "kill_marker": str(tmp_path / "killed")}
    arguments = [str(run), json.dumps(TRAIN), json.dumps(payload)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen([sys.executable, "-c", START, *arguments], env=environment) as process:
        while not (run / readers.RANK_0).exists():
            assert process.poll() is None
        process.send_signal(signal.SIGSTOP)
        alive = seen(run)
        stalled = seen(run, later=3600.0)
        process.send_signal(signal.SIGCONT)
        assert process.wait() == -signal.SIGKILL
    assert (alive.state, alive.pid, alive.total) == ("running", process.pid, 40)
    assert stalled.state == "stalled"
    assert "no progress for" in str(stalled.reason)

    died = seen(run)
    assert (died.state, died.reason, died.done) == ("died", f"process {process.pid} is gone", 30)
    assert died.left_s is None
    assert {"loss", "samples_per_second", "validation/loss"} <= died.metrics.keys()
    assert died.core_hours > 0

    launch(ENTRY, payload, TrainConfig.model_validate(TRAIN), run, local=True)
    done = seen(run)
    assert (done.state, done.done, done.total, done.reason) == ("done", 40, 40, None)
    assert done.core_hours > died.core_hours, "both starts count"


def test_a_training_that_failed_says_why(tmp_path: Path) -> None:
    run = tmp_path / "run"
    keep = {"keep_best": {"metric": "CIDER"}}
    with pytest.raises(ValueError, match="CIDER"):
        launch(ENTRY, {}, TrainConfig.model_validate({**TRAIN, **keep}), run, local=True)
    work = seen(run)
    assert work.state == "failed"
    assert "train.keep_best.metric='CIDER' is not measured" in str(work.reason)


def test_a_process_of_another_machine_is_gone_when_it_gives_no_sign(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with heartbeat.Heartbeat(tmp_path, "training", cores=2, gpus=1):
        sign = heartbeat.read_heartbeat(tmp_path)
    assert sign is not None
    (tmp_path / heartbeat.FILE).unlink()
    sign |= {"node": "elsewhere", "pid": 1}
    assert heartbeat.gone(sign, sign["beat"] + 30) is None
    write_json(tmp_path / heartbeat.FILE, {name: value for name, value in sign.items() if name != "ended"})
    work = seen(tmp_path, later=3600.0)
    assert work.state == "died"
    assert "no sign of life for 36" in str(work.reason)
    assert work.gpu_hours == pytest.approx(work.core_hours / 2)


def test_a_data_set_in_progress(tmp_path: Path) -> None:
    found: list[Work] = []

    def watch(result: ChunkResult) -> None:
        found.append(readers.data(tmp_path, "numbers", 5.0, time.time()))

    run_local(folder(tmp_path), Numbers(), [StageSpec(Make, batch_size=2)], watch=watch)
    assert [(work.state, work.unit, work.total, work.pid) for work in found] == [
        ("running", "chunks", 4, os.getpid())
    ] * 4
    assert [work.done for work in found] == sorted(work.done for work in found)
    assert found[-1].done == 4
    done = readers.data(tmp_path, "numbers", 5.0, time.time())
    assert (done.state, done.unit, done.done, done.metrics) == ("done", "rows", 19, {"rejected": 1})
    assert not (tmp_path / heartbeat.FILE).exists(), "a complete data set says so itself"


def test_a_sweep_in_progress(tmp_path: Path) -> None:
    sweep, store = tmp_path / "sweeps" / "table", tmp_path / "sweeps" / "steps"
    write_plan(sweep, "A table", "CIDEr", "max", 3, store, [(key, f"row {key}", [f"step-{key}"]) for key in "abc"])
    mark_started(sweep, "a", "row a", ["step-a"])
    mark_started(sweep, "b", "row b", ["step-b"])
    evaluation = store / "evaluation-a"
    write_json(evaluation / "evaluation.json", {"scores": {"CIDEr": 0.5}})
    write_json(store / "step-a.json", {"name": "step-a", "seconds": 3600.0, "cpus": 2.0, "gpus": 0.0, "result": {}})
    done = {"label": "row a", "steps": ["step-a"], "evaluation": evaluation.name}
    with heartbeat.Heartbeat(sweep, "sweep"):
        write_json(sweep / "trials" / "a.json", done)
        [work] = [work for work in find_work([str(tmp_path)], 5.0) if work.kind == "sweep"]
    assert (work.state, work.done, work.total, work.unit) == ("running", 1, 3, "trials")
    assert (work.core_hours, work.metrics) == (2.0, {"CIDEr": 0.5})
    assert work.left_s is not None


def test_the_command(tmp_path: Path) -> None:
    """Its table and its JSON; it loads neither torch nor Ray nor pyarrow."""
    for name, more in (("good", {}), ("bad", {"keep_best": {"metric": "CIDER"}})):
        train = TrainConfig.model_validate({**TRAIN, "steps": 4, **more})
        try:
            launch(ENTRY, {}, train, tmp_path / "runs" / name, local=True)
        except ValueError:
            assert name == "bad"
    told = status("core_hour=1000", cwd=tmp_path)
    head, line, reason, sums = told.stdout.splitlines()
    assert head.split()[:3] == ["state", "kind", "name"]
    assert line.split()[:5] == ["failed", "training", "bad", "2/4", "steps"]
    assert "core-h = " in line
    assert "is not measured" in reason
    assert sums == "1 failed, 1 done (done=true lists those that are done)"
    loaded = {text.rpartition("|")[2].strip().partition(".")[0] for text in told.stderr.splitlines()}
    assert not loaded & {"torch", "ray", "pyarrow", "mlflow", "numpy"}
    found = json.loads(status("--json", cwd=tmp_path).stdout)["work"]
    assert [(work["name"], work["state"]) for work in found] == [("bad", "failed"), ("good", "done")]
    assert status("runs=[nowhere]", cwd=tmp_path).returncode == 1
    assert "status: nowhere: there is no such folder" in status("runs=[nowhere]", cwd=tmp_path).stderr


def test_times_are_short() -> None:
    assert [duration(seconds) for seconds in (45, 720, 11100, 187200)] == ["45 s", "12 min", "3 h 05", "2 d 4 h"]
    work = Work("training", "x", "x", state="running", left_s=60.0)
    assert "60 s" in status_table([work], StatusJob())
