"""Default splits: pairs without a split get one, and pairs that share an image get the same one.

Sharing is transitive: if the after image of a pair is the before image of the next, as in a sequence of photographs,
the whole sequence is one group. Images are identified by the bytes that the import stores, as in
:mod:`idc.data.validation.duplicates`, so that an import passes its own validation.

A group that holds pairs with a given split takes that split (the first of train, val and test if there are several).
Other groups are drawn by a hash of their images, independently of each other and of the order of the pairs. A group
that is larger than the share of its split goes to the split with the largest share. A split that got none of very few
groups gets the smallest one of the split with the most: without training and validation pairs nothing can be trained.
A small validation split gets further groups, the smallest ones, up to ten changed and ten unchanged pairs, but no more
than a quarter of either: the best weights would else be chosen by a few pairs, or by pairs of one kind.

Only if some pair has no split, all images are read once for this before the import reads them again. Memory is a few
hundred bytes per pair.
"""

from __future__ import annotations

import hashlib
import itertools
from array import array
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from idc.data import files
from idc.data.config import Format, ImportConfig
from idc.data.image_cells import cell_bytes
from idc.data.images import ImageError, stored_bytes
from idc.data.pipeline import Batch, good_rows, with_errors
from idc.data.readers.base import SPLIT_NAMES, PairReader
from idc.data.readers.parquet import ParquetReader
from idc.data.schema import SPLITS
from idc.data.validation.checks import is_changed
from idc.data.validation.duplicates import digest
from idc.util.progress import tracked

SaysNoChange = Callable[[str], bool]
"""Whether a caption says that nothing changed; passed in, because the package of its rules depends on this one."""

_READERS = 8
"""Images read at the same time."""
_VALIDATION, _SMALL = 10, 100
"""Pairs of each kind that the validation split is to have; from the other number on, it is left as it was drawn."""
_KINDS: dict[bool | None, str] = {True: "changed", False: "unchanged", None: "unspecified"}
_NOT_GIVEN, _NO_PAIR = -1, -2
"""In place of a split: it is to be chosen; the row is rejected."""


def with_default_splits(
    source: PairReader,
    format: Format,
    config: ImportConfig,
    *,
    progress: bool = False,
    says_no_change: SaysNoChange | None = None,
) -> PairReader:
    """The source with a split for every pair; the source itself if all pairs have one. ``says_no_change`` judges the
    captions of pairs without a change type."""
    if format == "instruct_pix2pix" or not _lacks_splits(source):  # all its pairs have one; to look would be slow
        return source
    groups = _Groups(config.max_pixels if source.extra.get("images", True) else None, source.reader, says_no_change)
    chunks = range(source.num_chunks)
    shown = tracked(chunks, len(chunks), "default splits", "chunk", show=progress)
    ends = list(itertools.accumulate(groups.add_chunk(source.read(chunk)) for chunk in shown))
    splits, extra = groups.splits(config.val_share, config.test_share)
    return _WithSplits(source, [splits[start:end] for start, end in itertools.pairwise([0, *ends])], extra)


class _WithSplits:
    def __init__(self, source: PairReader, splits: Sequence[array[int]], extra: dict[str, Any]) -> None:
        self._source, self._splits, self.num_chunks = source, splits, source.num_chunks
        self.reader, self.fingerprint = source.reader, source.fingerprint
        self.extra: dict[str, Any] = {**source.extra, **extra, "notes": [*source.extra["notes"], *extra["notes"]]}

    def read(self, chunk_id: int) -> Batch:
        batch = self._source.read(chunk_id)
        columns = zip(batch["split"], self._splits[chunk_id], strict=True)
        return {**batch, "split": [SPLITS[c] if value in (None, "") and c >= 0 else value for value, c in columns]}


def _lacks_splits(source: PairReader) -> bool:
    if isinstance(source, ParquetReader):  # its chunks hold the images too
        return not source.all_split
    batches = (with_errors(source.read(chunk)) for chunk in range(source.num_chunks))
    return any(batch["split"][i] in (None, "") for batch in batches for i in good_rows(batch))


