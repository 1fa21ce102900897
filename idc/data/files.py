"""Paths and URIs: one way to reach a file, local or in any pyarrow (or fsspec) file system.

A public function takes ``str | Path | Location`` and calls :func:`locate` once; from there the :class:`Location`
travels, a file system and a path in it together.

The names inside a data set were chosen by its author. :class:`Reader` opens them: by default only regular files below
the source, after resolving links; :class:`Access` lists what a format or a setting allows in addition. Long because
every way to a file is here, so that none goes around the bounds and the retries.
"""

from __future__ import annotations

import contextlib
import os
import posixpath
import stat
import tempfile
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
from pyarrow import fs

from idc.data.object_store import PatientFile, Result, with_retries
from idc.data.textfiles import spellings

_LONGEST_KEY = 1024
"""Bytes of a name in object storage. To a longer one the answer is that to an expired token: 400, without a reason."""
_WHOLE_OBJECTS = ("s3", "gcs", "abfs")
"""File systems in which a file appears, whole, when its writer closes it."""


@dataclass(frozen=True)
class Location:
    """A file or folder, local or remote, that may or may not exist. Requests to other hosts go through
    :func:`idc.data.object_store.with_retries`, and raise as it does.

    Attributes:
        filesystem: the file system.
        path: the path in it, absolute if local, without a slash at its end.
        text: the path or URI as the user wrote it, for messages.
    """

    filesystem: fs.FileSystem
    path: str
    text: str

    def __str__(self) -> str:
        return self.text

    def __truediv__(self, name: str) -> Location:
        return Location(self.filesystem, join(self.path, name), join(self.text, name))

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rpartition("/")[2]

    @property
    def parent(self) -> Location:
        """The folder that this lies in."""
        folder = self.path.rpartition("/")[0] or ("/" if self.path.startswith("/") else "")
        return Location(self.filesystem, folder, self.text.rpartition("/")[0] or ".")

    @property
    def local(self) -> str | None:
        """The path on the local disk; None if the file system is remote."""
        return self.path if isinstance(self.filesystem, fs.LocalFileSystem) else None

    def relative(self, path: str) -> str:
        """The name, relative to this folder, of a file that :meth:`list_files` or :meth:`scan` found in it."""
        return path[len(self.path.rstrip("/")) + 1 :] if self.path else path

    def exists(self) -> bool:
        """Whether there is a file or folder here."""
        return self._type() != fs.FileType.NotFound

    def is_file(self) -> bool:
        return self._type() == fs.FileType.File

    def is_folder(self) -> bool:
        return self._type() == fs.FileType.Directory

    def _type(self) -> fs.FileType:
        return self._ask(lambda: self.filesystem.get_file_info(self.path).type)

    def _ask(self, operation: Callable[[], Result]) -> Result:
        return operation() if self.local is not None else with_retries(operation, self.text)

    def open(self) -> pa.NativeFile:
        """The file, opened for reading at any position. OSError: a local one is no regular file (:meth:`read`)."""
        if self.local is not None:
            check_regular(self.path)
            return self.filesystem.open_input_file(self.path)
        file = self._ask(lambda: self.filesystem.open_input_file(self.path))
        return pa.PythonFile(PatientFile(file, self.text), "r")

    def read(self, max_bytes: int | None = None) -> bytes:
        """The whole file. A local one must be a regular file: opening a FIFO or a device may never return.

        Raises:
            FileNotFoundError: there is no such file.
            TooLarge: it has more than ``max_bytes``.
            OSError: it cannot be read (a folder, a device, no permission).
        """
        local = self.local
        if local is not None:
            size = check_regular(local)
            if max_bytes is not None and size > max_bytes:
                raise TooLarge(f"{size:,} bytes, more than {max_bytes:,}")
            return Path(local).read_bytes()
        if len(os.fsencode(self.path.partition("/")[2])) > _LONGEST_KEY:
            raise FileNotFoundError(f"a name of more than {_LONGEST_KEY} bytes")

        def fetch() -> bytes:
            with self.filesystem.open_input_stream(self.path, compression=None) as stream:
                return stream.read(None if max_bytes is None else max_bytes + 1)

        data = with_retries(fetch, self.text)
        if max_bytes is not None and len(data) > max_bytes:
            raise TooLarge(f"more than {max_bytes:,} bytes")
        return data

    @contextmanager
    def replacing(self) -> Iterator[pa.NativeFile]:
        """A stream to write to; when the block ends without an error, its content replaces the file.

        A reader sees the old file or the whole new one, also after a kill. What goes to another host is first written
        to this machine's disk. :class:`idc.data.store.DatasetFolder` deletes what a killed writer left.
        """
        folder, _, name = self.path.rpartition("/")
        path = f"{folder}/.tmp-{os.getpid()}-{os.urandom(4).hex()}-{name}"
        temporary = Location(self.filesystem, path, path)
        if self.local is None:
            with tempfile.NamedTemporaryFile(suffix=name) as spool:
                with fs.LocalFileSystem().open_output_stream(spool.name) as stream:
                    yield stream
                with pa.memory_map(spool.name) as written:
                    content = written.read_buffer()
                    self._ask(lambda: self._upload(content, temporary))
            return
        try:
            with self.filesystem.open_output_stream(path) as stream:
                yield stream
            os.replace(path, self.path)
        except BaseException:  # a full disk gets its space back
            with contextlib.suppress(OSError):
                temporary.delete()
            raise

    def _upload(self, content: pa.Buffer, temporary: Location) -> None:
        target = self if self.filesystem.type_name in _WHOLE_OBJECTS else temporary
        with self.filesystem.open_output_stream(target.path, compression=None) as stream:
            stream.write(content)  # at once: an interrupt between two writes would leave half a file
        if target is temporary:
            try:
                self.filesystem.move(target.path, self.path)
            except OSError:  # a few file systems refuse to replace
                self.delete()
                self.filesystem.move(target.path, self.path)

    def write(self, data: bytes) -> None:
        """Write the whole file at once, as :meth:`replacing`."""
        with self.replacing() as stream:
            stream.write(data)

    def delete(self) -> None:
        """Delete the file, if it is there."""
        with contextlib.suppress(FileNotFoundError):
            self._ask(lambda: self.filesystem.delete_file(self.path))

    def list_files(self) -> list[File]:
        """The files (not folders) in this folder, sorted by path; an empty list if there is no such folder."""
        if self.local is None:
            return self._select(recursive=False)
        tree = Tree()  # pyarrow refuses a folder with one name not in UTF-8
        if os.path.isdir(self.path):
            _list(self.path, tree)
        return sorted(tree.files)

    def _select(self, recursive: bool) -> list[File]:
        selector = fs.FileSelector(self.path, allow_not_found=True, recursive=recursive)
        slash = "" if self.path.startswith("/") else "/"  # fsspec's memory:// adds one
        infos = self._ask(lambda: self.filesystem.get_file_info(selector))
        return sorted(File(info.path.lstrip(slash), info.size) for info in infos if info.type == fs.FileType.File)

    def scan(self, follow_links: bool = False) -> Tree:
        """Everything below this folder, sorted by path; an empty tree if there is no such folder.

        Args:
            follow_links: also into folders that do not lie below this one.

        Raises:
            ValueError: a folder in it cannot be listed.
        """
        root = self.local
        if root is None:
            return Tree(files=self._select(recursive=True))
        tree = Tree()
        if os.path.isdir(root):
            _walk(root, follow_links, tree)
        return Tree(sorted(tree.files), sorted(tree.special), sorted(tree.outside))


