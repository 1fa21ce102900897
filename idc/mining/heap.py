"""The images of a collection: a folder of files, or the before and after images of a folder of pairs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from itertools import accumulate
from pathlib import PurePosixPath

from idc.data import files
from idc.data.image_cells import cell_bytes
from idc.data.images import IMAGE_SUFFIXES, OTHER_IMAGE_SUFFIXES, ImageError
from idc.data.mapped_rows import MappedRows
from idc.data.pipeline import Batch, FolderSource
from idc.data.readers.base import printable
from idc.data.store import MANIFEST, fingerprint

_ROLES = ("before", "after")

HeapImages = Callable[[int, str], bytes]
"""The encoded bytes of an image, by its position and id; picklable and small. Raises ImageError if unreadable."""


def open_heap(path: str, chunk_size: int) -> FilesHeap | PairsHeap:
    """The image collection at ``path``: a folder with a manifest is one of pairs, any other one of image files.

    As a source of chunks it has the columns ``place`` (position in the collection), ``image_id``, ``data`` (encoded
    bytes, None with an error) and ``error``. ``images`` reads single ones; ``notes`` say what was left out.

    Raises:
        ValueError: it holds no image, or a data set folder without images.
    """
    folder = files.locate(path)
    if (folder / MANIFEST).exists():
        return PairsHeap(folder, chunk_size)
    return FilesHeap(folder, chunk_size)


class FilesHeap:
    """All image files below a folder, sorted by path; ``image_id`` is the path relative to it.

    Hidden files and files without an image suffix are left out and counted in ``notes``. An image of a format that is
    not supported, such as HEIC, is an image that cannot be read. A file counts by its path and size in the fingerprint.
    """

    def __init__(self, folder: files.Location, chunk_size: int) -> None:
        tree = folder.scan()
        self.images: HeapImages = partial(_file_bytes, files.Reader(folder))
        self.chunk_size = chunk_size
        images: list[tuple[str, int]] = []
        ignored: Counter[str] = Counter()
        for file in tree.files:
            name = folder.relative(file.path)
            suffix = PurePosixPath(name).suffix.lower()
            if any(part.startswith(".") for part in name.split("/")):
                ignored["hidden files"] += 1
            elif suffix in IMAGE_SUFFIXES or suffix in OTHER_IMAGE_SUFFIXES:
                images.append((name, file.size))
            else:
                ignored[f"{printable(suffix)} files" if suffix else "files without a suffix"] += 1
        self.notes = [f"left out: {count:,} {kind}" for kind, count in sorted(ignored.items())]
        if tree.special:
            names = ", ".join(printable(folder.relative(path)) for path in tree.special[:3])
            self.notes.append(f"left out: {len(tree.special):,} that are not files: {names}")
        if tree.outside:
            self.notes.append(f"left out: {len(tree.outside):,} links to folders outside of the heap")
        if not images:
            raise ValueError(f"{folder} has no images: {'; '.join(self.notes) or 'it is empty'}")
        self.names, self.num_images = [name for name, _ in images], len(images)
        self.fingerprint = fingerprint("files", [[printable(name), size] for name, size in images])

    @property
    def num_chunks(self) -> int:
        return -(-self.num_images // self.chunk_size)

    def read(self, chunk_id: int) -> Batch:
        positions = list(range(self.num_images)[chunk_id * self.chunk_size : (chunk_id + 1) * self.chunk_size])
        names = [printable(self.names[position]) for position in positions]
        images = [self._image(position) for position in positions]
        return {
            "place": positions,
            "image_id": names,
            "data": [data for data, _ in images],
            "error": [error for _, error in images],
        }

    def _image(self, position: int) -> tuple[bytes | None, str | None]:
        name = self.names[position]
        try:
            data = self.images(position, name)
        except ImageError as error:
            return None, printable(str(error))
        return (data, None) if printable(name) == name else (None, "not UTF-8: the file's name")


def _file_bytes(reader: files.Reader, position: int, image_id: str) -> bytes:
    return cell_bytes(image_id, reader)


class PairsHeap:
    """The images of a folder of pairs; ``image_id`` is ``<pair_id>/before`` or ``<pair_id>/after``."""

    def __init__(self, folder: files.Location, chunk_size: int) -> None:
        self.images: HeapImages = _PairImages(folder)
        self.source = FolderSource(
            folder, chunk_size=max(1, chunk_size // 2), columns=["pair_id", *_ROLES], kind="pairs"
        )
        self.num_images, self.num_chunks = 2 * self.source.manifest.num_rows, self.source.num_chunks
        if not self.num_images:
            raise ValueError(f"{folder} has no pairs")
        self.fingerprint = fingerprint("pairs", self.source.manifest.fingerprint)
        self.notes: list[str] = []
        self._starts = [0, *accumulate(map(self.source.rows_of, range(self.num_chunks)))]

    def read(self, chunk_id: int) -> Batch:
        pairs = self.source.read(chunk_id)
        first, count = 2 * self._starts[chunk_id], 2 * len(pairs["pair_id"])
        return {
            "place": list(range(first, first + count)),
            "image_id": [f"{name}/{role}" for name in pairs["pair_id"] for role in _ROLES],
            "data": [data for both in zip(pairs["before"], pairs["after"], strict=True) for data in both],
            "error": [None] * count,
        }


class _PairImages:
    """Images by their positions; the pairs are memory-mapped at the first read."""

    def __init__(self, folder: files.Location) -> None:
        self.folder = folder
        self._rows: MappedRows | None = None

    def __call__(self, position: int, image_id: str) -> bytes:
        self._rows = self._rows or MappedRows(self.folder, _ROLES)
        data = self._rows[position // 2][_ROLES[position % 2]]
        assert isinstance(data, bytes)
        return data
