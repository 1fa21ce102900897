"""Runs whose folder is on object storage, without Ray and on Ray."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.train import TrainingRun, launch
from idc.data.files import locate
from idc.data.remote_copies import local_folder, sizes
from idc.training.config import TrainConfig
from idc.training.run_storage import RunCopy, RunFolder
from tests.invariants.harness import Run, largest_difference, run_cases
from tests.object_store import Store, store
from tests.training import toy

ENTRY = "tests.training.toy:entry"
TRAIN: dict[str, Any] = {**toy.TRAIN, "tracking": {"enabled": False}}


@pytest.fixture(scope="module")
def s3() -> Iterator[Store]:
    with store() as made:
        yield made


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IDC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


def start(run_dir: Path | str, payload: dict[str, Any] | None = None, **train: Any) -> dict[str, Any]:
    settings = TrainConfig.model_validate({**TRAIN, **train})
    return launch(TrainingRun.in_folder(ENTRY, payload or {}, settings, run_dir), local=True)


def test_a_complete_run_is_not_run_again_and_another_config_is_refused(s3: Store, tmp_path: Path) -> None:
    attempts = str(tmp_path / "attempts")
    start("s3://idc/b/run", {"attempts": attempts}, steps=4)
    assert start("s3://idc/b/run", {"attempts": attempts}, steps=4)["done_before"]
    assert Path(attempts).read_text() == "attempt\n"
    with pytest.raises(ValueError, match=r"s3://idc/b/run holds a run of another config"):
        start("s3://idc/b/run", {"attempts": attempts}, steps=5)
    train = TrainConfig.model_validate({**TRAIN, "steps": 5})
    run = TrainingRun.in_folder(ENTRY, {"attempts": attempts}, train, "s3://idc/b/run")
    result = launch(run, local=True, overwrite=True)
    assert result["steps"] == 5
    assert not [name for name in sizes(locate("s3://idc/b/run"), 0) if "step_00000004" in name]


def test_a_half_uploaded_checkpoint_is_never_used(s3: Store, capfd: pytest.CaptureFixture[str]) -> None:
    start("s3://idc/e/run", steps=20)
    place = locate("s3://idc/e/run/checkpoints/step_00000020")
    (place / "complete").delete()
    (locate("s3://idc/e/run") / "result.json").delete()
    assert not start("s3://idc/e/run", steps=20)["done_before"]
    assert "resumed at step 15 of 20" in capfd.readouterr().err


def test_what_belongs_to_a_checkpoint_is_stored_before_it_is_complete(s3: Store, tmp_path: Path) -> None:
    folder = RunFolder("s3://idc/f/run")
    storage = RunCopy(folder, is_main=True)
    (storage.scratch / "best").mkdir()
    for name in ("log.jsonl", "best/a.safetensors", ".hidden", "best/.b.partial"):
        (storage.scratch / name).write_text("first")
    storage.push()
    assert set(sizes(folder.location, 0)) == {"log.jsonl", "best/a.safetensors"}
    (storage.scratch / "best" / "a.safetensors").unlink()
    (storage.scratch / "log.jsonl").write_text("second")
    storage.push()
    assert sizes(folder.location, 0) == {"log.jsonl": 6}
    part = storage.scratch / "step_00000005"
    part.mkdir()
    (part / "weights").write_text("w")
    storage.upload_part(part)
    assert folder.complete_checkpoints() == []
    folder.write("checkpoints/zz_copy/complete", None)  # the user's
    folder.complete("step_00000005", keep_last=1)
    assert folder.exists("checkpoints/zz_copy")
    assert folder.complete_checkpoints() == ["step_00000005"]
    storage.close()
    assert not storage.scratch.exists()
    other = RunCopy(folder, is_main=False)
    assert [path.name for path in other.scratch.iterdir()] == ["log.jsonl"]
    killed = RunCopy(folder, is_main=False)
    killed._lock.release()  # as the end of its process does
    RunCopy(folder, is_main=False).close()
    assert (killed.scratch.exists(), other.scratch.exists()) == (False, True)
    other.close()


ON_RAY: dict[str, Any] = {**TRAIN, "num_workers": 2, "engine": "deepspeed", "zero_stage": 2, "max_failures": 1}
SCRIPT = """
import json, sys
from cluster.config import ClusterConfig
from cluster.preflight import Requirements, check_cluster
from cluster.session import session
from cluster.train import TrainingRun, launch
from idc.data.files import locate
from idc.training.config import TrainConfig

given = json.loads(sys.argv[1])
config = ClusterConfig(num_cpus=4, num_gpus=0, object_store_mb=200, auth="disabled", temp_dir=given["temp"])
with session(config):
    check_cluster(Requirements(out="s3://idc/ray"), config)
    train = TrainConfig.model_validate(given["train"])
    run = TrainingRun.in_folder("tests.training.toy:entry", given["payload"], train, "s3://idc/ray/run")
    results = [launch(run)]
    (locate("s3://idc/ray/run") / "result.json").delete()
    (locate("s3://idc/ray/run") / "checkpoints/step_00000024/complete").delete()
    for _ in range(2):
        results.append(launch(run))
print(json.dumps(results))
"""


@pytest.mark.slow
@pytest.mark.ray
def test_a_run_killed_on_ray_goes_on_from_object_storage(tmp_path: Path) -> None:
    """Two workers, ZeRO-2, SIGKILL of rank 1 in step 13; then the last checkpoint is lost, and the driver starts again;
    then it is complete. Against the same two ranks without Ray, on the disk and undisturbed."""
    payload = {"dropout": 0.2, "kill_step": 13, "kill_rank": 1, "kill_marker": str(tmp_path / "killed")}
    temp = tempfile.mkdtemp(prefix="ray-", dir="/tmp")
    with store():
        arguments = {"train": ON_RAY, "payload": payload, "temp": temp}
        ended = subprocess.run([sys.executable, "-c", SCRIPT, json.dumps(arguments)], capture_output=True, text=True)
        shutil.rmtree(temp, ignore_errors=True)
        assert ended.returncode == 0, ended.stderr[-4000:]
        first, again, complete = json.loads(ended.stdout.splitlines()[-1])
        run = Run(local_folder("s3://idc/ray/run"))
        names = sizes(locate("s3://idc/ray/run"), 0)
    assert (tmp_path / "killed").exists()
    assert "resumed at step 10 of 24 from " in ended.stderr
    assert "resumed at step 20 of 24 from " in ended.stderr
    assert [first["done_before"], again["done_before"], complete["done_before"]] == [False, False, True]
    kept = {name.split("/")[1] for name in names if name.startswith("checkpoints/step_")}
    assert kept == {"step_00000020", "step_00000024"}
    assert not [name for name in names if name.endswith(("snapshot.json", "marker"))]

    case = {name: value for name, value in ON_RAY.items() if name != "max_failures"}
    plain = run_cases(ENTRY, {"dropout": 0.2, "train": ON_RAY}, {"plain": case}, tmp_path)["plain"]
    assert [line["step"] for line in run.log] == [4, 6, 8, 12, 16, 18, 20, 24]
    assert run.losses == pytest.approx(plain.losses, rel=1e-6)
    assert largest_difference(run.state, plain.state) < 1e-6
    assert again["metrics"] == pytest.approx(first["metrics"], rel=1e-6)