def locate(path: str | os.PathLike[str] | Location) -> Location:
    """The location of a local path or a URI; a location is returned as it is.

    ``file://``, ``s3://``, ``gs://`` and ``hdfs://`` go to pyarrow, any other scheme (``memory://``, ``az://``, ...)
    to fsspec.

    Raises:
        ValueError: the scheme is not known, or the URI is malformed.
    """
    if isinstance(path, Location):
        return path
    text = os.fspath(path)
    filesystem, inner = _resolve(text)
    return Location(filesystem, inner.rstrip("/") or inner[:1], text)


_OPTIONS = {"gs": "?retry_limit_seconds=10", "gcs": "?retry_limit_seconds=10", "s3": "?allow_delayed_open=true"}
"""Google's client would try for 15 minutes; callers that can wait try again themselves. S3 takes a small file in one
request instead of three."""


def _resolve(text: str) -> tuple[fs.FileSystem, str]:
    if "://" not in text:
        return fs.LocalFileSystem(), str(Path(text).expanduser().absolute())
    try:
        options = _OPTIONS.get(text.partition("://")[0], "") if "?" not in text else ""
        return fs.FileSystem.from_uri(text + options)
    except pa.ArrowInvalid as exc:
        scheme, rest = text.split("://", 1)
        if "Unrecognized filesystem" not in str(exc):
            raise ValueError(f"{text!r} is not a valid URI: {exc}") from exc
        import fsspec

        try:
            handler = fs.FSSpecHandler(fsspec.filesystem(scheme))
        except (ValueError, ImportError) as problem:
            raise ValueError(f"{text!r}: no filesystem for the scheme {scheme!r} ({problem})") from problem
        return fs.PyFileSystem(handler), rest


