"""Runs whose folder is on object storage, without Ray."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.train import launch
from idc.data.files import locate
from idc.data.remote_copies import sizes
from idc.training.config import TrainConfig
from idc.training.run_storage import RunCopy, RunFolder
from tests.object_store import Store, store
from tests.training import toy

ENTRY = "tests.training.toy:entry"
TRAIN: dict[str, Any] = {
    **toy.TRAIN,
    "tracking": {"enabled": False},
}


@pytest.fixture(scope="module")
def s3() -> Iterator[Store]:
    with store() as made:
        yield made


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IDC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


def start(run_dir: Path | str, payload: dict[str, Any] | None = None, **train: Any) -> dict[str, Any]:
    return launch(ENTRY, payload or {}, TrainConfig.model_validate({**TRAIN, **train}), run_dir, local=True)


def test_a_complete_run_is_not_run_again_and_another_config_is_refused(s3: Store, tmp_path: Path) -> None:
    attempts = str(tmp_path / "attempts")
    start("s3://idc/b/run", {"attempts": attempts}, steps=4)
    assert start("s3://idc/b/run", {"attempts": attempts}, steps=4)["done_before"]
    assert Path(attempts).read_text() == "attempt\n"
    with pytest.raises(
        ValueError, match=r"s3://idc/b/run holds a run of another config(.|\n)*train.steps: saved 4, now 5"
    ):
        start("s3://idc/b/run", {"attempts": attempts}, steps=5)
    train = TrainConfig.model_validate({**TRAIN, "steps": 5})
    result = launch(ENTRY, {"attempts": attempts}, train, "s3://idc/b/run", local=True, overwrite=True)
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
    killed._lock.close()  # as the end of its process does
    RunCopy(folder, is_main=False).close()
    assert (killed.scratch.exists(), other.scratch.exists()) == (False, True)
    other.close()
