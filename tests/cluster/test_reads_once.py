"""A training command, from the check of its settings to its artifact, reads the manifest of each input folder once."""

from __future__ import annotations

import importlib
from collections import Counter
from pathlib import Path

import pytest
import yaml

from idc.config import ConfigModel
from idc.data import manifest
from idc.data.files import Location
from idc.data.schema import pair_arrow_schema
from idc.data.store import MANIFEST, DatasetFolder, iter_rows, read_manifest
from tests.systems.procap.world import World
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
