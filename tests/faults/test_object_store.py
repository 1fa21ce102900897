"""The object store of a run refuses for a while in the middle of the training: nothing is lost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cluster.train import TrainingRun, launch
from idc.data.files import locate
from idc.data.remote_copies import local_folder
from idc.training.config import TrainConfig
from tests.invariants.harness import Run, largest_difference
from tests.object_store import store
from tests.training import toy

ENTRY = "tests.training.toy:entry"
TRAIN = {**toy.TRAIN, "tracking": {"enabled": False}}


def test_training_survives_s3_outage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run in a process of its own, whose store refuses connections, and cuts those there are, from step 13 on until
    the run has noticed."""
    monkeypatch.setenv("IDC_CACHE", str(tmp_path / "cache"))
    train = TrainConfig.model_validate(TRAIN)
    undisturbed = launch(TrainingRun.in_folder(ENTRY, {"dropout": 0.2}, train, tmp_path / "plain"), local=True)
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    payload = {"dropout": 0.2, "kill_step": 13, "kill_marker": str(fifo)}
    script = (
        "from tests.faults.test_object_store import ENTRY, TRAIN, TrainConfig, TrainingRun, launch\n"
        "train = TrainConfig.model_validate(TRAIN)\n"
        f"launch(TrainingRun.in_folder(ENTRY, {payload!r}, train, 's3://idc/runs/refused'), local=True)"
    )
    lines: list[str] = []
    with store() as s3:
        with subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.PIPE, text=True) as process:
            with fifo.open("w"):  # waits for step 13
                s3.refuse()
            for line in process.stderr:
                if "does not answer" in line and not any("does not answer" in earlier for earlier in lines):
                    s3.answer()
                lines.append(line)
        output = "".join(lines)
        assert process.returncode == 0, output
        result = json.loads((locate("s3://idc/runs/refused") / "result.json").read())
        state = Run(local_folder("s3://idc/runs/refused")).state
    assert result["metrics"] == undisturbed["metrics"]
    assert largest_difference(state, Run(tmp_path / "plain").state) == 0
    assert "resumed" not in output
    interrupted = output.count("does not answer, trying for 600 s")
    assert interrupted in (1, 2), "one line per write that was on its way: the log's, the best weights'"
    assert output.count("answers again after") == interrupted
