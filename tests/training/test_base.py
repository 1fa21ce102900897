"""The base model of an artifact, with a real tiny transformers model, the hub's cache layout and no network."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from idc.training.base import BaseName, base_fingerprint, full_hash, locate_base
from idc.training.hashing import combined_hash, content_or_id

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A language model of 100 k parameters in three files of weights, with a tokenizer."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

    folder = tmp_path_factory.mktemp("model") / "tiny"
    torch.manual_seed(0)
    config = Qwen2Config(vocab_size=64, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
                         num_attention_heads=4, num_key_value_heads=2)  # fmt: skip
    Qwen2ForCausalLM(config).save_pretrained(folder, max_shard_size="150KB")
    words = Tokenizer(models.WordLevel({"a": 0, "cube": 1, "[UNK]": 2}, unk_token="[UNK]"))
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="[UNK]").save_pretrained(folder)
    assert len(list(folder.glob("*.safetensors"))) > 1
    return folder


@pytest.fixture
def copy(model: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(model, tmp_path / "copy"))


@pytest.fixture
def hub(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The id of a model that is in the hub's cache on this machine, which has no network."""
    from huggingface_hub import constants

    store = tmp_path / "hub" / "models--org--tiny"
    (store / "blobs").mkdir(parents=True)
    (store / "refs").mkdir()
    (store / "refs" / "main").write_text(COMMIT)
    (store / "snapshots" / COMMIT).mkdir(parents=True)
    for number, file in enumerate(sorted(model.iterdir())):
        shutil.copyfile(file, store / "blobs" / f"{number:040x}")
        (store / "snapshots" / COMMIT / file.name).symlink_to(Path("..") / ".." / "blobs" / f"{number:040x}")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    return "org/tiny"


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The connections that were tried."""
    tried: list[Any] = []

    def refuse(self: socket.socket, address: Any) -> None:
        tried.append(address)
        raise ConnectionRefusedError(f"refused by the test: {address}")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    return tried


def test_a_folder_is_itself_by_its_whole_path_and_needs_no_hub(
    model: Path, no_network: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(model.parent)
    base = BaseName.of("tiny", locate_base("tiny"), "qwen2")
    assert base == BaseName(str(model), "qwen2", base_fingerprint(model))
    assert base.folder() == locate_base(str(model)) == model
    assert not no_network


def test_a_hub_id_is_found_in_the_cache_without_the_network(model: Path, hub: str, no_network: list[Any]) -> None:
    found = locate_base(hub)
    assert found == locate_base(hub, COMMIT) == locate_base(hub, "main")
    base = BaseName.of(hub, found, "qwen2")
    assert base == BaseName(hub, "qwen2", base_fingerprint(model), COMMIT)
    assert base.folder() == found
    assert not no_network


def test_a_base_that_is_not_here_comes_with_advice(hub: str, no_network: list[Any], tmp_path: Path) -> None:
    other = "f" * 40
    with pytest.raises(ValueError, match=f"`hf download org/tiny --revision {other}`, or give its folder"):
        locate_base(hub, other)
    for path in (str(tmp_path / "nowhere"), "~/nowhere-at-all"):
        with pytest.raises(ValueError, match=f"there is no folder {path}; give the folder"):
            locate_base(path)
    with pytest.raises(ValueError, match="'nowhere/at/all' is neither a folder here nor a hub id"):
        locate_base("nowhere/at/all")
    assert not no_network, "the hub was asked"
    with pytest.raises(ValueError, match=r"org/other is not on this machine: .*asking the hub failed: .*ConnectError"):
        locate_base("org/other", download=True)
    assert no_network


def test_a_download_that_was_cut_off_is_named(hub: str, tmp_path: Path) -> None:
    """By what the hub's own listing of the commit has, as `hf download` leaves it; and by the index of the weights."""
    from huggingface_hub._tree_cache import TreeCacheEntry, write_tree_cache

    store = tmp_path / "hub" / "models--org--tiny"
    snapshot = store / "snapshots" / COMMIT
    lost = sorted(snapshot.glob("model-0000*"))[0]
    entries = {
        path.name: TreeCacheEntry(path.stat().st_size, blob_id="0" * 40, lfs_sha256=None, lfs_size=None, xet_hash=None)
        for path in snapshot.iterdir()
    }
    lost.unlink()
    with pytest.raises(ValueError, match=r"is incomplete: 1 of \d files of weights are missing, first model-00001"):
        BaseName.of(hub, locate_base(hub), "qwen2")
    write_tree_cache(str(store), COMMIT, entries)
    with pytest.raises(ValueError, match=r"org/tiny is only partly on this machine: download it once with"):
        locate_base(hub)


def test_the_fingerprint_is_that_of_the_model(model: Path, copy: Path) -> None:
    same = base_fingerprint(model)
    assert base_fingerprint(copy) == same
    assert full_hash(copy) == full_hash(model) != same
    (copy / "README.md").write_text("another card")
    (copy / "training_args.bin").write_bytes(b"something")
    assert base_fingerprint(copy) == same
    for name, old, new in (
        ("config.json", '"hidden_act": "silu"', '"hidden_act": "gelu"'),
        ("tokenizer.json", '"cube"', '"cone"'),
    ):
        text = (copy / name).read_text()
        assert old in text
        (copy / name).write_text(text.replace(old, new))
        assert base_fingerprint(copy) != same
        (copy / name).write_text(text)
    assert base_fingerprint(copy) == same
    from safetensors.torch import load_file, save_file

    weights = sorted(copy.glob("*.safetensors"))[0]
    state = load_file(weights)
    save_file({name: tensor + 0.001 for name, tensor in state.items()}, weights, {"format": "pt"})
    assert base_fingerprint(copy) != same


def test_another_model_in_the_place_of_the_base_is_refused(model: Path, copy: Path, hub: str) -> None:
    base = BaseName.of(hub, locate_base(hub), "qwen2")
    assert base.folder(source=str(copy)) == copy
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 3}))
    message = (
        rf"{copy} is not the base model that the artifact was trained on, org/tiny at revision {COMMIT}.*expected "
        rf"{base.fingerprint[:12]}; give the folder of the right one with base.source=/path"
    )
    with pytest.raises(ValueError, match=message):
        base.folder(source=str(copy))


def only_a_pickle(folder: Path) -> None:
    for file in folder.glob("model*"):
        file.unlink()
    (folder / "pytorch_model.bin").write_bytes(b"pickle")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: (folder / "config.json").unlink(), "is no transformers model: it has no config.json"),
        (only_a_pickle, "has no weights in safetensors; convert them"),
        (lambda folder: (folder / "model.safetensors.index.json").write_text("[]"), "index.json is damaged"),
        (lambda folder: os.truncate(min(folder.glob("*.safetensors")), 20), "is damaged .*; download or copy it"),
    ],
)
def test_a_damaged_folder_is_named(copy: Path, damage: Callable[[Path], Any], message: str) -> None:
    damage(copy)
    with pytest.raises(ValueError, match=message):
        base_fingerprint(copy)


def test_a_path_is_identified_by_its_content_and_a_name_that_is_no_path_by_itself(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "a").write_bytes(b"x")
    digest = hashlib.sha256(b"x").hexdigest()
    assert content_or_id("facebook/dinov2-large") == "facebook/dinov2-large"
    assert content_or_id(str(tmp_path)) == combined_hash({"folder/a": digest})
    assert content_or_id(str(tmp_path / "folder" / "a")) == combined_hash({".": digest})
    (tmp_path / "folder" / "a").write_bytes(b"y")
    assert content_or_id(str(tmp_path)) != combined_hash({"folder/a": digest})
