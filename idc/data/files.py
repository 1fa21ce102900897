"""Paths and URIs: one way to reach a file, local or in any pyarrow (or fsspec) filesystem.

Whoever wrote a data set chose the names in it. :class:`Reader` opens them, and by default nothing but regular files
below the source, after resolving links; :class:`Access` has what a format or a setting allows besides.
"""

from __future__ import annotations

import os
import stat
from collections import deque
from dataclasses import dataclass, field
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


def local_path(filesystem: fs.FileSystem, path: str) -> str | None:
    """The path on the local disk of a path inside a filesystem; None if the filesystem is not local."""
    if isinstance(filesystem, fs.LocalFileSystem):
        return path
    if isinstance(filesystem, fs.SubTreeFileSystem) and isinstance(filesystem.base_fs, fs.LocalFileSystem):
        return str(filesystem.base_path) + path
    return None


def read_bytes(
    path: str | os.PathLike[str], filesystem: fs.FileSystem | None = None, max_bytes: int | None = None
) -> bytes:
    """The whole file. A local one must be a regular file: opening a FIFO or a device may never end.

    Raises:
        FileNotFoundError: there is no such file.
        TooLarge: it has more than ``max_bytes``.
        OSError: it cannot be read (a folder, a device, no permission, a failed transfer).
    """
    filesystem, inner = resolve(path, filesystem)
    local = local_path(filesystem, inner)
    if local is not None:
        size = check_regular(local)
        if max_bytes is not None and size > max_bytes:
            raise TooLarge(f"{size:,} bytes, more than {max_bytes:,}")
        return Path(local).read_bytes()
    with filesystem.open_input_stream(inner) as stream:
        data: bytes = stream.read(None if max_bytes is None else max_bytes + 1)
    if max_bytes is not None and len(data) > max_bytes:
        raise TooLarge(f"more than {max_bytes:,} bytes")
    return data


def check_regular(path: str) -> int:
    """The size of a local file.

    Raises:
        OSError: it is not there, or it is a FIFO, a device or a socket, whose opening may never end.
    """
    info = os.stat(path)
    if not stat.S_ISREG(info.st_mode) and not stat.S_ISDIR(info.st_mode):
        raise OSError("it is not a regular file")
    return info.st_size


class TooLarge(OSError):
    """A file with more bytes than its reader takes."""


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
    local, local_target = local_path(filesystem, source), local_path(filesystem, target)
    if local is not None and local_target is not None:
        os.replace(local, local_target)
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


def list_files(filesystem: fs.FileSystem, folder: str) -> list[File]:
    """The files (not folders) in ``folder``, sorted by path; an empty list if there is no such folder."""
    if isinstance(filesystem, fs.LocalFileSystem):  # pyarrow gives up on the whole folder for one name not in UTF-8
        return sorted(_entries(folder).files) if os.path.isdir(folder) else []
    return _select(filesystem, folder, recursive=False)


def _select(filesystem: fs.FileSystem, folder: str, recursive: bool) -> list[File]:
    selector = fs.FileSelector(folder, allow_not_found=True, recursive=recursive)
    infos = [info for info in filesystem.get_file_info(selector) if info.type == fs.FileType.File]
    if folder.startswith("/"):
        return sorted(File(info.path, info.size) for info in infos)
    return sorted(File(info.path.lstrip("/"), info.size) for info in infos)  # fsspec's memory:// adds a slash


@dataclass
class Tree:
    """All files below a folder, each real folder once (by device and inode), so that links cannot make a loop.

    Attributes:
        files: the regular files.
        special: what is neither a file nor a folder: FIFOs, sockets, devices, links that lead nowhere.
        outside: links to folders that do not lie below the folder and were not followed.
    """

    files: list[File] = field(default_factory=list)
    special: list[str] = field(default_factory=list)
    outside: list[str] = field(default_factory=list)


def scan(filesystem: fs.FileSystem, folder: str, follow_links: bool = False) -> Tree:
    """All that lies below ``folder``, sorted by path; an empty tree if there is no such folder.

    Args:
        follow_links: also into folders that do not lie below ``folder``.

    Raises:
        ValueError: a folder in it cannot be listed.
    """
    root = local_path(filesystem, folder)
    if root is None:
        return Tree(files=_select(filesystem, folder, recursive=True))
    found = Tree()
    if os.path.isdir(root):
        _walk(root, follow_links, found)
    base = len(root) - len(folder)
    return Tree(
        files=sorted(File(file.path[base:], file.size) for file in found.files),
        special=sorted(path[base:] for path in found.special),
        outside=sorted(path[base:] for path in found.outside),
    )


def _walk(root: str, follow_links: bool, found: Tree) -> None:
    """Real folders first, so that what can be reached by a link as well has its real name."""
    seen: set[tuple[int, int]] = set()
    folders, links = deque([root]), deque[str]()
    while folders or links:
        if folders:
            here = folders.popleft()
        else:
            here = links.popleft()
            if not follow_links and not is_below(here, root):
                found.outside.append(here)
                continue
        try:
            info = os.stat(here)
            if (info.st_dev, info.st_ino) in seen:
                continue
            entries = _entries(here)
        except OSError as exc:
            raise ValueError(f"{here} cannot be listed: {exc.strerror}") from exc
        seen.add((info.st_dev, info.st_ino))
        found.files += entries.files
        found.special += entries.special
        folders += entries.folders
        links += entries.links