def join(base: str, name: str) -> str:
    """``name`` in the folder ``base``; ``name`` itself if it is absolute or a URI."""
    if "://" in name or name.startswith("/"):
        return name
    return base.rstrip("/") + "/" + name if base else name


def check_regular(path: str) -> int:
    """The size of a local file.

    Raises:
        OSError: it does not exist, or it is a FIFO, a device or a socket, whose opening may never return.
    """
    info = os.stat(path)
    if not stat.S_ISREG(info.st_mode) and not stat.S_ISDIR(info.st_mode):
        raise OSError("it is not a regular file")
    return info.st_size


class TooLarge(OSError):
    """A file with more bytes than its reader accepts."""


class File(NamedTuple):
    """A file in a listing; ``path`` is complete, inside its file system."""

    path: str
    size: int

    @property
    def base_name(self) -> str:
        return self.path.rpartition("/")[2]


@dataclass
class Tree:
    """All files below a folder; each real folder is visited once (by device and inode), so links cannot make a loop.

    Attributes:
        files: the regular files.
        special: what is neither a file nor a folder: FIFOs, sockets, devices, dangling links.
        outside: links to folders that do not lie below the folder and were not followed.
    """

    files: list[File] = field(default_factory=list)
    special: list[str] = field(default_factory=list)
    outside: list[str] = field(default_factory=list)


def _walk(root: str, follow_links: bool, tree: Tree) -> None:
    """Visits real folders first, so that files which a link reaches too are listed under their real names."""
    seen: set[tuple[int, int]] = set()
    folders, links = deque([root]), deque[str]()
    while folders or links:
        here = folders.popleft() if folders else links.popleft()
        try:
            info = os.stat(here)
            if (info.st_dev, info.st_ino) in seen:
                continue
            inside = Tree()
            below = _list(here, inside)
        except OSError as exc:
            raise ValueError(f"{here} cannot be listed: {exc.strerror}") from exc
        seen.add((info.st_dev, info.st_ino))
        tree.files += inside.files
        tree.special += inside.special
        folders += below
        for link in inside.outside:
            if follow_links or is_below(link, root):
                links.append(link)
            else:
                tree.outside.append(link)


def _list(folder: str, tree: Tree) -> list[str]:
    """Sorts the entries of one local folder into ``tree``, ``outside`` being all links to folders; returns its real
    folders."""
    folders: list[str] = []
    with os.scandir(folder) as entries:
        for entry in sorted(entries, key=lambda entry: entry.name):
            path = f"{folder.rstrip('/')}/{entry.name}"
            try:
                info = entry.stat()
            except OSError:  # a link to nothing, or to itself
                tree.special.append(path)
                continue
            if stat.S_ISDIR(info.st_mode):
                (tree.outside if entry.is_symlink() else folders).append(path)
            elif stat.S_ISREG(info.st_mode):
                tree.files.append(File(path, info.st_size))
            else:
                tree.special.append(path)
    return folders


