from __future__ import annotations

import json
import re
import shlex
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cluster.tracking import RUN_TAG, MlflowTracker
from cluster.train import TrainingRun, is_out_of_memory, launch, out_of_memory_advice
from idc.training.config import TrackingConfig, TrainConfig
from tests.conftest import Command
from tests.folders import read_log
from tests.invariants.harness import Run, largest_difference, run_cases
from tests.training import toy

ENTRY = "tests.training.toy:entry"
TRAIN: dict[str, Any] = {**toy.TRAIN, "max_failures": 2}
UNTRACKED = {**TRAIN, "tracking": {"enabled": False}}


def start(run_dir: Path, train: dict[str, Any], payload: dict[str, Any] | None = None, **kwargs: Any) -> dict[str, Any]:
    run = TrainingRun.in_folder(ENTRY, payload or {}, TrainConfig.model_validate(train), run_dir)
    return launch(run, **kwargs)


@pytest.mark.ray
def test_a_worker_killed_in_the_middle_changes_nothing(ray_session: None, tmp_path: Path) -> None:
    """Two workers, ZeRO-2, SIGKILL of rank 1 in step 13; against the same two ranks without Ray and undisturbed."""
    train = {**TRAIN, "num_workers": 2, "engine": "deepspeed", "zero_stage": 2}
    payload = {"dropout": 0.2, "kill_step": 13, "kill_rank": 1, "kill_marker": str(tmp_path / "killed")}
    result = start(tmp_path / "runs" / "on_ray", train, payload)
    assert (tmp_path / "killed").exists()
    assert result["steps"] == 24
    plain = run_cases(ENTRY, {"dropout": 0.2, "train": TRAIN}, {"plain": train}, tmp_path)["plain"]
    on_ray = Run(tmp_path / "runs" / "on_ray")
    assert [line["step"] for line in on_ray.log] == [4, 6, 8, 12, 16, 18, 20, 24]
    assert on_ray.losses == pytest.approx(plain.losses, rel=1e-6)
    assert largest_difference(on_ray.state, plain.state) < 1e-6
    assert result["metrics"]["loss"] == pytest.approx(plain.log[-1]["validation/loss"], rel=1e-6)
    kept = sorted(path.name for path in (on_ray.path / "checkpoints").glob("step_*"))
    assert kept == ["step_00000020", "step_00000024"]

    tracked = the_run(tmp_path / "runs", "on_ray")
    assert tracked.info.status == "FINISHED"
    assert tracked.data.metrics["loss"] == on_ray.losses[-1]

    assert start(on_ray.path, {**train, "max_failures": 0}, payload)["done_before"]
    # without Ray its checkpoint is found, and one rank takes the shards of two
    state = on_ray.state
    (on_ray.path / "result.json").unlink()
    again = start(on_ray.path, {**train, "num_workers": 1}, payload, local=True)
    assert again["steps"] == 24
    assert largest_difference(on_ray.state, state) < 1e-6


@pytest.mark.ray
@pytest.mark.slow
def test_a_run_on_ray_is_the_local_run(ray_session: None, tmp_path: Path) -> None:
    on_ray, local = (tmp_path / "runs" / name for name in ("on_ray", "local"))
    interrupt = signal.getsignal(signal.SIGINT)
    start(on_ray, UNTRACKED, {"dropout": 0.2})
    assert signal.getsignal(signal.SIGINT) is interrupt, "what Ray Train leaves would keep Ctrl-C from the driver"
    start(local, UNTRACKED, {"dropout": 0.2}, local=True)
    assert Run(on_ray).losses == pytest.approx(Run(local).losses, rel=1e-6)
    assert largest_difference(Run(on_ray).state, Run(local).state) < 1e-6


