"""The directories of a TIFF, read within bounds, before Pillow, libtiff or GDAL opens the file.

A few kilobytes may declare a tile of 2 GiB for an image of 8x8 pixels, 60,000 directories or millions of values of a
tag, and decoders allocate or parse them. Both byte orders, BigTIFF, and the directories under SubIFDs and EXIF are
read; a damaged directory ends its chain here, as it does in the decoders, which report it.
"""

from __future__ import annotations

import struct
from io import SEEK_END, BytesIO
from typing import BinaryIO, NamedTuple

MAX_BLOCKS = 200_000
"""Most tiles or strips that Pillow is given; it makes an object of each."""
_MAX_VALUES = 200_000
"""Most numbers of a tag; a palette of 16 bits has 196,608. Of offsets and lengths of blocks also one for each block."""
_MAX_RATIONALS = 1000
"""Most fractions of a tag: Pillow makes an object of each."""
_MAX_DIRECTORIES, _MAX_TAGS = 1000, 1000
"""Most directories of a file, and most tags of one. GDAL keeps some 7 kB of memory for a directory."""
_MAX_SHARED, _SHARED_BYTES = 4, 2**26
"""Directories may share values, as a colour profile. The values of a directory have at most as many bytes as the file,
those of all at most so many times as many, or so many."""
_GDAL_METADATA = 42112
_MAX_ITEMS = 5000
"""Most elements of GDAL's metadata, which are XML: the time that GDAL takes grows with their square."""
_MAX_BYTES = {34735: 2**16, 34736: 2**16, 34737: 2**16, _GDAL_METADATA: 2**20, 42113: 2**10}
"""Most bytes of the tags that GDAL parses: coordinate systems (three), its metadata, the value of no data."""
_LARGE_BLOCK = 2**26
"""Bytes of a decoded block that are accepted whatever the size of the image: a tile of 4096x4096 in four bands."""

_WIDTH, _LENGTH, _BITS, _SAMPLES, _PLANAR = 256, 257, 258, 277, 284
_ROWS_PER_STRIP, _TILE_WIDTH, _TILE_LENGTH = 278, 322, 323
_SHAPE = (_WIDTH, _LENGTH, _BITS, _SAMPLES, _PLANAR, _ROWS_PER_STRIP, _TILE_WIDTH, _TILE_LENGTH)
_BLOCKS = (273, 279, 324, 325)
"""Offsets and lengths of strips and of tiles."""
_POINTERS = (330, 34665, 34853, 40965)
"""Tags that hold positions of directories: SubIFDs, EXIF, GPS, interoperability."""
_GEO_KEYS, _GRID, _PIXEL_SCALE, _TIE_POINTS = 34735, 34264, 33550, 33922
"""Tags of a GeoTIFF: its coordinate system (GeoKeyDirectory), and where its pixels are in it: by a matrix
(ModelTransformation), or by the size of a pixel (ModelPixelScale) and a point (ModelTiepoint)."""
_INTEGERS = {1: "B", 3: "H", 4: "I", 6: "b", 8: "h", 9: "i", 13: "I", 16: "Q", 17: "q", 18: "Q"}
_BYTES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 1, 8: 2, 9: 4, 10: 8, 11: 4, 12: 8, 13: 4, 16: 8, 17: 8, 18: 8}
"""Bytes of a value, by type."""
_TEXTS, _RATIONALS = (1, 2, 7), (5, 10)
"""Types whose values stay bytes in decoders, and fractions."""


class _Tag(NamedTuple):
    """A tag: the type and number of its values, and the position of the first."""

    type: int
    length: int
    position: int