class _Groups:
    """Rows of all chunks in order, joined if they share an image.

    Args:
        max_pixels: of an image; None if no image is read and images are identified by their names.
    """

    def __init__(self, max_pixels: int | None, reader: files.Reader, says_no_change: SaysNoChange | None) -> None:
        self.max_pixels, self.reader, self.says_no_change = max_pixels, reader, says_no_change
        self._changed: list[bool | None] = []
        self._captioned = False
        self._parents, self._given = array("q"), array("b")
        self._keys: list[bytes] = []
        """The smallest digest of each row's images."""
        self._owners: dict[bytes, int] = {}
        """Digest of an image -> the first row that has it."""
        self._by_name: dict[str, bytes | None] = {}
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
            self._changed.append(self._is_changed(batch["change_type"][i], batch["meta"][i], batch["captions"][i]))
            digests = [key for key in keys.get(i, ()) if key is not None]
            self._keys.append(min(digests, default=digest(str(batch["pair_id"][i]).encode("utf-8", "replace"))))
            for key in digests:
                roots = self._root(self._owners.setdefault(key, row)), self._root(row)
                self._parents[max(roots)] = min(roots)
        return len(batch["error"])

    def _is_changed(self, change_type: Any, meta: Any, captions: Any) -> bool | None:
        changed = is_changed(change_type or None, meta if isinstance(meta, dict) else {})
        texts = [captions] if isinstance(captions, str) else list(captions or ())
        self._captioned |= bool(texts)
        if changed is not None or self.says_no_change is None or not texts:
            return changed
        return not all(isinstance(text, str) and self.says_no_change(text) for text in texts)

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

    def splits(self, val_share: float, test_share: float) -> tuple[array[int], dict[str, Any]]:
        """The split of every row (index into SPLITS; negative for rows that are not pairs), and the values for the
        manifest."""
        roots = [self._root(row) for row in range(len(self._parents))]
        chosen, sizes, keys = dict[int, int](), Counter[int](), dict[int, bytes]()
        for row, root in enumerate(roots):
            if (split := self._given[row]) >= 0:
                chosen[root] = min(chosen.get(root, split), split)
            elif split == _NOT_GIVEN:
                sizes[root] += 1
                keys[root] = min(keys.get(root, self._keys[row]), self._keys[row])
        total, shares = sizes.total(), (1 - val_share - test_share, val_share, test_share)
        drawn, largest, too_large = sizes.keys() - chosen.keys(), shares.index(max(shares)), 0
        for root in drawn:
            split = _draw(keys[root], val_share, test_share)
            if sizes[root] > max(1, shares[split] * total):
                split = largest
                too_large += 1
            chosen[root] = split
        notes = []
        if too_large:
            notes.append(
                f"{too_large} groups of pairs that share images exceed their split: put into {SPLITS[largest]}"
            )
        for split, share in enumerate(shares):
            fullest = max(range(len(SPLITS)), key=lambda of: sum(chosen[root] == of for root in drawn))
            rest = [root for root in drawn if chosen[root] == fullest]
            if share > 0 and split not in chosen.values() and len(rest) > 1:
                chosen[min(rest, key=lambda root: (sizes[root], keys[root]))] = split
                notes.append(
                    f"so few groups that none was drawn for {SPLITS[split]}: one of {SPLITS[fullest]} was put there"
                )
        if val_share and drawn:
            notes += self._fill_validation(roots, chosen, sorted(drawn, key=lambda root: (sizes[root], keys[root])))
        extra = {"default_splits": {"pairs": total, "groups": len(sizes)}, "notes": notes}
        every = zip(roots, self._given, strict=True)
        return array("b", [chosen[root] if split == _NOT_GIVEN else split for root, split in every]), extra

    def _fill_validation(self, roots: list[int], chosen: dict[int, int], drawn: Sequence[int]) -> list[str]:
        """Put drawn groups of the training split into a small validation split; returns a warning where it stays too
        small."""
        train, val = SPLITS.index("train"), SPLITS.index("val")
        kinds = dict[int, Counter[bool | None]]()
        for row, root in enumerate(roots):
            if root in chosen and self._given[row] != _NO_PAIR:
                kinds.setdefault(root, Counter())[self._changed[row]] += 1
        every, there = Counter[bool | None](), Counter[bool | None]()
        for root, of_root in kinds.items():
            every += of_root
            there += of_root if chosen[root] == val else Counter()
        for kind, count in every.items() if there.total() < _SMALL else ():
            for root in drawn:
                more = kinds[root][kind]
                if chosen[root] == train and more and there[kind] + more <= min(_VALIDATION, count // 4):
                    chosen[root] = val
                    there += kinds[root]
        enough = there.total() >= _VALIDATION and (None in every or (there[True] and there[False]))
        if enough or not self._captioned:  # pairs without captions are not for a training
            return []
        text = ", ".join(f"{there[kind]} {name}" for kind, name in _KINDS.items() if every[kind])
        return [f"few validation pairs ({text}): what is best by them may be so by chance; add pairs of both kinds"]


def _index(split: Any) -> int:
    """Index into SPLITS of a given split; a row with an unknown split is not a pair."""
    if split in (None, ""):
        return _NOT_GIVEN
    name = SPLIT_NAMES.get(str(split).strip().lower())
    return SPLITS.index(name) if name is not None else _NO_PAIR


def _draw(key: bytes, val_share: float, test_share: float) -> int:
    share = int.from_bytes(hashlib.sha256(key).digest()[:8], "big") / 2**64
    return SPLITS.index("test" if share < test_share else "val" if share < test_share + val_share else "train")
