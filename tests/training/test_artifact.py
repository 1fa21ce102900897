from __future__ import annotations

import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from idc.data.text import Vocabulary
from idc.training.artifact import (
    ADAPTER,
    PROCESSOR,
    add_file,
    artifact_identity,
    captioning_identity,
    read_artifact,
    write_artifact,
)
from idc.training.base import BaseName
from idc.training.loop import save_safetensors
from tests.systems.procap.world import TOKENIZER
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
    assert "| CIDEr | 125.0 |" in card
    write_artifact(artifact, system="toy", config={}, state_dict={"w": torch.ones(1)})
    again = read_artifact(artifact)
    assert (list(again.state_dict()), again.vocabulary) == (["w"], None), "all of it is replaced"
    assert [path.name for path in artifact.parent.iterdir()] == ["artifact"]
    with pytest.raises(ValueError, match="has no tokenizer"):
        again.extra("tokenizer")
    with pytest.raises(ValueError, match="has no adapter/; train the run again"):
        again.folder(ADAPTER)


def test_what_is_written_takes_the_umask(tmp_path: Path) -> None:
    """Else a server of another user cannot read it: safetensors writes for the owner alone, and so does tempfile."""
    from transformers import CLIPVisionConfig, CLIPVisionModel

    from idc.vision.tokenizer.model import ImageTokenizer
    from idc.vlm.base import save_model

    small = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    before = os.umask(0o027)
    try:
        ImageTokenizer(TOKENIZER).save(tmp_path / "out" / "tokenizer")
        save_model(CLIPVisionModel(CLIPVisionConfig(**small)), tmp_path / "out" / "model")
        save_safetensors(ToyTask().state_dict(), tmp_path / "out" / "best.safetensors")
        private = Path(tempfile.mkdtemp(dir=tmp_path))
        (private / "adapter_config.json").write_text("{}")
        save_safetensors({}, private / "adapter_model.safetensors")
        (private / "adapter_model.safetensors").chmod(0o600)
        extras = {ADAPTER: private}
        write_artifact(tmp_path / "out" / "artifact", system="toy", config={}, state_dict={}, base=BASE, extras=extras)
    finally:
        os.umask(before)
    modes = {path: path.stat().st_mode & 0o777 for path in (tmp_path / "out").rglob("*")}
    assert len([path for path in modes if path.suffix == ".safetensors"]) == 5
    assert {path: oct(mode) for path, mode in modes.items() if mode != (0o750 if path.is_dir() else 0o640)} == {}


BASE = BaseName("org/tiny", "qwen2", "ab" * 32, "0123456789abcdef0123456789abcdef01234567")


@pytest.fixture
def tuned(tmp_path: Path) -> Path:
    """An artifact of version 2: a base that is not here, an adapter, a processor, the trained parts of a model."""
    from safetensors.torch import save_file

    for name in (ADAPTER, PROCESSOR):
        (tmp_path / name).mkdir()
    (tmp_path / ADAPTER / "adapter_config.json").write_text('{"r": 8}')
    save_file({"lora_A": torch.ones(2, 8)}, tmp_path / ADAPTER / "adapter_model.safetensors")
    (tmp_path / PROCESSOR / "tokenizer.json").write_text("{}")
    task = ToyTask()
    return write_artifact(
        tmp_path / "artifact",
        system="toy",
        config={},
        state_dict={name: tensor for name, tensor in task.state_dict().items() if not name.startswith("frozen.")},
        extras={ADAPTER: tmp_path / ADAPTER, PROCESSOR: tmp_path / PROCESSOR},
        base=BASE,
    )


def test_version_2_names_its_base_and_holds_adapter_and_processor(tuned: Path) -> None:
    """Reading it looks for no base."""
    read = read_artifact(tuned)
    assert json.loads((tuned / "config.json").read_text())["format_version"] == 2
    assert read.base == BASE
    assert {"adapter/adapter_config.json", "adapter/adapter_model.safetensors", "processor/tokenizer.json"} <= set(
        read.files
    )
    assert (read.folder(ADAPTER), read.folder(PROCESSOR)) == (tuned / ADAPTER, tuned / PROCESSOR)
    card = (tuned / "README.md").read_text()
    assert f"Needs the base model org/tiny at revision {BASE.revision}, which is not in this folder." in card
    with pytest.raises(ValueError, match=r"lacks frozen.weight"):
        read.load_into(ToyTask())


def test_base_adapter_and_processor_are_part_of_the_identity(tuned: Path, tmp_path: Path) -> None:
    def identities(folder: Path) -> tuple[str, str]:
        return artifact_identity(folder), captioning_identity(folder)

    copy = tmp_path / "copy"
    found = [identities(tuned)]
    for name, change in (
        ("adapter/adapter_config.json", ("8", "9")),
        ("processor/tokenizer.json", ("{}", "[]")),
        ("config.json", (BASE.fingerprint, "cd" * 32)),
        ("config.json", (str(BASE.revision), "f" * 40)),
    ):
        shutil.copytree(tuned, copy, dirs_exist_ok=True)
        assert identities(copy) == found[0]
        (copy / name).write_text((copy / name).read_text().replace(*change))
        found.append(identities(copy))
    assert len(set(found)) == len({one for one, _ in found}) == len({other for _, other in found}) == 5