class Directory(dict[int, _Tag]):
    """The tags of an image by their numbers, and the values of those of its size as attributes: 0 where there is none.

    Args:
        shape: values of the tags of its size.
    """

    def __init__(self, tags: dict[int, _Tag], shape: dict[int, list[int]]) -> None:
        super().__init__(tags)
        self.width, self.height = (max(shape.get(tag, [0]), default=0) for tag in (_WIDTH, _LENGTH))
        self.bands = max(shape.get(_SAMPLES, [1]), default=1)
        self.bits = max(shape.get(_BITS, [1]), default=1)
        planes = shape.get(_PLANAR) == [2]
        across, down = (max(shape.get(tag, [0]), default=0) for tag in (_TILE_WIDTH, _TILE_LENGTH))
        if not (across and down):
            rows = max(shape.get(_ROWS_PER_STRIP, [0]), default=0)
            across, down = self.width, min(rows or self.height, self.height)
        self.block_width, self.block_height = across, down
        self.block_bytes = across * down * (1 if planes else self.bands) * self.bits // 8
        blocks = -(-self.width // max(1, across)) * -(-self.height // max(1, down))
        self.blocks = blocks * (self.bands if planes else 1)

    @property
    def stored_blocks(self) -> int:
        """Tiles or strips of which a position or a length is stored."""
        return max((self[number].length for number in _BLOCKS if number in self), default=0)

    @property
    def image_bytes(self) -> int:
        """Bytes of all decoded pixels."""
        return self.width * self.height * self.bands * self.bits // 8


def tiff_directories(file: BinaryIO, others: bool = True) -> list[Directory]:
    """The directories of a TIFF, that of its first image first; none of another file, or if the first one is damaged.

    Args:
        others: also those of further images: pages, masks, overviews. Pillow reads them only when they are asked for,
            GDAL all.

    Raises:
        ValueError: it has more directories, tags or values than images have: which.
    """
    length = file.seek(0, SEEK_END)
    reader = _Reader(file, length)
    pending = [reader.first()]
    directories: list[Directory] = []
    visited: set[int] = set()
    while pending:
        position = pending.pop()
        if not position or position in visited:
            continue
        visited.add(position)
        if len(visited) > _MAX_DIRECTORIES:
            raise ValueError(f"it has more than {_MAX_DIRECTORIES} directories")
        try:
            directory, children, following = reader.directory(position)
        except (struct.error, OverflowError):  # beyond the end of the file
            continue
        directories.append(directory)
        pending += [*children, following] if others else children
    return directories


def refuse_large_blocks(directory: Directory, image: Directory) -> None:
    """Check the tiles or strips of a directory, each of which is decoded whole.

    Args:
        image: that of the first image.

    Raises:
        ValueError: they are large, and larger than the first image.
    """
    if directory.block_bytes > max(_LARGE_BLOCK, image.image_bytes):
        raise ValueError(
            f"an image of {image.width} x {image.height} pixels is stored in blocks of {directory.block_width} x "
            f"{directory.block_height}, each of which is decoded whole"
        )


class GeoHeader(NamedTuple):
    """What the header of a GeoTIFF declares.

    Attributes:
        bits: of a sample, the most of all bands.
    """

    height: int
    width: int
    bands: int
    bits: int


def geo_header(data: bytes) -> GeoHeader | None:
    """The header of an image file that is a GeoTIFF: it names a coordinate system, and where its pixels are. None for
    every other file, one of a damaged header or too much in it included, which decoders report. GDAL is not needed; it
    also reads headers of bands and types that Pillow does not decode."""
    try:
        directories = tiff_directories(BytesIO(data), others=False)
    except ValueError:
        return None
    for image in directories[:1]:
        if _GEO_KEYS in image and (_GRID in image or (_PIXEL_SCALE in image and _TIE_POINTS in image)):
            return GeoHeader(image.height, image.width, image.bands, image.bits)
    return None


class _Reader:
    def __init__(self, file: BinaryIO, length: int) -> None:
        self._file, self._length = file, length
        magic = self._at(0, 4)
        self._order = ">" if magic[:2] == b"MM" else "<"
        self._big = magic in (b"II+\0", b"MM\0+")
        # Pillow also accepts the number of the other byte order.
        self._is_tiff = self._big or magic in (b"II*\0", b"MM\0*", b"MM*\0", b"II\0*")
        self._read = 0  # bytes of values

    def first(self) -> int:
        """Position of the first directory, or 0."""
        try:
            return self._unpack("Q", 8)[0] if self._big else self._unpack("I", 4)[0] if self._is_tiff else 0
        except struct.error:
            return 0

    def directory(self, position: int) -> tuple[Directory, list[int], int]:
        """A directory, the positions of those under it, and that of the next one or 0."""
        offset, inline = ("Q", 8) if self._big else ("I", 4)
        (count,) = self._unpack("Q" if self._big else "H", position)
        if count > _MAX_TAGS:
            raise ValueError(f"a directory has {count:,} tags, more than {_MAX_TAGS}")
        start = position + (8 if self._big else 2)
        size = 4 + 2 * inline
        read = self._read
        tags: dict[int, _Tag] = {}
        shape: dict[int, list[int]] = {}
        children: list[int] = []
        for index in range(count):
            at = start + index * size
            number, kind, values = self._unpack(f"HH{offset}", at)
            length = values * _BYTES.get(kind, 0)
            where = at + 4 + inline
            if length > inline:
                (where,) = self._unpack(offset, where)
                self._read += length
                if self._read - read > self._length:
                    raise ValueError("the values of its tags overlap")
            tag = _Tag(kind, values, where)
            self._check(number, tag, length)
            if number in tags and number in _SHAPE + _BLOCKS:  # decoders differ in which they take
                raise ValueError(f"tag {number} is there twice")
            if number in _SHAPE:
                shape[number] = self._numbers(tag)
            elif number in _POINTERS:
                children += self._numbers(tag)
            tags[number] = tag
        directory = Directory(tags, shape)
        if directory.stored_blocks > max(_MAX_VALUES, directory.blocks):
            raise ValueError(f"it has positions of {directory.stored_blocks:,} blocks, and {directory.blocks:,} blocks")
        following = self._at(start + count * size, inline)
        return directory, children, int.from_bytes(following, "big" if self._order == ">" else "little")

    def _check(self, number: int, tag: _Tag, length: int) -> None:
        if number in _POINTERS:
            most = _MAX_DIRECTORIES
        elif number in _SHAPE:
            most = 2**16
        elif number in _BLOCKS or tag.type in _TEXTS:
            most = self._length
        else:
            most = _MAX_RATIONALS if tag.type in _RATIONALS else _MAX_VALUES
        if tag.length > most:
            raise ValueError(f"tag {number} has {tag.length:,} values, more than {most:,}")
        if length > _MAX_BYTES.get(number, length):
            raise ValueError(f"tag {number} has {length:,} bytes, more than {_MAX_BYTES[number]:,}")
        if self._read > max(_MAX_SHARED * self._length, _SHARED_BYTES):
            raise ValueError(f"its tags have more bytes than {_MAX_SHARED} times the file")
        if number == _GDAL_METADATA and self._at(tag.position, length).count(b"<") > 2 * _MAX_ITEMS:
            raise ValueError(f"its metadata (tag {number}) have more than {_MAX_ITEMS:,} items")

    def _numbers(self, tag: _Tag) -> list[int]:
        if tag.type not in _INTEGERS:
            return []
        return list(self._unpack(f"{tag.length}{_INTEGERS[tag.type]}", tag.position))

    def _unpack(self, kinds: str, position: int) -> tuple[int, ...]:
        kinds = self._order + kinds
        return struct.unpack(kinds, self._at(position, struct.calcsize(kinds)))

    def _at(self, position: int, size: int) -> bytes:
        if position > self._length:  # more than a file has, or than seek takes
            return b""
        self._file.seek(position)
        return self._file.read(size)