def is_below(path: str, folder: str) -> bool:
    """Whether a local path lies in a local folder, after resolving links in both."""
    return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder))


class OutsideSource(ValueError):
    """A name in a data set that leads to a file its reader may not read; the message gives the reason."""


@dataclass(frozen=True)
class Access:
    """Files that the names in a source may reach in addition to regular files below it.

    Attributes:
        links: follow links that lead out of the source.
        local: any local file by an absolute path or ``file://``. For tables: people list their images that way.
        outside: with ``local``, also by a relative path that leaves the source, through ``..`` or a link.
        remote: with ``local``, also other hosts, by URI.
    """

    links: bool = False
    local: bool = False
    outside: bool = False
    remote: bool = False


BELOW = Access()
"""Files below the source."""
LOCAL = Access(local=True)
"""Files below the source, and any file of this machine by its absolute path."""


class Reader:
    """Reads the files that a data set names, as far as ``access`` allows; caches the file systems it meets. Picklable.

    Names are relative to ``folder``; with ``access.local`` also absolute or URIs.
    """

    def __init__(self, folder: Location, access: Access = BELOW) -> None:
        self.folder = folder
        self.access = access
        self._known: dict[str, Location] = {}

    def read(self, name: str, max_bytes: int | None = None) -> bytes:
        """The whole file. If there is none, one whose name is spelled otherwise: see :func:`spellings`.

        Raises:
            OutsideSource: the name leads out of what may be read; nothing was opened.
            ValueError: the name is a malformed URI.
            OSError: as :meth:`Location.read`.
        """
        try:
            return self.locate(name).read(max_bytes)
        except FileNotFoundError:
            for spelling in spellings(name):
                if (location := self.locate(spelling)).exists():
                    return location.read(max_bytes)
            raise

    def exists(self, name: str) -> bool:
        """Whether there is such a file or folder; raises as :meth:`read`."""
        return self.locate(name).exists()

    def locate(self, name: str) -> Location:
        """The location of a name.

        Raises:
            OutsideSource: it leads out of what may be read; no host was contacted.
            ValueError: the name is a malformed URI.
        """
        if "://" in name:
            return self._locate_uri(name)
        location = self.folder / name
        if name.startswith("/"):
            if self.access.local:
                return location
            raise OutsideSource("names in this layout are those of files below the source")
        if self.access.outside:
            return location
        leaves = posixpath.normpath(name).split("/")[0] == ".." if self.access.local else ".." in name.split("/")
        if leaves:
            raise OutsideSource(
                "a relative path that leaves the table's folder; allow_outside=true reads it, or write an absolute path"
                if self.access.local
                else "names in this layout are those of files below the source"
            )
        local, root = location.local, self.folder.local
        if not self.access.links and local is not None and root is not None and not is_below(local, root):
            raise OutsideSource("a link leads out of the source; follow_links=true follows it")
        return location

    def _locate_uri(self, name: str) -> Location:
        scheme, _, rest = name.partition("://")
        host, _, tail = rest.partition("/")
        if not self.access.local:
            raise OutsideSource("names in this layout are those of files below the source, not URIs")
        if "?" in name or "@" in host:
            raise OutsideSource("options and credentials in a URI are not taken from data; set them in the environment")
        if scheme == "file":
            if not isinstance(self.folder.filesystem, fs.LocalFileSystem):
                raise OutsideSource("a table on another host names a file of this machine")
            return locate(name)
        if not self.access.remote:
            raise OutsideSource(f"{scheme}:// is on another host; allow_remote=true reads it")
        root = f"{scheme}://{host}"
        if root not in self._known:
            filesystem, inner = with_retries(lambda: _resolve(name), root)
            self._known[root] = Location(filesystem, inner.removesuffix(tail), root)  # s3 keeps the host in the path,
        base = self._known[root]  # hdfs does not
        return Location(base.filesystem, base.path + tail, name)
