"""A network of our own at rest: a folder with config.json, model.safetensors and preprocess.json."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from torch import nn

from idc.config import ConfigModel
from idc.data.remote_copies import local_folder
from idc.util.atomic import take_umask, write_json

CONFIG_FILE, WEIGHTS_FILE, PREPROCESS_FILE = "config.json", "model.safetensors", "preprocess.json"

ConfigT = TypeVar("ConfigT", bound=ConfigModel)


def save_network(folder: Path | str, network: nn.Module, config: ConfigModel, preprocess: Mapping[str, Any]) -> None:
    """Write the three files."""
    from safetensors.torch import save_file

    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    state = {name: value.detach().to("cpu", copy=True).contiguous() for name, value in network.state_dict().items()}
    save_file(state, folder / WEIGHTS_FILE)
    take_umask(folder / WEIGHTS_FILE)
    write_json(folder / PREPROCESS_FILE, preprocess)
    write_json(folder / CONFIG_FILE, config.model_dump(mode="json"))


def read_network_config(folder: Path | str, config: type[ConfigT], what: str) -> tuple[ConfigT, dict[str, Any]]:
    """The config of a saved network, and how it prepares images, without its weights.

    Args:
        what: the kind of network, with its article, for the message.

    Raises:
        ValueError: a file is missing or damaged.
    """
    folder = local_folder(folder)
    for name in (CONFIG_FILE, WEIGHTS_FILE, PREPROCESS_FILE):
        if not (folder / name).is_file():
            raise ValueError(f"{folder} is not {what}: it has no {name}")
    try:
        preprocess: dict[str, Any] = json.loads((folder / PREPROCESS_FILE).read_text(encoding="utf-8"))
        return config.model_validate_json((folder / CONFIG_FILE).read_text(encoding="utf-8")), preprocess
    except ValueError as error:
        raise ValueError(f"{folder} is not {what} of this version: {error}") from error


def load_weights(network: nn.Module, folder: Path | str) -> None:
    """Load the weights of a saved network, strictly, for inference.

    Raises:
        ValueError: they are damaged, or do not fit the config.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    file = local_folder(folder) / WEIGHTS_FILE
    try:
        network.load_state_dict(load_file(file))
    except (RuntimeError, OSError, SafetensorError) as error:
        raise ValueError(f"{file} does not fit {CONFIG_FILE}: {error}") from error
    network.eval().requires_grad_(False)


def network_fingerprint(path: Path | str) -> str:
    """A short hash of the config and weights of a saved network or artifact, or of one file."""
    path, digest = local_folder(path), hashlib.sha256()
    for file in [path] if path.is_file() else [path / CONFIG_FILE, path / WEIGHTS_FILE]:
        with file.open("rb") as stream:
            while block := stream.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()[:20]