@pytest.mark.ray
def test_a_users_error_is_not_tried_again(ray_session: None, tmp_path: Path) -> None:
    attempts = tmp_path / "attempts"
    with pytest.raises(ValueError, match="the training split has no samples"):
        start(tmp_path / "run", UNTRACKED, {"size": 0, "attempts": str(attempts)})
    assert attempts.read_text() == "attempt\n"
    assert not (tmp_path / "run" / "result.json").exists()


def test_the_settings_of_a_run_are_dumped_once_and_validated_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train, calls = TrainConfig.model_validate({**UNTRACKED, "steps": 1}), list[str]()
    for name in ("model_dump", "model_validate"):
        real = getattr(TrainConfig, name)
        monkeypatch.setattr(TrainConfig, name, counted(calls, name, real))
    run = TrainingRun.in_folder(ENTRY, {}, train, tmp_path / "run")
    assert not run.is_complete(overwrite=False)
    launch(run, local=True)
    assert run.is_complete(overwrite=False)
    assert calls == ["model_dump", "model_validate"]


def counted(calls: list[str], name: str, real: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        calls.append(name)
        return real(*args, **kwargs)

    return call


def test_a_full_memory_ends_the_run_with_advice_and_is_not_tried_again(tmp_path: Path) -> None:
    attempts = tmp_path / "attempts"
    with pytest.raises(ValueError, match="out of memory on cpu") as caught:
        start(tmp_path / "run", UNTRACKED, {"huge": True, "attempts": str(attempts)}, local=True)
    assert "raise train.grad_accumulation, now 1 (micro-batches of 8 samples per worker)" in str(caught.value)
    assert "train.activation_checkpointing=true" in str(caught.value)
    assert attempts.read_text() == "attempt\n"


def cuda() -> None:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")


@pytest.mark.parametrize(
    ("fail", "expected"),
    [
        (lambda: torch.empty(1 << 50), True),
        (lambda: np.empty(1 << 58), True),
        (cuda, True),
        (lambda: torch.ones(2) + torch.ones(3), False),
        (lambda: {}["out of memory"], False),
    ],
)
def test_errors_of_a_full_memory_are_recognised(fail: Callable[[], Any], expected: bool) -> None:
    with pytest.raises((RuntimeError, MemoryError, LookupError)) as caught:
        fail()
    assert is_out_of_memory(caught.value) == expected


def test_the_advice_names_settings_that_are_left_to_change() -> None:
    error, left = (
        RuntimeError("CUDA out of memory"),
        ("grad_accumulation", "activation_checkpointing", "precision=bf16"),
    )
    train = TrainConfig(steps=1, batch_size=8, grad_accumulation=2, num_workers=2)
    advice = out_of_memory_advice(train, "cuda:1", error)
    assert "out of memory on cuda:1: CUDA out of memory" in advice
    assert "now 2 (micro-batches of 2 samples per worker)" in advice
    assert all(f"train.{setting}" in advice for setting in (*left, "batch_size, now 8", "zero_stage=2"))
    least = {"batch_size": 4, "activation_checkpointing": True, "precision": "bf16", "num_workers": 4}
    advice = out_of_memory_advice(TrainConfig(steps=1, **least), "cuda:1", error)
    assert not any(setting in advice for setting in left)


def the_run(runs: Path, name: str) -> Any:
    import mlflow

    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{runs / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("idc")
    found = client.search_runs([experiment.experiment_id], f"tags.`{RUN_TAG}` = '{name}'")
    assert len(found) == 1
    return found[0]


def test_a_local_run_is_tracked_in_one_mlflow_run_even_if_it_fails_first(tmp_path: Path) -> None:
    run_dir = tmp_path / "it's" / "toy run"
    payload = {"kill_step": 13, "kill_marker": str(tmp_path / "raise")}
    with pytest.raises(RuntimeError, match="killed by the test"):
        start(run_dir, TRAIN, payload, local=True)
    first = the_run(run_dir.parent, "toy run")
    assert first.info.status == "FAILED"
    result = start(run_dir, TRAIN, payload, local=True)
    second = the_run(run_dir.parent, "toy run")
    assert second.info.run_id == first.info.run_id
    assert second.info.status == "FINISHED"
    assert second.data.params["train.keep_best.metric"] == "loss"
    assert second.data.metrics["validation/loss"] == read_log(run_dir / "log.jsonl")[-1]["validation/loss"]
    artifact = run_dir.parent / "mlartifacts" / second.info.run_id / "artifacts" / "artifact"
    assert (artifact / "model.safetensors").exists()
    assert result == {**json.loads((run_dir / "result.json").read_text()), "done_before": False}


TRACKS = """
import sys, time
from pathlib import Path
import mlflow
from cluster.tracking import MlflowTracker
from idc.training.config import TrackingConfig

runs, name, other = sys.argv[1:]
(Path(runs) / f"{name}.ready").write_text("")
while not (Path(runs) / f"{other}.ready").exists():
    time.sleep(0.01)
tracker = MlflowTracker(TrackingConfig(), Path(runs) / name, name)
tracker.end(finished=True)
print(tracker.client.get_run(tracker.run_id).info.experiment_id)
"""


@pytest.mark.slow
def test_two_runs_that_start_side_by_side_make_one_database(tmp_path: Path) -> None:
    command = [sys.executable, "-c", TRACKS, str(tmp_path)]
    runs = [
        subprocess.Popen([*command, *names], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for names in (("a", "b"), ("b", "a"))
    ]
    ended = [run.communicate(timeout=120) for run in runs]
    assert [run.returncode for run in runs] == [0, 0], ended
    assert ended[0][0] == ended[1][0]


def test_a_tracker_takes_pictures_texts_and_many_metrics(tmp_path: Path) -> None:
    tracker = MlflowTracker(TrackingConfig(), tmp_path / "runs" / "x", "x")
    for step in range(20):
        tracker.metrics({"loss": float(step), "lr": 0.1, "S_m*": 0.5}, step)
    tracker.image("pairs/first", np.zeros((4, 5, 3), np.uint8), 7)
    tracker.text("captions.txt", "the cube moved")
    tracker.params({"a": 1})
    tracker.params({"a": 2, "b": "x" * 9000})
    tracker.end(finished=True)
    run = the_run(tmp_path / "runs", "x")
    history = tracker.client.get_metric_history(run.info.run_id, "loss")
    assert [(point.step, point.value) for point in history] == [(step, float(step)) for step in range(20)]
    assert run.data.metrics["S_m"] == 0.5  # MLflow takes no asterisk
    assert run.data.params["a"] == "1"
    files = tmp_path / "runs" / "mlartifacts" / run.info.run_id / "artifacts"
    assert (files / "images" / "pairs" / "first_00000007.png").exists()
    assert (files / "captions.txt").read_text() == "the cube moved"


def test_a_complete_run_is_not_done_again_and_another_is_refused(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    first = start(run_dir, UNTRACKED, {"size": 40}, local=True)
    assert not first["done_before"]
    assert start(run_dir, {**UNTRACKED, "prefetch": 0, "max_failures": 9}, {"size": 40}, local=True)["done_before"]
    with pytest.raises(ValueError, match="another config") as refused:
        start(run_dir, {**UNTRACKED, "steps": 30, "keep_best": None}, {"size": 41}, local=True)
    lines = str(refused.value).splitlines()[1:]
    assert [line.split(":")[0].strip() for line in lines] == [
        "size",
        "train.keep_best",
        "train.keep_best.metric",
        "train.keep_best.mode",
        "train.steps",
    ]
    assert "saved 24, now 30" in lines[-1]
    again = start(run_dir, {**UNTRACKED, "steps": 30}, {"size": 41}, local=True, overwrite=True)
    assert again["steps"] == 30
    assert [line["step"] for line in read_log(run_dir / "log.jsonl")][-1] == 30


def test_a_folder_that_is_no_run_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("precious")
    with pytest.raises(ValueError, match="not a training run"):
        start(tmp_path, UNTRACKED, local=True, overwrite=True)
    assert (tmp_path / "thesis.txt").exists()


def test_several_workers_need_ray(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"train.num_workers=2 needs Ray; without it \(--local\) set it to 1"):
        start(tmp_path / "run", {**UNTRACKED, "num_workers": 2}, local=True)
    assert not (tmp_path / "run").exists()


def test_the_launcher_is_light_to_import() -> None:
    code = "import sys, cluster.train; print([n for n in ('ray', 'torch', 'mlflow') if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("uri", ["./mlruns", "file:///somewhere/mlruns"])
@pytest.mark.parametrize("of_environment", [False, True])
def test_a_folder_of_mlflow_is_refused_with_its_migration_before_anything_starts(
    uri: str, of_environment: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Command
) -> None:
    """By every command that asks MLflow, from the setting as from the environment."""
    monkeypatch.delenv("MLFLOW_ALLOW_FILE_STORE", raising=False)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    if of_environment:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    settings = {} if of_environment else {"tracking": {"uri": uri}}
    folder = "mlruns" if uri.startswith(".") else "/somewhere/mlruns"
    target = f"sqlite:///{Path(folder).parent / 'mlflow.db'}"
    line = f"{uri!r} is a folder, which MLflow refuses from 3.13 on; give {target}, into which `mlflow "
    line += f"migrate-filestore --source {folder} --target {target}` moves what it holds"
    with pytest.raises(ValueError, match=re.escape(line)):
        start(tmp_path / "run", {**TRAIN, "tracking": {"enabled": True, **settings.get("tracking", {})}}, local=True)
    assert not (tmp_path / "run").exists() or not [*(tmp_path / "run").iterdir()]
    given = [] if of_environment else [f"tracking_uri={uri}"]
    for job, words in {
        "train_twincap": ["pairs=x", *(f"train.{word.replace('_', '.')}" for word in given)],
        "sweep": ["name=x", "system=twincap", *(word.replace("_", ".") for word in given)],
        "register": ["artifact=x", *given],
        "promote": given,
        "evaluate": ["artifact=models:/a/1", "pairs=x", "out=x"] if of_environment else [],
    }.items():
        if words or of_environment:
            refused = command(job, *words)
            assert refused.returncode == 2
            assert refused.stderr.count(line) == 1, refused.stderr
            assert ("MLFLOW_TRACKING_URI: " in refused.stderr) is of_environment


def test_runs_are_tracked_where_the_environment_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'elsewhere' / 'mlflow.db'}")
    start(tmp_path / "runs" / "toy", TRAIN, local=True)
    assert the_run(tmp_path / "elsewhere", "toy").info.status == "FINISHED"
    assert not (tmp_path / "runs" / "mlflow.db").exists()


def test_files_of_a_moved_mlflow_are_followed_after_its_advice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def track(folder: str, name: str = "run") -> str:
        tracker = MlflowTracker(TrackingConfig(), tmp_path / folder / name, name)
        tracker.text("note.txt", "x")
        tracker.end(finished=True)
        return "".join(capsys.readouterr())

    assert "it was moved" not in track("old")
    (tmp_path / "old").rename(tmp_path / "new")
    said = track("new")
    assert f"writes files to {tmp_path / 'old' / 'mlartifacts'}, where its folder was before it was moved" in said
    shutil.rmtree(tmp_path / "old")
    _, database, sql = shlex.split(said.partition("or run: ")[2].splitlines()[0])
    with sqlite3.connect(database) as connection:
        connection.executescript(sql)
    connection.close()
    assert "it was moved" not in track("new", "another run")
    assert not (tmp_path / "old").exists()
    assert len([*(tmp_path / "new" / "mlartifacts").rglob("note.txt")]) == 2
    assert the_run(tmp_path / "new", "run").info.artifact_uri.startswith((tmp_path / "new").as_uri())
