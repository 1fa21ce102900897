"""SHA-256 of files and folders: what artifacts, evaluations and sweeps are identified by, wherever they are stored."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path


def file_hash(path: Path | str) -> str:
    """SHA-256 of a file, in hex."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def contents(path: Path | str) -> dict[str, str]:
    """Name -> SHA-256 of the files in a folder, or of a single file (whose name is then ``.``)."""
    root = Path(path)
    files = sorted(file for file in root.rglob("*") if file.is_file()) if root.is_dir() else [root]
    return {str(file.relative_to(root)): file_hash(file) for file in files}


def combined_hash(hashes: Mapping[str, str]) -> str:
    """One hash of named hashes."""
    return hashlib.sha256(json.dumps(hashes, sort_keys=True).encode()).hexdigest()


def content_or_id(source: str) -> str:
    """Identifies a model that is given by a local path or a hub id: a hash of the content at the path, or the id."""
    return combined_hash(contents(source)) if Path(source).exists() else source
