"""The base of an artifact: the model of others that it needs. It is named, not copied; found on this machine; checked.

A base is given by the name of one that comes with the program, a folder, or a hub id. :func:`locate_base` looks for a
folder of that name, then in the hub's cache on this machine, and asks the hub only where it is allowed to. The result
is compared with the artifact's :class:`BaseName` by a fingerprint that is cheap for 15 GB (:func:`base_fingerprint`).
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ConfigDict

from idc.training.hashing import combined_hash, file_hash
from idc.util import logs
from idc.util.shipped_weights import BASES, shipped_weights

if TYPE_CHECKING:
    from huggingface_hub import DryRunFileInfo

WEIGHTS = "*.safetensors"
DESCRIPTIONS = (
    "config.json", "preprocessor_config.json", "processor_config.json", "special_tokens_map.json", "added_tokens.json",
    "tokenizer*", "vocab*", "merges.txt", "chat_template*", "*.model",
)  # fmt: skip
"""Files of a transformers model that its outputs depend on, besides the weights."""
_DOWNLOADED = ["*.json", "*.txt", "*.jinja", "*.model"]
_DESCRIBED = "descriptions-"
"""Prefix of a fingerprint without the weights."""
HUB = "hf:"
"""A model of the hub, ``hf:ORG/NAME[@REVISION]``, in the place of an artifact."""
_HUB_NAME = re.compile(r"hf:(?P<source>[\w.-]+/[\w.-]+)(?:@(?P<revision>[\w./-]+))?", re.ASCII)
_INDEX = "model.safetensors.index.json"
_PLACES, _PIECE = 16, 4096


@dataclass(frozen=True)
class BaseName:
    """A base model by name, as in config.json of an artifact.

    Attributes:
        source: hub id, absolute path of a folder, or one of :data:`idc.util.shipped_weights.BASES`.
        family: which of our adapters to transformers classes reads it, e.g. ``qwen2_5_vl``.
        fingerprint: of its files, see :func:`base_fingerprint`.
        revision: commit hash on the hub; None for a folder.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")
    source: str
    family: str
    fingerprint: str
    revision: str | None = None

    @classmethod
    def of(cls, source: str, folder: Path, family: str, weights: bool = True) -> BaseName:
        """The name of the base that :func:`locate_base` found for ``source`` in ``folder``; ``weights=False`` leaves
        the weights out, which need not be there."""
        path = Path(source).expanduser()
        name = str(path.absolute()) if path.is_dir() and source not in BASES else source
        cached = folder.parent.name == "snapshots"  # the hub's cache names the folder by the commit
        return cls(name, family, base_fingerprint(folder, weights), folder.name if cached else None)

    def to_dict(self) -> dict[str, str]:
        """JSON-able, without the fields that are None."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    def folder(self, source: str | None = None, *, download: bool = False) -> Path:
        """The base's folder on this machine, checked.

        Args:
            source: look there instead, a folder or hub id (``base.source=/path``).
            download: ask the hub if it is not here.

        Raises:
            ValueError: it is not here, incomplete, or another model.
        """
        folder = locate_base(source or self.source, None if source else self.revision, download=download)
        here = base_fingerprint(folder, not self.fingerprint.startswith(_DESCRIBED))
        if here != self.fingerprint:
            raise ValueError(
                f"{folder} is not the base model that the artifact was trained on, {self}: its fingerprint is "
                f"{here[:12]}, expected {self.fingerprint[:12]}; give the folder of the right one with "
                "base.source=/path"
            )
        return folder

    def __str__(self) -> str:
        return self.source + (f" at revision {self.revision}" if self.revision else "")


def hub_id(name: str) -> tuple[str, str | None]:
    """Model and revision of a name with :data:`HUB`.

    Raises:
        ValueError: it does not have the form ``hf:ORG/NAME[@REVISION]``.
    """
    match = _HUB_NAME.fullmatch(name)
    if match is None:
        raise ValueError(f"{name!r} does not have the form hf:ORG/NAME or hf:ORG/NAME@REVISION")
    return match["source"], match["revision"]


def locate_base(
    source: str,
    revision: str | None = None,
    *,
    download: bool = False,
    check: Callable[[Path], None] = lambda folder: None,
    weights: bool = True,
) -> Path:
    """The folder of a base model on this machine. No network is used unless it has to be downloaded.

    Args:
        source: one of :data:`idc.util.shipped_weights.BASES`, a folder, else a hub id.
        revision: commit, branch or tag of a hub id.
        download: ask the hub if it is not here; an event then names what is downloaded and its size.
        check: refuses, before a download, a folder in which there is only the model's config.json.
        weights: of the model are needed too; without, nothing large is downloaded.

    Raises:
        ValueError: it is not here, or only a part of it, or (with ``download``) the hub does not give it.
    """
    if source in BASES:
        return shipped_weights(BASES[source], "the base model", "give a folder or a hub id with base.source")
    folder = Path(source).expanduser()
    if folder.is_dir():
        return folder
    if source.startswith(("/", ".", "~")):
        raise ValueError(
            f"base.source: there is no folder {source}; give the folder with the model's files, or its hub id "
            "(organisation/name)"
        )
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    wanted = [WEIGHTS, *_DOWNLOADED] if weights else _DOWNLOADED
    options: dict[str, Any] = {"revision": revision, "allow_patterns": wanted}
    try:
        return Path(snapshot_download(source, local_files_only=True, **options))
    except HFValidationError as error:
        raise ValueError(f"base.source: {source!r} is neither a folder here nor a hub id ({error})") from None
    except LocalEntryNotFoundError as error:
        if not download:
            raise ValueError(_missing(source, revision, error)) from None
    check(Path(_ask_hub(source, revision, allow_patterns="config.json")))
    if weights:
        _announce(source, _ask_hub(source, revision, dry_run=True, allow_patterns=wanted))
    return Path(_ask_hub(source, revision, allow_patterns=wanted))


def _ask_hub(source: str, revision: str | None, **options: Any) -> Any:
    """``snapshot_download``; bars of progress only for the weights, on a terminal.

    Raises:
        ValueError: whatever goes wrong.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError
    from huggingface_hub.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    shown = not are_progress_bars_disabled()
    if not sys.stderr.isatty() or "dry_run" in options or WEIGHTS not in options["allow_patterns"]:
        disable_progress_bars()
    try:
        return snapshot_download(source, revision=revision, **options)
    except (RevisionNotFoundError, RepositoryNotFoundError) as error:  # of the second, GatedRepoError is a kind
        field, reason = "source", f"the hub has no model {source}, or it is private: check the name, or `hf auth login`"
        if isinstance(error, GatedRepoError):
            reason = f"{source} is gated; accept its terms on its page of the hub, then `hf auth login`"
        elif isinstance(error, RevisionNotFoundError):
            field, reason = (
                "revision",
                f"the hub has no revision {revision!r} of {source}; take a commit, branch or tag",
            )
        raise ValueError(f"base.{field}: {reason}") from None
    except Exception as error:  # of the hub, of HTTP, of proxies: the types differ between versions
        reason = " ".join(str(error).split())[:200]
        raise ValueError(f"{_missing(source, revision, error)} (asking the hub failed: {reason})") from error
    finally:
        if shown:
            enable_progress_bars()


