"""Folders in object storage: whether they can be used, copies to and from this machine's disk, and the local cache of
those that are read from there."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import socket
import uuid
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

from pyarrow import fs

from idc.data.files import Location, locate
from idc.data.object_store import KEYS, READ_PATIENCE_S, Unreachable, with_retries
from idc.util.cache import cache_root, make_once

_BLOCK = 8 << 20
_AT_ONCE = 4
_STALE_PATIENCE_S = 5.0


class _ChangedError(Exception):
    """Files changed while they were downloaded."""


class Remote(NamedTuple):
    """A file in a listing.

    Attributes:
        name: relative to the folder.
        size: in bytes.
        version: changes when the file does: its entity tag, else its time.
    """

    name: str
    size: int
    version: str


def resolve_uri(uri: str, field: str) -> Location:
    """The location of a URI (or a path); of one that cannot be used, an error that names the setting.

    Raises:
        ValueError: the scheme is unknown, the URI malformed or with options, or the store does not answer.
    """
    if "://" in uri and "?" in uri:
        raise ValueError(f"{field}: {uri.partition('?')[0]}?...: options in a URI are not taken; set AWS_ENDPOINT_URL")
    if "@" in uri.partition("://")[2].partition("/")[0].removeprefix("anonymous@"):
        raise ValueError(f"{field}: credentials in a URI would be stored with the run; set {KEYS}")
    try:  # S3 is asked for the region of the bucket, unless AWS_REGION or AWS_ENDPOINT_URL is set
        location = with_retries(lambda: locate(uri), uri, 0)
    except ValueError as error:
        raise ValueError(f"{field}: {error}") from None
    if not location.path:
        raise ValueError(f"{field}: {uri!r} names no bucket")
    return location


def check_writable(uri: str, field: str) -> None:
    """Write, read and delete a small object below a URI; nothing for a local path. Takes seconds also if it fails.

    Raises:
        ValueError: one line with the setting, the URI and what to do.
    """
    location = resolve_uri(uri, field)
    if location.local is not None:
        return
    probe = location / f".preflight-{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"

    def written_and_read() -> bool:
        probe.write(b"idc\n")
        try:
            return probe.read() == b"idc\n"
        except FileNotFoundError:
            return False
        finally:
            probe.delete()

    if not with_retries(written_and_read, f"{field}={uri}", 0):
        raise ValueError(f"{field}: does not see what is written to {uri!r}; check AWS_ENDPOINT_URL on every node")


def upload_files(folder: Path, names: Iterable[str], target: Location, patience_s: float) -> None:
    """Upload files of a folder, several at once. Those named config.json go last, each after the old one is gone: a
    reader of an artifact takes a folder without one for no artifact."""
    source = locate(folder)
    last = sorted(name for name in names if name.rpartition("/")[2] == "config.json")
    for name in last:
        remove(target / name, patience_s)
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        list(pool.map(lambda name: copy_file(source / name, target / name, patience_s), sorted({*names} - {*last})))
    for name in last:
        copy_file(source / name, target / name, patience_s)


def copy_file(source: Location, target: Location, patience_s: float) -> None:
    """Copy a file to or from object storage, where it appears when it is complete."""

    def copy() -> None:
        with (
            source.filesystem.open_input_stream(source.path, compression=None) as stream,
            target.filesystem.open_output_stream(target.path, compression=None) as out,
        ):
            shutil.copyfileobj(stream, out, _BLOCK)

    with_retries(copy, target.text if source.local else source.text, patience_s)


def download_files(source: Location, names: Iterable[str], folder: Path, patience_s: float) -> None:
    """Download files of a folder, several at once."""
    names = list(names)
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        list(pool.map(lambda name: copy_file(source / name, locate(folder) / name, patience_s), names))


def remove(file: Location, patience_s: float) -> None:
    """Delete a file, if it is there."""
    with_retries(file.delete, file.text, patience_s)


def remove_folder(folder: Location, patience_s: float) -> None:
    """Delete a folder with all that is in it, if it is there."""

    def delete() -> None:
        if folder.is_folder():
            folder.filesystem.delete_dir(folder.path)

    with_retries(delete, folder.text, patience_s)


def sizes(folder: Location, patience_s: float) -> dict[str, int]:
    """Name, relative to the folder, -> bytes of all files below it; empty if there is no such folder."""
    files = with_retries(lambda: folder.scan().files, folder.text, patience_s)
    return {_below(folder.relative(file.path), folder): file.size for file in files}


def remote_listing(folder: Location, patience_s: float) -> list[Remote]:
    """All files below a folder, sorted by name; empty if there is no such folder. One request per file."""

    def look() -> list[Remote]:
        infos = folder.filesystem.get_file_info(fs.FileSelector(folder.path, allow_not_found=True, recursive=True))
        files = sorted((info for info in infos if info.type == fs.FileType.File), key=lambda info: info.path)
        names = [_below(folder.relative(info.path.lstrip("/")), folder) for info in files]
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            tags = list(pool.map(lambda info: _tag(folder.filesystem, info), files))
        return [Remote(name, info.size, tag) for name, info, tag in zip(names, files, tags, strict=True)]

    return with_retries(look, folder.text, patience_s)


def _tag(filesystem: fs.FileSystem, info: fs.FileInfo) -> str:
    with filesystem.open_input_file(info.path) as stream:
        metadata = stream.metadata() or {}
    return str(metadata.get(b"ETag") or metadata.get("ETag") or info.mtime_ns)


def _below(name: str, folder: Location) -> str:
    """A name in a listing, which on object storage may be any text."""
    if name.startswith("/") or ".." in name.split("/"):
        raise ValueError(f"{folder} has a file {name!r}, whose name leads out of the folder; delete it there")
    return name


# -- the cache -----------------------------------------------------------------------------------------------------


def local_folder(path: str | os.PathLike[str], *, stale: bool = False, patience_s: float = READ_PATIENCE_S) -> Path:
    """The local folder of a path; of a URI, a copy in the cache.

    A copy belongs to the files that the URI holds now, by their sizes and entity tags (or times): if they change, they
    are fetched again. Processes that want the same one wait for the first. The folder is complete when it appears, and
    is not to be written to.

    Args:
        stale: if the store does not answer soon, the copy there is that was used last.

    Raises:
        ValueError: the URI cannot be used, holds nothing, keeps changing, or the store does not answer.
    """
    text = os.fspath(path)
    if not is_uri(text):
        return Path(text)
    text = text.rstrip("/")
    location = resolve_uri(text, "artifact")
    if location.local is not None:
        return Path(location.local)
    name = re.sub(r"[^A-Za-z0-9._-]+", "_", location.text.partition("://")[2])[-48:].strip("._")
    root, stem = cache_root(), f"{name}-{_short(location.text)}"
    copies = sorted(root.glob(f"{stem}-*"), key=lambda copy: copy.stat().st_mtime) if stale else []
    patience_s = min(patience_s, _STALE_PATIENCE_S) if copies else patience_s
    try:
        for _ in range(3):
            listing = remote_listing(location, patience_s)
            if not listing:
                raise ValueError(f"{text} holds no files; check the URI, and AWS_ENDPOINT_URL")
            download = partial(_download, location, listing, patience_s=patience_s)
            with suppress(_ChangedError):
                copy = make_once(root / f"{stem}-{_short(repr(listing))}", download)
                break
        else:
            raise ValueError(f"{text} changed while it was read, three times; try again when its writer is done")
    except Unreachable as error:
        if not copies:
            raise ValueError(str(error)) from None
        copy = copies[-1]
    os.utime(copy)  # the last one used is the newest
    return copy / (location.name or "files")


def is_uri(path: str | os.PathLike[str]) -> bool:
    """Whether a path is a URI, whose files are read through the cache."""
    return "://" in os.fspath(path)


def _download(location: Location, listing: list[Remote], folder: Path, patience_s: float) -> Path:
    """Download the files of a listing into a folder, which is returned.

    Raises:
        _ChangedError: they changed meanwhile.
    """
    inner = folder / (location.name or "files")
    try:
        download_files(location, [file.name for file in listing], inner, patience_s)
        whole = all((inner / file.name).stat().st_size == file.size for file in listing)
    except FileNotFoundError:  # deleted since it was listed
        raise _ChangedError from None
    if not whole or remote_listing(location, patience_s) != listing:
        raise _ChangedError
    return folder


def _short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]
