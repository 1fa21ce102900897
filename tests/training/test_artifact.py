from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from idc.data.text import Vocabulary
from idc.training.artifact import add_file, captioning_identity, identity, read_artifact, write_artifact
from tests.training.toy import ToyTask


@pytest.fixture
def artifact(tmp_path: Path) -> Path:
    tokenizer = tmp_path / "tokenizer"
    (tokenizer / "deep").mkdir(parents=True)
    (tokenizer / "model.safetensors").write_bytes(b"weights")
    (tokenizer / "deep" / "a.json").write_text("{}")
    torch.manual_seed(0)
    return write_artifact(
        tmp_path / "run" / "artifact",
        system="toy",
        config={"width": 3, "name": "größer"},
        state_dict=ToyTask().state_dict(),
        vocabulary=Vocabulary(["the", "cube"]),
        preprocess={"size": [64, 64]},
        metrics={"CIDEr": 1.25, "note": "text"},
        card="Trained on toys.",
        extras={"tokenizer": tokenizer},
    )


def test_what_is_written_is_read(artifact: Path) -> None:
    read = read_artifact(artifact, system="toy")
    assert read.config == {"width": 3, "name": "größer"}
    assert read.preprocess == {"size": [64, 64]}
    assert read.metrics["CIDEr"] == 1.25
    assert read.vocabulary == Vocabulary(["the", "cube"])
    assert read.extra("tokenizer/deep/a.json").read_text() == "{}"
    torch.manual_seed(1)
    task = ToyTask()
    read.load_into(task)
    torch.manual_seed(0)
    for name, tensor in ToyTask().state_dict().items():
        assert torch.equal(task.state_dict()[name], tensor), name
    card = (artifact / "README.md").read_text()
    assert "Trained on toys." in card
    assert "| CIDEr | 1.25 |" in card
    assert sorted(p.name for p in artifact.parent.iterdir()) == ["artifact"]


def test_tied_weights_are_stored_for_strict_loading(tmp_path: Path) -> None:
    module = torch.nn.ModuleDict({"a": torch.nn.Linear(2, 2), "b": torch.nn.Linear(2, 2)})
    module["b"].weight = module["a"].weight
    write_artifact(tmp_path / "x", system="toy", config={}, state_dict=module.state_dict())
    read_artifact(tmp_path / "x").load_into(module)


def test_writing_again_replaces_all_of_it(artifact: Path) -> None:
    write_artifact(artifact, system="toy", config={}, state_dict={"w": torch.ones(1)})
    read = read_artifact(artifact)
    assert list(read.state_dict()) == ["w"]
    assert read.vocabulary is None
    with pytest.raises(ValueError, match="has no tokenizer"):
        read.extra("tokenizer")


def damage(artifact: Path, what: str) -> None:
    config = json.loads((artifact / "config.json").read_text())
    if what == "no config":
        (artifact / "config.json").unlink()
    elif what == "not json":
        (artifact / "config.json").write_text("{")
    elif what == "foreign":
        (artifact / "config.json").write_text('{"model_type": "clip"}')
    elif what == "version":
        (artifact / "config.json").write_text(json.dumps({**config, "format_version": 99}))
    elif what == "lost":
        (artifact / "tokenizer" / "model.safetensors").unlink()


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("no config", "is not an artifact"),
        ("not json", "config.json cannot be read as JSON"),
        ("foreign", "does not describe an artifact"),
        ("version", "has format version 99"),
        ("lost", "tokenizer/model.safetensors is missing; copy the whole folder again"),
    ],
)
def test_damage_is_named(artifact: Path, what: str, message: str) -> None:
    damage(artifact, what)
    with pytest.raises(ValueError, match=message):
        read_artifact(artifact)


def test_an_artifact_is_told_by_its_files_and_its_captions_are_the_same_when_it_is_calibrated(
    artifact: Path, tmp_path: Path
) -> None:
    shutil.copytree(artifact, tmp_path / "copy")
    copy = tmp_path / "copy"
    assert (identity(copy), captioning_identity(copy)) == (identity(artifact), captioning_identity(artifact))
    add_file(copy, "calibration.json", "{}")
    assert identity(copy) != identity(artifact)
    assert captioning_identity(copy) == captioning_identity(artifact)
    (copy / "tokenizer" / "model.safetensors").write_bytes(b"others")
    assert captioning_identity(copy) != captioning_identity(artifact)
    shutil.copyfile(artifact / "tokenizer" / "model.safetensors", copy / "tokenizer" / "model.safetensors")
    head = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({**head, "config": {**head["config"], "width": 4}}))
    assert captioning_identity(copy) != captioning_identity(artifact)


def test_a_file_is_added_and_replaced(artifact: Path) -> None:
    """Listed once, so that a copy without it is incomplete; nothing else of the artifact changes."""
    before = json.loads((artifact / "config.json").read_text())
    for text in ("first", "second"):
        add_file(artifact, "calibration.json", text)
        assert (artifact / "calibration.json").read_text() == text
        head = json.loads((artifact / "config.json").read_text())
        assert head == {**before, "files": sorted([*before["files"], "calibration.json"])}
    assert not [path for path in artifact.iterdir() if path.name.endswith(".partial")]
    (artifact / "calibration.json").unlink()
    with pytest.raises(ValueError, match=r"is incomplete, calibration.json is missing"):
        read_artifact(artifact)
    with pytest.raises(ValueError, match="is not an artifact"):
        add_file(artifact.parent, "calibration.json", "")


def test_another_system_and_the_runs_folder_are_refused(artifact: Path) -> None:
    with pytest.raises(ValueError, match="artifact of 'toy', not of 'procap'"):
        read_artifact(artifact, system="procap")
    with pytest.raises(ValueError, match=r"did you mean .*artifact\?"):
        read_artifact(artifact.parent)


def test_wrong_and_cut_weights_are_named(artifact: Path) -> None:
    from safetensors.torch import load_file, save_file

    weights = artifact / "model.safetensors"
    state = load_file(weights)
    other = {**state, "surplus": torch.ones(1), "head.bias": torch.ones(9)}
    del other["shift"]
    save_file(other, weights)
    with pytest.raises(ValueError, match="lacks shift") as refused:
        read_artifact(artifact).load_into(ToyTask())
    assert "has surplus, which the model does not" in str(refused.value)
    assert "has head.bias as (9,), the model as (5,)" in str(refused.value)
    save_file(state, weights)
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(ValueError, match=r"model.safetensors is damaged .*copy the artifact again"):
        read_artifact(artifact).load_into(ToyTask())


def test_reading_needs_neither_pyarrow_nor_ray_nor_torch(artifact: Path) -> None:
    code = (
        "import sys\n"
        "for name in ('pyarrow', 'ray', 'mlflow', 'deepspeed', 'torch'): sys.modules[name] = None\n"
        "from idc.training.artifact import add_file, read_artifact\n"
        f"assert read_artifact({str(artifact)!r}).system == 'toy'"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[2])