def _announce(source: str, files: Sequence[DryRunFileInfo]) -> None:
    from huggingface_hub import constants

    missing = [file for file in files if file.will_download]
    size = sum(file.file_size or 0 for file in missing)
    shown = f"{size / 1e9:.1f} GB" if size > 1e8 else f"{size / 1e6:.1f} MB"
    commit = files[0].commit_hash if files else None
    text = f"downloading {source} at revision {commit} from the hub: {shown}, into "
    fields = {"source": source, "revision": commit, "files": len(missing), "bytes": size}
    logs.event("download", text + constants.HF_HUB_CACHE, **fields)


def _missing(source: str, revision: str | None, error: Exception) -> str:
    from huggingface_hub.errors import IncompleteSnapshotError

    part = "only partly" if isinstance(error, IncompleteSnapshotError) else "not"
    at, option = (f" at revision {revision}", f" --revision {revision}") if revision else ("", "")
    return (
        f"the base model {source}{at} is {part} on this machine: download it once with "
        f"`hf download {source}{option}`, or give its folder with base.source=/path"
    )


def base_fingerprint(folder: Path, weights: bool = True) -> str:
    """SHA-256 over a model's descriptions and, of each file of weights, its size, its header (names, types, shapes) and
    sixteen pieces of 4 KiB; with ``weights=False`` over the descriptions alone, and marked so. Weights that differ in a
    few places only may have the same: :func:`full_hash`.

    Raises:
        ValueError: the folder is no complete transformers model in safetensors.
    """
    described = {path.name: file_hash(path) for path in _descriptions(folder)}
    return combined_hash(described | _samples(folder)) if weights else _DESCRIBED + combined_hash(described)


def full_hash(folder: Path) -> str:
    """SHA-256 over all descriptions and weights.

    Raises:
        ValueError: as :func:`base_fingerprint`.
    """
    return combined_hash({path.name: file_hash(path) for path in (*_descriptions(folder), *_weights(folder))})


def _descriptions(folder: Path) -> Iterator[Path]:
    if not (folder / "config.json").is_file():
        raise ValueError(f"{folder} is no transformers model: it has no config.json; give the folder that has it")
    return (
        path
        for path in sorted(folder.iterdir())
        if path.is_file() and any(fnmatch(path.name, pattern) for pattern in DESCRIPTIONS)
    )


def _weights(folder: Path) -> list[Path]:
    weights = sorted(folder.glob(WEIGHTS))
    if (folder / _INDEX).is_file():
        try:
            named = set(json.loads((folder / _INDEX).read_text(encoding="utf-8"))["weight_map"].values())
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise ValueError(f"{folder / _INDEX} is damaged ({error}); download or copy it again") from None
        if lost := sorted(named - {path.name for path in weights}):
            raise ValueError(
                f"{folder} is incomplete: {len(lost)} of {len(named)} files of weights are missing, first {lost[0]}; "
                "download or copy them again"
            )
    if not weights:
        raise ValueError(f"{folder} has no weights in safetensors; convert them, or give another folder")
    return weights


def refuse_damaged(weights: Path, remedy: str) -> None:
    """Check the header of a safetensors file against its size, without reading the weights.

    Raises:
        ValueError: the file is missing or cut off, or its header is damaged.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(weights, framework="np"):
            pass
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{weights} is damaged ({error}); {remedy}") from None


def _samples(folder: Path) -> dict[str, str]:
    hashes = {}
    for path in _weights(folder):
        refuse_damaged(path, "download or copy it again")
        size = path.stat().st_size
        with path.open("rb") as file:
            start = 8 + int.from_bytes(file.read(8), "little")
            file.seek(0)
            digest = hashlib.sha256(file.read(start) + size.to_bytes(8, "little"))
            for piece in range(_PLACES):
                file.seek(start + max(0, size - start - _PIECE) * piece // (_PLACES - 1))
                digest.update(file.read(_PIECE))
        hashes[path.name] = digest.hexdigest()
    return hashes
