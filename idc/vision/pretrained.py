"""Loading pretrained models of transformers, from a local folder or the hub; fingerprints of our own networks."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

from idc.data.remote_copies import local_folder
from idc.training.artifact import CONFIG, WEIGHTS, read_artifact
from idc.training.hashing import combined_hash, file_hash


def load_pretrained(kind: Any, source: Path | str, setting: str) -> Any:
    """``kind.from_pretrained(source)`` of a class of transformers and a local folder or hub id. No code of the
    folder or the hub is run. ValueError, one readable line that names the setting: there is no such model, or it
    cannot be reached."""
    try:
        return kind.from_pretrained(source, trust_remote_code=False)
    except (OSError, ValueError) as error:
        first = (str(error).splitlines() or [type(error).__name__])[0]
        raise ValueError(
            f"{setting}={str(source)!r} cannot be loaded as {kind.__name__}: {first}; give a local folder or a hub id"
        ) from error
    except pickle.UnpicklingError:  # transformers reads pickled weights by torch's restricted unpickler
        raise ValueError(
            f"{setting}={str(source)!r} cannot be loaded as {kind.__name__}: its weights are no safetensors, and "
            "refer to more than tensors, which may run code; take a copy of the model in safetensors"
        ) from None


def network_fingerprint(path: Path | str) -> str:
    """A short hash of the settings and weights of an artifact, or of one file."""
    path = local_folder(path)
    if path.is_file():
        return file_hash(path)[:20]
    settings = json.dumps(read_artifact(path).config, sort_keys=True)
    return combined_hash({CONFIG: settings, WEIGHTS: file_hash(path / WEIGHTS)})[:20]