@dataclass
class _Entries:
    """What one local folder holds; paths are complete."""

    files: list[File] = field(default_factory=list)
    folders: list[str] = field(default_factory=list)
    links: list[str] = field(default_factory=list)
    """To folders."""
    special: list[str] = field(default_factory=list)


def _entries(folder: str) -> _Entries:
    out = _Entries()
    with os.scandir(folder) as entries:
        for entry in sorted(entries, key=lambda entry: entry.name):
            path = f"{folder.rstrip('/')}/{entry.name}"
            try:
                info = entry.stat()
            except OSError:  # a link to nothing, or to itself
                out.special.append(path)
                continue
            if stat.S_ISDIR(info.st_mode):
                (out.links if entry.is_symlink() else out.folders).append(path)
            elif stat.S_ISREG(info.st_mode):
                out.files.append(File(path, info.st_size))
            else:
                out.special.append(path)
    return out


def is_below(path: str, folder: str) -> bool:
    """Whether a local path lies in a local folder, after resolving links in both."""
    return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder))


class OutsideSource(ValueError):
    """A name in a data set that leads to where its reader may not read; the message says why."""


@dataclass(frozen=True)
class Access:
    """What the names in a source may reach besides regular files below it.

    Attributes:
        links: follow links that lead out of the source.
        local: any local file, by an absolute path, ``..`` or ``file://``. For tables, whose user wrote the paths.
        remote: with ``local``, also other hosts, by URI.
    """

    links: bool = False
    local: bool = False
    remote: bool = False


BELOW = Access()
"""Files below the source."""
LOCAL = Access(local=True)
"""Any file of this machine."""


class Reader:
    """Reads the files that a data set names, as far as ``access`` allows; keeps the filesystems it has met. Picklable.

    Names are relative to ``folder``; with ``access.local`` also absolute or URIs.

    Args:
        also: local folders below which an absolute name may lie, whatever ``access`` says.
    """

    def __init__(
        self, filesystem: fs.FileSystem, folder: str, access: Access = BELOW, also: tuple[str, ...] = ()
    ) -> None:
        self.filesystem = filesystem
        self.folder = folder
        self.access = access
        self._also = also
        self._known: dict[str, tuple[fs.FileSystem, str]] = {}

    def read(self, name: str, max_bytes: int | None = None) -> bytes:
        """The whole file.

        Raises:
            OutsideSource: the name leads out of what may be read; nothing was opened.
            ValueError: a URI that cannot be used.
            OSError: as :func:`read_bytes`.
        """
        filesystem, path = self.locate(name)
        return read_bytes(path, filesystem, max_bytes)

    def exists(self, name: str) -> bool:
        """Whether there is such a file or folder; raises as :meth:`read`."""
        filesystem, path = self.locate(name)
        return exists(filesystem, path)

    def locate(self, name: str) -> tuple[fs.FileSystem, str]:
        """The filesystem of a name and the path inside it.

        Raises:
            OutsideSource: it leads out of what may be read; no host was asked.
            ValueError: a URI that cannot be used.
        """
        if "://" in name:
            return self._locate_uri(name)
        path = join(self.folder, name)
        if self.access.local:
            return self.filesystem, path
        if name.startswith("/") and any(is_below(name, folder) for folder in self._also):
            return self.filesystem, path
        if name.startswith("/") or ".." in name.split("/"):
            raise OutsideSource("names in this layout are those of files below the source")
        local, root = local_path(self.filesystem, path), local_path(self.filesystem, self.folder)
        if not self.access.links and local is not None and root is not None and not is_below(local, root):
            raise OutsideSource("a link leads out of the source; follow_links=true follows it")
        return self.filesystem, path

    def _locate_uri(self, name: str) -> tuple[fs.FileSystem, str]:
        scheme, _, rest = name.partition("://")
        host, _, tail = rest.partition("/")
        if not self.access.local:
            raise OutsideSource("names in this layout are those of files below the source, not URIs")
        if "?" in name or "@" in host:
            raise OutsideSource("options and credentials in a URI are not taken from data; set them in the environment")
        if scheme == "file":
            if not isinstance(self.filesystem, fs.LocalFileSystem):
                raise OutsideSource("a table on another host names a file of this machine")
            return resolve(name)
        if not self.access.remote:
            raise OutsideSource(f"{scheme}:// is on another host; allow_remote=true reads it")
        root = f"{scheme}://{host}"
        if root not in self._known:
            filesystem, inner = resolve(name)
            self._known[root] = filesystem, inner.removesuffix(tail)  # s3 keeps the host in the path, hdfs does not
        filesystem, base = self._known[root]
        return filesystem, base + tail
