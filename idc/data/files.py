"""Paths and URIs: one way to reach a file, local or in any pyarrow (or fsspec) filesystem."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
from pyarrow import fs


def resolve(path: str | os.PathLike[str], filesystem: fs.FileSystem | None = None) -> tuple[fs.FileSystem, str]:
    """The filesystem of ``path`` and the path inside it (absolute for local files).

    ``path`` is a local path or a URI: ``file://``, ``s3://``, ``gs://``, ``hdfs://`` go to pyarrow, any other scheme
    (``memory://``, ``az://``, ...) to fsspec. With ``filesystem`` given, ``path`` is a path inside that one.

    Raises:
        ValueError: the scheme is not known, or the URI is malformed.
    """
    text = os.fspath(path)
    if filesystem is not None:
        return filesystem, text
    if "://" not in text:
        return fs.LocalFileSystem(), str(Path(text).expanduser().absolute())
    try:
        return fs.FileSystem.from_uri(text)
    except pa.ArrowInvalid as exc:
        scheme, rest = text.split("://", 1)
        if "Unrecognized filesystem" not in str(exc):
            raise ValueError(f"{text!r} is not a usable URI: {exc}") from exc
        import fsspec

        try:
            handler = fs.FSSpecHandler(fsspec.filesystem(scheme))
        except (ValueError, ImportError) as problem:
            raise ValueError(f"{text!r}: no filesystem for the scheme {scheme!r} ({problem})") from problem
        return fs.PyFileSystem(handler), rest


def join(base: str, name: str) -> str:
    """``name`` under the folder ``base``; ``name`` itself where it is absolute or a URI."""
    if "://" in name or name.startswith("/"):
        return name
    return base.rstrip("/") + "/" + name if base else name


def read_bytes(path: str | os.PathLike[str], filesystem: fs.FileSystem | None = None) -> bytes:
    """The whole file.

    Raises:
        FileNotFoundError: there is no such file.
        OSError: it cannot be read (a folder, no permission, a failed transfer).
    """
    filesystem, inner = resolve(path, filesystem)
    if isinstance(filesystem, fs.LocalFileSystem):
        return Path(inner).read_bytes()
    with filesystem.open_input_stream(inner) as stream:
        return stream.read()


def write_atomic(filesystem: fs.FileSystem, path: str, data: bytes) -> None:
    """Write ``data`` so that a reader sees the old file or the whole new one, also after a kill."""
    temporary = temporary_name(path)
    with filesystem.open_output_stream(temporary) as stream:
        stream.write(data)
    move(filesystem, temporary, path)


def temporary_name(path: str) -> str:
    """A name beside ``path`` that no other process uses and that :mod:`idc.data.store` clears away later."""
    folder, _, name = path.rpartition("/")
    return f"{folder}/.tmp-{os.getpid()}-{os.urandom(4).hex()}-{name}"


def move(filesystem: fs.FileSystem, source: str, target: str) -> None:
    """Rename, replacing ``target`` if it is there (atomic on local disks; object stores copy a whole object)."""
    if isinstance(filesystem, fs.LocalFileSystem):
        os.replace(source, target)
        return
    if isinstance(filesystem, fs.SubTreeFileSystem) and isinstance(filesystem.base_fs, fs.LocalFileSystem):
        os.replace(filesystem.base_path + source, filesystem.base_path + target)
        return
    try:
        filesystem.move(source, target)  # object stores replace; a few file systems refuse to
    except OSError:
        if not exists(filesystem, target):
            raise
        filesystem.delete_file(target)
        filesystem.move(source, target)


def exists(filesystem: fs.FileSystem, path: str) -> bool:
    """Whether there is a file or folder at ``path``."""
    return filesystem.get_file_info(path).type != fs.FileType.NotFound


class File(NamedTuple):
    """A file in a listing; ``path`` is complete, inside its filesystem."""

    path: str
    size: int

    @property
    def base_name(self) -> str:
        return self.path.rpartition("/")[2]


def list_files(filesystem: fs.FileSystem, folder: str, recursive: bool = False) -> list[File]:
    """The files (not folders) in ``folder``, sorted by path; an empty list if there is no such folder."""
    if isinstance(filesystem, fs.LocalFileSystem):  # pyarrow gives up on the whole folder for one name not in UTF-8
        found = []
        for here, folders, names in os.walk(folder, followlinks=True):
            found += [File(path, os.stat(path).st_size) for n in names if os.path.isfile(path := f"{here}/{n}")]
            if not recursive:
                folders.clear()
        return sorted(found)
    selector = fs.FileSelector(folder, allow_not_found=True, recursive=recursive)
    infos = [info for info in filesystem.get_file_info(selector) if info.type == fs.FileType.File]
    if folder.startswith("/"):
        return sorted(File(info.path, info.size) for info in infos)
    return sorted(File(info.path.lstrip("/"), info.size) for info in infos)  # fsspec's memory:// adds a slash


class Reader:
    """Reads files named relative to a folder, absolutely or by URI; keeps the filesystems it has met. Picklable."""

    def __init__(self, filesystem: fs.FileSystem, folder: str) -> None:
        self.filesystem = filesystem
        self.folder = folder
        self._known: dict[str, tuple[fs.FileSystem, str]] = {}

    def read(self, name: str) -> bytes:
        """The whole file; errors as :func:`read_bytes`, ``ValueError`` for a URI that cannot be used."""
        scheme, separator, rest = name.partition("://")
        if not separator:
            return read_bytes(join(self.folder, name), self.filesystem)
        host, _, tail = rest.partition("/")
        if "?" in name or scheme == "file":
            return read_bytes(name)
        root = f"{scheme}://{host}"
        if root not in self._known:
            filesystem, inner = resolve(name)
            self._known[root] = filesystem, inner.removesuffix(tail)  # s3 keeps the host in the path, hdfs does not
        filesystem, base = self._known[root]
        return read_bytes(base + tail, filesystem)
