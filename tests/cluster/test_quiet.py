"""What a command on Ray prints."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from idc.util import logs
from tests.systems.procap.world import ENCODER, World

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
NEXT = r"next: python (\S*jobs/\w+\.py|-m serve\.app) .*"
TRACKED = r"tracked in MLflow: mlflow ui --backend-store-uri sqlite:///.*/mlflow.db, then http://127.0.0.1:5000/#/.*"
PROGRESS = r"(\w+: )?(step|chunk|pair|row) \d+/\d+  .*s/\w+  \d+:\d\d left"
OURS = [PROGRESS, TRACKED, r"quiet: 6 steps, .* s each, best at 6; validation .*; artifact .*", NEXT]
"""Its lines as regular expressions."""
FOREIGN = re.compile(r"pid=|Traceback|Warning|WARNING|ERROR|INFO|ray::|gloo|[Dd]eep[Ss]peed|\.(py|cc|cpp):\d+|\x1b")
"""What none of our lines has."""


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
