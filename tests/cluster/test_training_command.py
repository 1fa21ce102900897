"""What a training command reads, from the check of its settings to its artifact, and what it prints on Ray."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import yaml

from idc.config import ConfigModel
from idc.data import manifest
from idc.data.files import Location
from idc.data.schema import pair_arrow_schema
from idc.data.store import MANIFEST, DatasetFolder, iter_rows, read_manifest
from idc.util import logs
from tests.systems.procap.world import ENCODER, World
from tests.systems.twincap.tiny import tiny_job


@pytest.mark.parametrize("command", ["train_twincap", "finetune_procap"])
def test_a_training_reads_each_manifest_once(
    command: str, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job: ConfigModel = tiny_job(world.pairs) if command == "train_twincap" else world.finetune()
    settings = tmp_path / "job.yaml"
    settings.write_text(yaml.safe_dump(job.model_dump(mode="json", exclude_unset=True)), encoding="utf-8")
    reads: Counter[str] = Counter()
    questions: Counter[str] = Counter()
    read, answered = Location.read, manifest.retry_or_user_error

    def counted_read(file: Location, max_bytes: int | None = None) -> bytes:
        reads[file.text] += file.name == MANIFEST
        return read(file, max_bytes)

    def counted_answer(operation: object, what: str) -> object:
        questions[what] += 1
        return answered(operation, what)  # type: ignore[arg-type]

    monkeypatch.setattr(Location, "read", counted_read)
    monkeypatch.setattr(manifest, "retry_or_user_error", counted_answer)
    monkeypatch.setattr("sys.argv", [command, "--local", "--config", str(settings), f"runs={tmp_path}", "name=run"])
    importlib.import_module(f"jobs.{command}").main()
    assert (tmp_path / "run" / "artifact").is_dir()
    counts = {name: count for name, count in reads.items() if count}
    source = world.pairs if command == "train_twincap" else world.procedures
    assert counts[f"{source}/{MANIFEST}"] == 1
    assert set(counts.values()) == {1}
    assert set(questions.values()) == {1}  # object storage is asked once whether the folder is there


def test_a_folder_that_is_built_again_is_read_again(world: World, tmp_path: Path) -> None:
    rows, path = list(iter_rows(world.pairs)), tmp_path / "pairs"
    with manifest.manifests_read_once():
        for count in (2, 3):
            settings = {"kind": "pairs", "schema": pair_arrow_schema(), "config": {}, "num_chunks": 1}
            folder = DatasetFolder.open_for_build(path, fingerprint=f"{count}", overwrite=True, **settings)
            folder.write_chunk(0, rows[:count])
            folder.finish()
            assert read_manifest(path).num_rows == count
        (path / MANIFEST).unlink()
        assert read_manifest(path).num_rows == 3  # not read again
    with pytest.raises(ValueError, match="has no manifest"):
        read_manifest(path)


ROOT = Path(__file__).parents[2]
NEXT = r"next: (python jobs/\w+\.py|make serve) .*"
TRACKED = r"tracked in MLflow: mlflow ui --backend-store-uri sqlite:///.*/mlflow.db, then http://127.0.0.1:5000/#/.*"
PROGRESS = r"(\w+: )?(step|chunk|pair|row) \d+/\d+  .*s/\w+  \d+:\d\d left"
OURS = [PROGRESS, TRACKED, r"quiet: 6 steps, .* s each, best at 6; validation .*; artifact .*", NEXT]
"""Its lines as regular expressions."""
FOREIGN = re.compile(r"pid=|Traceback|Warning|WARNING|ERROR|INFO|ray::|gloo|[Dd]eep[Ss]peed|\.(py|cc|cpp):\d+|\x1b")
"""What none of our lines has."""


@pytest.mark.slow
def test_every_line_of_a_training_by_two_workers_is_ours(world: World, tmp_path: Path) -> None:
    """As a user runs it, on a local Ray with its own authentication, with DeepSpeed."""
    settings = {
        "name": "quiet", "runs": "runs", "procedures": world.procedures, "encoder": ENCODER,
        "optim": {"lr": 1e-3, "warmup_steps": 2},
        "train": {"steps": 6, "epochs": None, "batch_size": 4, "log_every": 2, "num_workers": 2, "seed": 5,
                  "eval_every": 3, "checkpoint_every": 3, "engine": "deepspeed", "zero_stage": 2},
    }  # fmt: skip
    (tmp_path / "quiet.yaml").write_text(yaml.safe_dump(settings))
    hidden = (logs.VARIABLE, "RAY_AUTH_MODE", "OMP_NUM_THREADS")
    done = subprocess.run(
        [sys.executable, str(ROOT / "jobs" / "pretrain_procap.py"), "--config", "quiet.yaml"],
        env={key: value for key, value in os.environ.items() if key not in hidden},
        capture_output=True, text=True, cwd=tmp_path, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = [*done.stdout.splitlines(), *done.stderr.splitlines()]
    assert not [line for line in lines if FOREIGN.search(line) or not any(re.fullmatch(ours, line) for ours in OURS)]
    assert re.search(PROGRESS, done.stderr), "the lines of workers arrive"