def head(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], Any]:
    """Another config.json."""

    def damage(folder: Path) -> None:
        content = json.loads((folder / "config.json").read_text())
        change(content)
        (folder / "config.json").write_text(json.dumps(content))

    return damage


def config(text: str) -> Callable[[Path], Any]:
    return lambda folder: (folder / "config.json").write_text(text)


DAMAGE: list[tuple[Callable[[Path], Any], str]] = [
    (head(lambda config: config.pop("base")), "is damaged: it has an adapter, and names no base"),
    (
        head(lambda config: config["files"].remove("adapter/adapter_config.json")),
        "is damaged: its adapter has no adapt",
    ),
    (head(lambda config: config["base"].pop("fingerprint")), r"base.fingerprint: Field required; copy the artifact"),
    (
        lambda folder: (folder / "processor" / "tokenizer.json").unlink(),
        "is incomplete, processor/tokenizer.json is mi",
    ),
    (lambda folder: (folder / "config.json").unlink(), "is not an artifact"),
    (config("{"), "config.json cannot be read as JSON"),
    (config('{"model_type": "clip"}'), "does not describe an artifact"),
    (head(lambda config: config["base"].update(name="x")), "base.name: Unexpected keyword argument; copy the artifact"),
    (head(lambda config: config["files"].append("../x")), r"files.\d+: Value error, '../x' is no name below"),
    (
        head(lambda config: config.update(format_version=99)),
        "config.json: format_version: Input should be 1 or 2; copy the artifact again, or train",
    ),
    (head(lambda config: config.update(system="procap")), "of 'procap', not of 'toy'"),
]


@pytest.mark.parametrize(("damage", "message"), DAMAGE, ids=[message for _, message in DAMAGE])
def test_damage_is_named(tuned: Path, damage: Callable[[Path], Any], message: str) -> None:
    with pytest.raises(ValueError, match=r"did you mean .*artifact\?"):
        read_artifact(tuned.parent)
    damage(tuned)
    with pytest.raises(ValueError, match=message):
        read_artifact(tuned, system="toy")


def test_an_artifact_is_told_by_its_files_and_its_captions_are_the_same_when_it_is_calibrated(
    artifact: Path, tmp_path: Path
) -> None:
    shutil.copytree(artifact, tmp_path / "copy")
    copy = tmp_path / "copy"
    assert (artifact_identity(copy), captioning_identity(copy)) == (
        artifact_identity(artifact),
        captioning_identity(artifact),
    )
    before = json.loads((copy / "config.json").read_text())
    for text in ("first", "second"):
        add_file(copy, "calibration.json", text)
        assert (copy / "calibration.json").read_text() == text
        head = json.loads((copy / "config.json").read_text())
        assert head == {**before, "files": sorted([*before["files"], "calibration.json"])}, "listed once"
    assert artifact_identity(copy) != artifact_identity(artifact)
    assert captioning_identity(copy) == captioning_identity(artifact)
    (copy / "tokenizer" / "model.safetensors").write_bytes(b"others")
    assert captioning_identity(copy) != captioning_identity(artifact)
    shutil.copyfile(artifact / "tokenizer" / "model.safetensors", copy / "tokenizer" / "model.safetensors")
    head = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({**head, "config": {**head["config"], "width": 4}}))
    assert captioning_identity(copy) != captioning_identity(artifact)


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
    subprocess.run([sys.executable, "-c", code], check=True)


def test_an_artifact_keeps_its_name_in_registries_and_stored_evaluations(tmp_path: Path) -> None:
    """Files and hashes of the first version of the format."""
    folder = write_artifact(
        tmp_path / "toy",
        system="toy",
        config={"width": 3, "name": "größer"},
        state_dict={"w": torch.arange(6, dtype=torch.float32).view(2, 3)},
        vocabulary=Vocabulary(["the", "cube"]),
        metrics={"CIDEr": 1.25},
        trained_on="toys",
    )
    (folder / "README.md").write_text("# toy\n")
    identity = "f31f39e777e33cb43ab7bae02a3f86b119e440df5175eb887102c6effabad749"
    assert artifact_identity(folder) == captioning_identity(folder) == identity
    head = {"system": "toy", "format_version": 1, "config": {"width": 3, "name": "größer"}}
    files = ["README.md", "metrics.json", "model.safetensors", "preprocess.json", "vocabulary.json"]
    text = json.dumps({**head, "files": files, "trained_on": "toys"}, indent=1, ensure_ascii=False) + "\n"
    assert (folder / "config.json").read_text(encoding="utf-8") == text
    weights = b'{"w":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}}       ' + struct.pack("<6f", *range(6))
    assert (folder / "model.safetensors").read_bytes() == struct.pack("<Q", 64) + weights
    assert (folder / "vocabulary.json").read_bytes() == b'{\n "words": [\n  "the",\n  "cube"\n ]\n}\n'
