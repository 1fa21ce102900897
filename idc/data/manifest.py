"""The manifest of a data set folder: what is in it, what it was made of, what was rejected and why."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import posixpath
import shlex
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from idc.config import missing
from idc.data import files
from idc.data.object_store import first_look
from idc.data.schema import INSTRUCTION_SCHEMA_VERSION, PAIR_SCHEMA_VERSION
from idc.data.textfiles import JsonError, decode_text, parse_json

AnyPath = str | os.PathLike[str] | files.Location
"""Types that public functions take for a folder: a local path, a URI or a location."""

MANIFEST = "manifest.json"
SCHEMA_VERSIONS = {"pairs": PAIR_SCHEMA_VERSION, "instructions": INSTRUCTION_SCHEMA_VERSION, "procedures": 1}
"""Version of the columns of each kind of folder; a folder with a newer one is refused."""

IMAGE_COLUMNS = {"before", "after", "images"}
"""Columns of images, or of lists of images; a mask is not one."""
_PLAIN_NAME = r"^[^/]+$"


class Reject(NamedTuple):
    """A row that is left out. ``reason`` begins with a short stable code: ``"truncated image: before, ..."``."""

    row_id: str
    reason: str

    @property
    def code(self) -> str:
        """The reason up to its first colon."""
        return self.reason.split(":", 1)[0]


class ManifestPart(BaseModel):
    """One part file of a complete folder, and its rejects file if it has one; both lie in the folder itself."""

    model_config = ConfigDict(extra="forbid")
    file: str = Field(pattern=_PLAIN_NAME)
    num_rows: int
    rejects: str | None = Field(default=None, pattern=_PLAIN_NAME)


class Manifest(BaseModel):
    """The content of ``manifest.json``. The counts are those of a complete folder; before that they are zero."""

    model_config = ConfigDict(extra="forbid")
    kind: str
    schema_version: int
    fingerprint: str
    """Hash of the configuration and the inputs: equal fingerprints mean equal rows."""
    complete: bool
    num_chunks: int
    num_rows: int = 0
    rows_by_split: dict[str, int] = {}
    num_without_captions: int = 0
    num_rejected: int = 0
    reject_reasons: dict[str, int] = {}
    parts: list[ManifestPart] = []
    inputs: dict[str, str] = {}
    """What readers of the folder need besides it, a path or a URI by the setting that named it. Absolute here; the file
    has :func:`input_name`."""
    config: dict[str, Any] = {}
    extra: dict[str, Any] = {}

    @property
    def has_images(self) -> bool:
        """False for pairs that were imported without their images; see :mod:`idc.data.readers.base`."""
        return bool(self.extra.get("images", True))

    def need_images(self, path: object, columns: Iterable[str] | None = None) -> None:
        """Refuse to read pixels from pairs that have none.

        Args:
            columns: the columns to be read; without images among them nothing is refused. Default: all.

        Raises:
            ValueError: the folder at ``path`` has annotations but no images.
        """
        if not self.has_images and (columns is None or IMAGE_COLUMNS & set(columns)):
            raise ValueError(
                f"{path} has annotations alone, no images: it can be validated, and captions made elsewhere can be "
                "scored against it (predictions=FILE); for anything else import it again with its images"
            )


def fingerprint(*things: Any) -> str:
    """A short hash of JSON-able values, the same on every machine and in every process."""
    text = json.dumps(things, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:20]


def read_manifest(path: AnyPath, kind: str | None = None, command: str | None = None) -> Manifest:
    """The manifest of a folder, complete or not.

    Args:
        command: that makes the folder, for the message if it has no manifest. Default: an import, of pairs.

    Raises:
        ValueError: there is none, it is damaged, of a newer version, or not of the wanted ``kind``.
    """
    folder = files.locate(path)
    location = folder / MANIFEST
    if not first_look(location.exists, str(path)):
        raise ValueError(f"{path} is not a data set folder: it has no {MANIFEST}{_import_first(path, kind, command)}")
    try:
        content = parse_json(decode_text(location.read(), "surrogateescape"))
        version, newest = content["schema_version"], SCHEMA_VERSIONS.get(content["kind"], 1)
        if version > newest:
            raise ValueError(f"{location} has schema version {version}, this program reads up to {newest}; update it")
        manifest = Manifest.model_validate(content)
    except (JsonError, KeyError, TypeError, ValidationError) as exc:
        raise ValueError(f"{location} is not a manifest of this project: {exc}") from exc
    manifest.inputs = {setting: input_path(folder, name) for setting, name in manifest.inputs.items()}
    if kind is not None and manifest.kind != kind:
        raise ValueError(f"{path} holds {manifest.kind}, not {kind}")
    return manifest


def input_name(folder: files.Location, path: str) -> str:
    """The name by which the manifest of a folder refers to another file or folder, the inverse of :func:`input_path`:
    relative to the folder if both lie on a disk below a common folder, so that the tree can be moved or mounted
    elsewhere as a whole; else absolute, or the URI that ``path`` is."""
    if "://" in path:
        return path
    real = os.path.realpath(os.path.expanduser(path))
    if folder.local is None:
        return real
    here = os.path.realpath(folder.local)
    return real if os.path.commonpath([real, here]) == "/" else os.path.relpath(real, here)


def input_path(folder: files.Location, name: str) -> str:
    """The absolute path or the URI of what the manifest of a folder calls ``name``."""
    if "://" in name or name.startswith("/"):
        return name
    if folder.local is not None:
        return os.path.normpath(os.path.join(os.path.realpath(folder.local), name))
    scheme, _, path = folder.text.partition("://")
    return f"{scheme}://{posixpath.normpath(posixpath.join(path, name))}"


def _import_first(path: AnyPath, kind: str | None, command: str | None) -> str:
    """The end of the message for a folder without a manifest, which may be what an import reads."""
    if kind == "procedures":
        return "; build procedures first: python jobs/pretrain_procap.py only=procedures --help"
    if kind not in (None, "pairs"):
        return ""
    target = next(name for name in ("data/mine/pairs", "data/mine/imported") if name != str(path).rstrip("/"))
    default = f"python jobs/import_dataset.py source={shlex.quote(str(path))} out={target}"
    return f"; import it first: {command or default}"


def uncaptioned(path: AnyPath, split: str = "") -> str:
    """The error of a training on pairs of which none has a caption."""
    return (
        f"no pair {f'of the split {split!r} ' * bool(split)}in {path} has a caption, and captions are what is learned; "
        "import it again with captions (docs/data.md), or take another folder"
    )


def missing_pairs(
    path: str, field: str, kind: str | None = "pairs", inputs: Sequence[str] = (), captions: bool = False
) -> Iterator[str]:
    """Errors if the local folder at ``path`` does not exist, or is not a complete folder of pairs (or of ``kind``) with
    images (and ``captions``), or if one of its ``inputs`` is missing (a URI is checked when it is read)."""
    if "://" in path:
        return
    faults = list(missing(path, field))
    if not faults:
        try:
            manifest = complete_manifest(path, kind)
            manifest.need_images(path)
            if captions and 0 < manifest.num_rows == manifest.num_without_captions:
                faults.append(f"{field}: {uncaptioned(path)}")
            for name in inputs:
                if (needed := manifest.inputs.get(name)) is not None:
                    again = f"the {manifest.kind} refer to it; build them again with build.{name}=..."
                    faults += [f"{fault}: {again}" for fault in missing(needed, f"{field}: {name}")]
        except ValueError as error:
            faults.append(f"{field}: {error}")
    yield from faults


def complete_manifest(path: AnyPath, kind: str | None = None) -> Manifest:
    """As :func:`read_manifest`, of a complete folder.

    Raises:
        ValueError: also if the folder is not complete.
    """
    manifest = read_manifest(path, kind)
    if not manifest.complete:
        raise ValueError(f"{path} is not complete; run the job that builds it again, it continues where it stopped")
    return manifest


@contextlib.contextmanager
def explain_read_errors(file: files.Location) -> Iterator[None]:
    """Context in which a file of a data set folder is read; its faults become errors with advice.

    Raises:
        ValueError: the file is missing, cannot be read, or has bytes that cannot be decoded.
    """
    try:
        yield
    except FileNotFoundError:
        raise ValueError(f"{file} is missing; build the folder again with --overwrite") from None
    except (OSError, pa.ArrowException) as error:
        raise ValueError(
            f"{file} is damaged or cannot be read ({error}); copy it again, or build the folder again with --overwrite"
        ) from error
