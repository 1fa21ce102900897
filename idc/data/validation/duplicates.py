"""Images that several pairs share: leaks between splits, and the same two images under several ids.

An image is identified by its bytes; in a data set without images, by its name in the annotations.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple

from pydantic import BaseModel

from idc.data.schema import SPLITS


class Leak(BaseModel):
    """An image that pairs of several splits share: the first such pair of each split, and the splits."""

    pairs: list[str]
    splits: list[str]


class DuplicatePair(NamedTuple):
    """The same before and after images under several ids."""

    pairs: list[str]
    splits: list[str]


def digest(data: bytes | str) -> bytes:
    """The key of an image (its bytes) or of an image name; keys of the two never coincide."""
    return hashlib.blake2b(data if isinstance(data, bytes) else b"name " + data.encode(), digest_size=12).digest()


class SharedImages:
    """Which pairs have which image. Memory is a few hundred bytes per pair (ids and hashes), not its images."""

    def __init__(self) -> None:
        self.pairs: list[tuple[str, int]] = []
        """(pair id, index into SPLITS)."""
        self._image_owners, self._pair_owners = _Owners(), _Owners()

    def add(self, pair_id: str, split: str, before: bytes | None, after: bytes | None) -> None:
        """Add a pair with the :func:`digest` of its images, None for an image that is neither present nor named."""
        number = len(self.pairs)
        self.pairs.append((pair_id, SPLITS.index(split)))
        for image in {before, after} - {None}:
            assert image is not None
            self._image_owners.add(image, number)
        if before is not None and after is not None:
            self._pair_owners.add(before + after, number)

    def leaks(self) -> Iterator[Leak]:
        """Every image that occurs in more than one split, in the order of the pairs."""
        for owners in self._image_owners.shared():
            first: dict[int, str] = {}
            for pair_id, split in (self.pairs[number] for number in owners):
                first.setdefault(split, pair_id)
            if len(first) > 1:
                yield Leak(pairs=list(first.values()), splits=[SPLITS[split] for split in first])

    def leaked_pairs(self) -> dict[str, dict[str, int]]:
        """split -> other split -> number of its pairs that share an image with the other."""
        partners: dict[int, set[int]] = {}
        for owners in self._image_owners.shared():
            splits = {self.pairs[number][1] for number in owners}
            if len(splits) > 1:
                for number in owners:
                    partners.setdefault(number, set()).update(splits - {self.pairs[number][1]})
        table: dict[str, Counter[str]] = {}
        for number, others in partners.items():
            table.setdefault(SPLITS[self.pairs[number][1]], Counter()).update(SPLITS[other] for other in others)
        return {split: dict(sorted(table[split].items())) for split in SPLITS if split in table}

    def duplicate_pairs(self) -> Iterator[DuplicatePair]:
        """Every (before, after) that occurs under more than one id."""
        for owners in self._pair_owners.shared():
            pairs = [self.pairs[number] for number in owners]
            yield DuplicatePair([pair_id for pair_id, _ in pairs], [SPLITS[split] for _, split in pairs])

    def distinct_pairs(self) -> dict[str, int]:
        """split -> number of different (before, after); one in two splits counts in both. Empty without images."""
        counts: Counter[str] = Counter()
        for owners in self._pair_owners.all():
            counts.update({SPLITS[self.pairs[number][1]] for number in owners})
        return {split: counts[split] for split in SPLITS if split in counts}

    def to_leave_out(self, splits: Collection[str]) -> dict[str, str]:
        """The pairs of ``splits`` that share an image with a later split (train, val, test): pair id -> reason."""
        out: dict[str, str] = {}
        for owners in self._image_owners.shared():
            last = max(owners, key=lambda number: self.pairs[number][1])
            later_id, later = self.pairs[last]
            for pair_id, split in (self.pairs[number] for number in owners):
                if split < later and SPLITS[split] in splits:
                    out.setdefault(pair_id, f"leak: shares an image with {later_id} of {SPLITS[later]}")
        return out


class _Owners:
    """Key -> numbers of the pairs that have it; a single number is stored without a list."""

    def __init__(self) -> None:
        self._first: dict[bytes, int] = {}
        self._several: dict[bytes, list[int]] = {}

    def add(self, key: bytes, number: int) -> None:
        first = self._first.setdefault(key, number)
        if first != number:
            self._several.setdefault(key, [first]).append(number)

    def shared(self) -> Iterable[list[int]]:
        return self._several.values()

    def all(self) -> Iterator[list[int]]:
        for key, first in self._first.items():
            yield self._several.get(key, [first])
