"""Default splits: pairs without a split get one, and pairs that share an image get the same one.

Sharing is transitive: if the after image of a pair is the before image of the next, as in a sequence of photographs,
the whole sequence is one group. Images are identified by the bytes that the import stores, as in
:mod:`idc.data.validation.duplicates`, so that an import passes its own validation.

A group that holds pairs with a given split takes that split (the first of train, val and test if there are several).
Other groups are drawn by a hash of their images, independently of each other and of the order of the pairs. A group
that is larger than the share of its split goes to the split with the largest share. A split that got none of very few
groups gets the smallest one of the split with the most: without training and validation pairs nothing can be trained.

Only if some pair has no split, all images are read once for this before the import reads them again. Memory is a few
hundred bytes per pair.
"""

from __future__ import annotations

import hashlib
import itertools
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from idc.data import files
from idc.data.config import Format, ImportConfig
from idc.data.image_cells import cell_bytes
from idc.data.images import ImageError, stored_bytes
from idc.data.pipeline import Batch, good_rows, with_errors
from idc.data.readers.base import SPLIT_NAMES, PairReader
from idc.data.readers.own_parquet import ParquetReader
from idc.data.schema import SPLITS
from idc.data.validation.duplicates import digest
from idc.util.progress import tracked

_SPLIT_BY_LAYOUT: frozenset[Format] = frozenset({"clevr_change", "instruct_pix2pix", "procap_hdf5"})
"""Formats whose readers give every pair a split; checking it would be slow."""
_READERS = 8
"""Images read at the same time."""
_NOT_GIVEN = -1
_NO_PAIR = -2


def with_default_splits(
    source: PairReader, format: Format, config: ImportConfig, *, progress: bool = False
) -> PairReader:
    """The source with a split for every pair; the source itself if all pairs have one."""
    if format in _SPLIT_BY_LAYOUT or not _lacks_splits(source):
        return source
    groups = _Groups(config.max_pixels if source.extra.get("images", True) else None, source.reader)
    chunks = range(source.num_chunks)
    shown = tracked(chunks, len(chunks), "default splits", "chunk", show=progress)
    rows = [groups.add_chunk(source.read(chunk)) for chunk in shown]
    splits, extra = groups.splits(config.val_share, config.test_share)
    ends = list(itertools.accumulate(rows))
    return _WithSplits(source, [splits[end - count : end] for count, end in zip(rows, ends, strict=True)], extra)


class _WithSplits:
    """A source whose pairs without a split get the one chosen for them."""

    def __init__(self, source: PairReader, splits: Sequence[array[int]], extra: dict[str, Any]) -> None:
        self._source, self._splits = source, splits
        self.reader, self.fingerprint = source.reader, source.fingerprint
        self.extra: dict[str, Any] = {**source.extra, **extra, "notes": [*source.extra["notes"], *extra["notes"]]}

    @property
    def num_chunks(self) -> int:
        return self._source.num_chunks

    def read(self, chunk_id: int) -> Batch:
        batch = self._source.read(chunk_id)
        chosen = self._splits[chunk_id]
        columns = zip(batch["split"], chosen, strict=True)
        return {**batch, "split": [SPLITS[c] if _is_empty(value) and c >= 0 else value for value, c in columns]}


def _lacks_splits(source: PairReader) -> bool:
    if isinstance(source, ParquetReader):  # its chunks hold the images too
        return not source.all_split
    for chunk in range(source.num_chunks):
        batch = with_errors(source.read(chunk))
        if any(_is_empty(batch["split"][i]) for i in good_rows(batch)):
            return True
    return False


def _is_empty(split: Any) -> bool:
    return split is None or split == ""


