"""The hashes of an artifact's files: what was changed, removed or added is named; what was always there is read."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

from idc.captioning.loading import artifact_folder
from idc.training import artifact as artifact_module
from idc.training.artifact import add_file, artifact_identity, captioning_identity, read_artifact, write_artifact
from idc.training.artifact_hashes import HASHES


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    extra = tmp_path / "tokenizer"
    extra.mkdir()
    (extra / "model.safetensors").write_bytes(b"weights")
    (extra / ".hidden").write_text("part of it, as it was listed")
    return write_artifact(
        tmp_path / "artifact",
        system="toy",
        config={},
        state_dict={"w": torch.arange(6.0)},
        extras={"tokenizer": extra},
    )


def test_an_artifact_has_the_hash_of_each_of_its_files(folder: Path) -> None:
    hashes = json.loads((folder / HASHES).read_text())["sha256"]
    assert set(hashes) == {"config.json", *read_artifact(folder).files}
    assert read_artifact(folder).verified


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("a bit of the weights", "model.safetensors is changed"),
        ("settings", "config.json is changed"),
        ("card", "README.md is changed"),
        ("of an extra", "tokenizer/model.safetensors is changed"),
        ("removed with its entry", "tokenizer/model.safetensors is missing"),
        ("added", "tokenizer/more.json is not part of it"),
        ("added with an entry", "more.json is not part of it"),
        ("hashes", "hashes.json cannot be read"),
    ],
)
def test_what_differs_is_named(folder: Path, what: str, message: str) -> None:
    config = json.loads((folder / "config.json").read_text())
    if what == "a bit of the weights":
        content = bytearray((folder / "model.safetensors").read_bytes())
        content[-1] ^= 1
        (folder / "model.safetensors").write_bytes(content)
    elif what == "settings":
        (folder / "config.json").write_text(json.dumps({**config, "config": {"width": 4}}))
    elif what == "card":
        (folder / "README.md").write_text("Trust me.")
    elif what == "of an extra":
        (folder / "tokenizer" / "model.safetensors").write_bytes(b"Weights")
    elif what == "removed with its entry":
        (folder / "tokenizer" / "model.safetensors").unlink()
        files = [name for name in config["files"] if name != "tokenizer/model.safetensors"]
        (folder / "config.json").write_text(json.dumps({**config, "files": files}))
    elif what == "added":
        (folder / "tokenizer" / "more.json").write_text("{}")
    elif what == "added with an entry":
        (folder / "more.json").write_text("{}")
        (folder / "config.json").write_text(json.dumps({**config, "files": [*config["files"], "more.json"]}))
    else:
        (folder / HASHES).write_text('{"sha256": {"config.json": 1}}')
    with pytest.raises(ValueError, match=message):
        read_artifact(folder)


def test_hidden_files_and_a_copy_are_no_difference(folder: Path, tmp_path: Path) -> None:
    (folder / ".DS_Store").write_bytes(b"left by a file manager")
    assert read_artifact(folder).verified
    shutil.copytree(folder, tmp_path / "copy")
    assert read_artifact(tmp_path / "copy").verified


def test_an_artifact_of_an_earlier_version_is_read_and_it_is_said(folder: Path) -> None:
    (folder / HASHES).unlink()
    read = read_artifact(folder)
    assert not read.verified
    with pytest.warns(UserWarning, match=r"has no hashes.json, as an earlier version of the program wrote it"):
        read.state_dict()
    add_file(folder, "calibration.json", "{}")
    assert read_artifact(folder).verified


def test_the_hashes_are_no_part_of_what_the_artifact_is(folder: Path) -> None:
    """The registry, and stored evaluations, know artifacts of earlier versions by the same hash."""
    before = artifact_identity(folder), captioning_identity(folder)
    (folder / HASHES).unlink()
    assert (artifact_identity(folder), captioning_identity(folder)) == before


def test_a_process_that_is_killed_while_it_adds_a_file_leaves_an_artifact_that_can_be_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed before each of its four writes in turn."""
    add_file(folder, "calibration.json", "first")
    for number in range(4):
        calls = iter(range(10))

        def until(write: object, limit: int = number, calls: object = calls) -> object:
            def counted(*args: object, **options: object) -> object:
                if next(calls) >= limit:  # type: ignore[call-overload]
                    raise KeyboardInterrupt
                return write(*args, **options)  # type: ignore[operator]

            return counted

        with monkeypatch.context() as patch:
            for name in ("write_hashes", "write_bytes", "write_text"):
                patch.setattr(artifact_module, name, until(getattr(artifact_module, name)))
            with pytest.raises(KeyboardInterrupt):
                add_file(folder, f"new{number}.json", "second")
        read_artifact(folder)
    add_file(folder, "calibration.json", "last")
    assert None not in json.loads((folder / HASHES).read_text())["sha256"].values()


def test_the_shipped_captioner_has_its_hashes() -> None:
    assert read_artifact(artifact_folder("shipped")).verified
