"""The object store of a run refuses for a while in the middle of the training: nothing is lost.

The row of the fault table: ``python -m tests.faults.test_object_store 60``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

from cluster.train import launch
from idc.data.files import locate
from idc.data.remote_copies import local_folder
from idc.training.config import TrainConfig
from tests.invariants.harness import Run, largest_difference
from tests.object_store import store

ENTRY = "tests.training.toy:entry"
TRAIN: dict[str, Any] = {
    "steps": 24,
    "batch_size": 8,
    "checkpoint_every": 5,
    "eval_every": 6,
    "log_every": 4,
    "tracking": {"enabled": False},
}


def refused_for(seconds: float, folder: Path) -> dict[str, Any]:
    """A run in a process of its own, whose store refuses connections, and cuts those there are, from step 13 on; a row
    of the fault table, with the run's output as ``output``.

    Args:
        seconds: how long it refuses after the run has noticed.
        folder: an empty one.
    """
    train = TrainConfig.model_validate(TRAIN)
    undisturbed = launch(ENTRY, {"dropout": 0.2}, train, folder / "undisturbed", local=True)
    fifo = folder / "fifo"
    os.mkfifo(fifo)
    payload = {"dropout": 0.2, "kill_step": 13, "kill_marker": str(fifo)}
    script = (
        "from tests.faults.test_object_store import ENTRY, TRAIN, TrainConfig, launch\n"
        f"launch(ENTRY, {payload!r}, TrainConfig.model_validate(TRAIN), 's3://idc/runs/refused', local=True)"
    )
    lines: list[str] = []
    back = noticed = 0.0
    with store() as s3:
        with subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.PIPE, text=True) as process:
            with fifo.open("w"):  # waits for step 13
                s3.refuse()
            assert process.stderr is not None
            for line in process.stderr:
                lines.append(line)
                if "does not answer" in line:
                    time.sleep(seconds)  # the length of the fault
                    s3.answer()
                    back = time.monotonic()
                if "answers again" in line:
                    noticed = time.monotonic()
        assert process.returncode == 0, "".join(lines)
        result = json.loads((locate("s3://idc/runs/refused") / "result.json").read())
        found = Run(local_folder("s3://idc/runs/refused"))
    plain = Run(folder / "undisturbed")
    difference = max(
        largest_difference(found.state, plain.state),
        *(abs(result["metrics"][name] - value) for name, value in undisturbed["metrics"].items()),
    )
    return {
        "fault": f"object store refusing for {seconds:g} s",
        "where": "1 process, runs folder on S3",
        "lost_steps": 0 if not any("resumed" in line for line in lines) else None,
        "recovery_s": round(noticed - back, 1),
        "final_difference": difference,
        "note": "from when the store answers again; the run waits at its next checkpoint",
        "command": f"python -m tests.faults.test_object_store {seconds:g}",
        "output": "".join(lines),
    }


def test_a_store_that_refuses_for_a_while_costs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IDC_CACHE", str(tmp_path / "cache"))
    row = refused_for(0, tmp_path)
    assert row["lost_steps"] == 0
    assert row["final_difference"] == 0
    assert row["output"].count("does not answer, trying for 600 s") == 1
    assert row["output"].count("answers again after") == 1


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        os.environ["IDC_CACHE"] = f"{made}/cache"
        row = refused_for(float(sys.argv[1]), Path(made))
    print(row.pop("output"), file=sys.stderr)
    print(json.dumps(row))
