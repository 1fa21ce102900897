"""The images of a collection: all image files below a folder."""

from __future__ import annotations

from collections import Counter
from pathlib import PurePosixPath

from idc.data import files
from idc.data.image_cells import cell_bytes
from idc.data.images import IMAGE_SUFFIXES, OTHER_IMAGE_SUFFIXES, ImageError
from idc.data.manifest import MANIFEST
from idc.data.object_store import first_look
from idc.data.pipeline import Batch
from idc.data.readers.base import printable
from idc.data.store import fingerprint


class ImageCollection:
    """A source of chunks with the columns ``place`` (position in the collection, in the order of the paths),
    ``image_id`` (path relative to the folder), ``data`` (encoded bytes, None with an error) and ``error``.

    Hidden files and files without an image suffix are left out and counted in ``notes``. An image of a format that is
    not supported, such as HEIC, is an image that cannot be read. A file counts by its path and size in the fingerprint.

    Raises:
        ValueError: the folder holds no image.
    """

    def __init__(self, path: str, chunk_size: int) -> None:
        folder = files.locate(path)
        tree = first_look(folder.scan, path)
        self.reader, self.chunk_size = files.Reader(folder), chunk_size
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
            self.notes.append(f"left out: {len(tree.outside):,} links to folders outside of the collection")
        if not images:
            why = "; ".join(self.notes) or "it is empty"
            if (folder / MANIFEST).exists():
                why = f"it is a data set folder (it has a {MANIFEST}); give the folder of the original images"
            raise ValueError(f"{folder} has no images: {why}")
        self.names = [name for name, _ in images]
        self.fingerprint = fingerprint("files", [[printable(name), size] for name, size in images])

    @property
    def num_chunks(self) -> int:
        return -(-len(self.names) // self.chunk_size)

    def read(self, chunk_id: int) -> Batch:
        first = chunk_id * self.chunk_size
        names = self.names[first : first + self.chunk_size]
        images = [self._image(name) for name in names]
        return {
            "place": list(range(first, first + len(names))),
            "image_id": [printable(name) for name in names],
            "data": [data for data, _ in images],
            "error": [error for _, error in images],
        }

    def _image(self, name: str) -> tuple[bytes | None, str | None]:
        try:
            data = cell_bytes(name, self.reader)
        except ImageError as error:
            return None, printable(str(error))
        return (data, None) if printable(name) == name else (None, "not UTF-8: the file's name")
