"""A run on Ray whose folder is on object storage: killed, and resumed from there."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from idc.data.files import locate
from idc.data.remote_copies import local_folder, sizes
from tests.invariants.harness import Run, largest_difference, run_cases
from tests.object_store import store
from tests.training import toy

ENTRY = "tests.training.toy:entry"
TRAIN: dict[str, Any] = {
    **toy.TRAIN,
    "num_workers": 2,
    "engine": "deepspeed",
    "zero_stage": 2,
    "max_failures": 1,
    "tracking": {"enabled": False},
}
SCRIPT = """
import json, sys
from cluster.config import ClusterConfig
from cluster.preflight import Requirements, check_cluster
from cluster.session import session
from cluster.train import launch
from idc.data.files import locate
from idc.training.config import TrainConfig

given = json.loads(sys.argv[1])
config = ClusterConfig(num_cpus=4, num_gpus=0, object_store_mb=200, auth="disabled", temp_dir=given["temp"])
with session(config):
    check_cluster(Requirements(out="s3://idc/ray"), config)
    train = TrainConfig.model_validate(given["train"])
    results = [launch("tests.training.toy:entry", given["payload"], train, "s3://idc/ray/run")]
    (locate("s3://idc/ray/run") / "result.json").delete()
    (locate("s3://idc/ray/run") / "checkpoints/step_00000024/complete").delete()
    for _ in range(2):
        results.append(launch("tests.training.toy:entry", given["payload"], train, "s3://idc/ray/run"))
print(json.dumps(results))
"""


@pytest.mark.slow
@pytest.mark.ray
def test_a_run_killed_on_ray_goes_on_from_object_storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two workers, ZeRO-2, SIGKILL of rank 1 in step 13; then the last checkpoint is lost, and the driver starts again;
    then it is complete. Against the same two ranks without Ray, on the disk and undisturbed."""
    monkeypatch.setenv("IDC_CACHE", str(tmp_path / "cache"))
    payload = {"dropout": 0.2, "kill_step": 13, "kill_rank": 1, "kill_marker": str(tmp_path / "killed")}
    temp = tempfile.mkdtemp(prefix="ray-", dir="/tmp")
    with store():
        given = {"train": TRAIN, "payload": payload, "temp": temp}
        ended = subprocess.run([sys.executable, "-c", SCRIPT, json.dumps(given)], capture_output=True, text=True)
        shutil.rmtree(temp, ignore_errors=True)
        assert ended.returncode == 0, ended.stderr[-4000:]
        first, again, complete = json.loads(ended.stdout.splitlines()[-1])
        found = Run(local_folder("s3://idc/ray/run"))
        names = sizes(locate("s3://idc/ray/run"), 0)
    assert (tmp_path / "killed").exists()
    assert "resumed at step 10 of 24 from " in ended.stderr
    assert "resumed at step 20 of 24 from " in ended.stderr
    assert [first["done_before"], again["done_before"], complete["done_before"]] == [False, False, True]
    kept = {name.split("/")[1] for name in names if name.startswith("checkpoints/step_")}
    assert kept == {"step_00000020", "step_00000024"}
    assert not [name for name in names if name.endswith(("snapshot.json", "marker"))]

    case = {name: value for name, value in TRAIN.items() if name != "max_failures"}
    plain = run_cases(ENTRY, {"dropout": 0.2, "train": TRAIN}, {"plain": case}, tmp_path)["plain"]
    assert [line["step"] for line in found.log] == [4, 6, 8, 12, 16, 18, 20, 24]
    assert found.losses == pytest.approx(plain.losses, rel=1e-6)
    assert largest_difference(found.state, plain.state) < 1e-6
    assert again["metrics"] == pytest.approx(first["metrics"], rel=1e-6)