@dataclass
class _Groups:
    """Rows of all chunks in order, joined if they share an image.

    Attributes:
        max_pixels: of an image; None if no image is read and images are identified by their names.
    """

    max_pixels: int | None
    reader: files.Reader
    _parents: array[int] = field(default_factory=lambda: array("q"))
    _given: array[int] = field(default_factory=lambda: array("b"))
    _keys: list[bytes] = field(default_factory=list)
    """The smallest digest of each row's images."""
    _owners: dict[bytes, int] = field(default_factory=dict)
    """Digest of an image -> the first row that has it."""
    _by_name: dict[str, bytes | None] = field(default_factory=dict)
    """Digest of each image file."""

    def add_chunk(self, batch: Batch) -> int:
        """Add the rows of a chunk and return their number."""
        batch = with_errors(batch)
        good = good_rows(batch)
        images = self._images([batch[role][i] for i in good for role in ("before", "after")])
        keys = dict(zip(good, zip(images[::2], images[1::2], strict=True), strict=True))
        for i, error in enumerate(batch["error"]):
            row = len(self._parents)
            self._parents.append(row)
            self._given.append(_NO_PAIR if error is not None else _index(batch["split"][i]))
            digests = [key for key in keys.get(i, ()) if key is not None]
            self._keys.append(min(digests, default=digest(str(batch["pair_id"][i]).encode("utf-8", "replace"))))
            for key in digests:
                self._join(self._owners.setdefault(key, row), row)
        return len(batch["error"])

    def _images(self, cells: Sequence[Any]) -> list[bytes | None]:
        """The digest of each image, None for unusable ones."""
        cells = [cell[0] if isinstance(cell, list) else cell for cell in cells]  # alternative names of one image
        new = list(dict.fromkeys(cell for cell in cells if isinstance(cell, str) and cell not in self._by_name))
        if self.max_pixels is None:
            self._by_name |= {name: digest(name.encode("utf-8", "replace")) if name else None for name in new}
            return [self._by_name[cell] if isinstance(cell, str) else None for cell in cells]
        with ThreadPoolExecutor(_READERS) as pool:
            self._by_name |= zip(new, map(self._digest, pool.map(self._read, new)), strict=True)
        return [self._by_name[cell] if isinstance(cell, str) else self._digest(cell) for cell in cells]

    def _read(self, name: str) -> bytes | None:
        try:
            return cell_bytes(name, self.reader)
        except ImageError:
            return None

    def _digest(self, data: bytes | None) -> bytes | None:
        assert self.max_pixels is not None
        try:
            return digest(stored_bytes(data, self.max_pixels)) if data is not None else None
        except ImageError:
            return None

    def _root(self, row: int) -> int:
        parents = self._parents
        while parents[row] != row:
            parents[row] = row = parents[parents[row]]  # halves the path, so that chains stay short
        return row

    def _join(self, row: int, other: int) -> None:
        row, other = self._root(row), self._root(other)
        self._parents[max(row, other)] = min(row, other)

    def splits(self, val_share: float, test_share: float) -> tuple[array[int], dict[str, Any]]:
        """The split of every row (index into SPLITS; negative for rows that are not pairs), and the values for the
        manifest."""
        roots = [self._root(row) for row in range(len(self._parents))]
        split_of_root, sizes, keys = dict[int, int](), Counter[int](), dict[int, bytes]()
        for row, root in enumerate(roots):
            if (split := self._given[row]) >= 0:
                split_of_root[root] = min(split_of_root.get(root, split), split)
            elif split == _NOT_GIVEN:
                sizes[root] += 1
                keys[root] = min(keys.get(root, self._keys[row]), self._keys[row])
        total = sizes.total()
        shares = (1 - val_share - test_share, val_share, test_share)
        chosen, too_large = dict(split_of_root), 0
        for root in sizes.keys() - split_of_root.keys():
            split = _draw(keys[root], val_share, test_share)
            if sizes[root] > max(1, shares[split] * total):
                split = shares.index(max(shares))
                too_large += 1
            chosen[root] = split
        notes = []
        if too_large:
            largest = SPLITS[shares.index(max(shares))]
            notes.append(f"{too_large} groups of pairs that share images exceed their split: put into {largest}")
        drawn = sizes.keys() - split_of_root.keys()
        for split, share in enumerate(shares):
            fullest = max(range(len(SPLITS)), key=lambda of: sum(chosen[root] == of for root in drawn))
            rest = [root for root in drawn if chosen[root] == fullest]
            if share > 0 and split not in chosen.values() and len(rest) > 1:
                chosen[min(rest, key=lambda root: (sizes[root], keys[root]))] = split
                notes.append(
                    f"so few groups that none was drawn for {SPLITS[split]}: one of {SPLITS[fullest]} was put there"
                )
        extra = {"default_splits": {"pairs": total, "groups": len(sizes)}, "notes": notes}
        return array("b", _each(roots, self._given, chosen)), extra


def _each(roots: Iterable[int], splits: Iterable[int], chosen: dict[int, int]) -> Iterator[int]:
    for root, split in zip(roots, splits, strict=True):
        yield chosen[root] if split == _NOT_GIVEN else split


def _index(split: Any) -> int:
    """Index into SPLITS of a given split; a row with an unknown split is not a pair."""
    if _is_empty(split):
        return _NOT_GIVEN
    name = SPLIT_NAMES.get(str(split).strip().lower())
    return SPLITS.index(name) if name is not None else _NO_PAIR


def _draw(key: bytes, val_share: float, test_share: float) -> int:
    share = int.from_bytes(hashlib.sha256(key).digest()[:8], "big") / 2**64
    if share < test_share:
        return SPLITS.index("test")
    return SPLITS.index("val" if share < test_share + val_share else "train")
