"""Images that several pairs share: leaks between splits, and the same two images under several ids.

An image is identified by its bytes; in a data set without images, by its name in the annotations.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping

from pydantic import BaseModel

from idc.data.schema import SPLITS


class Leak(BaseModel):
    """An image that pairs of several splits share: the first such pair of each split, and the splits."""

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
        self._image_owners: dict[bytes, list[int]] = {}
        self._pair_owners: dict[bytes, list[int]] = {}

    def add(self, pair_id: str, split: str, before: bytes | None, after: bytes | None) -> None:
        """Add a pair with the :func:`digest` of its images, None for an image that is neither present nor named."""
        number = len(self.pairs)
        self.pairs.append((pair_id, SPLITS.index(split)))
        for image in {before, after} - {None}:
            assert image is not None
            self._image_owners.setdefault(image, []).append(number)
        if before is not None and after is not None:
            self._pair_owners.setdefault(before + after, []).append(number)

    def leaks(self) -> Iterator[Leak]:
        """Every image that occurs in more than one split, in the order of the pairs."""
        for owners in _shared(self._image_owners):
            first: dict[int, str] = {}
            for pair_id, split in (self.pairs[number] for number in owners):
                first.setdefault(split, pair_id)
            if len(first) > 1:
                yield Leak(pairs=list(first.values()), splits=[SPLITS[split] for split in first])

    def leaked_pairs(self) -> dict[str, dict[str, int]]:
        """split -> other split -> number of its pairs that share an image with the other."""
        partners: dict[int, set[int]] = {}
        for owners in _shared(self._image_owners):
            splits = {self.pairs[number][1] for number in owners}
            if len(splits) > 1:
                for number in owners:
                    partners.setdefault(number, set()).update(splits - {self.pairs[number][1]})
        table: dict[str, Counter[str]] = {}
        for number, others in partners.items():
            table.setdefault(SPLITS[self.pairs[number][1]], Counter()).update(SPLITS[other] for other in others)
        return {split: dict(sorted(table[split].items())) for split in SPLITS if split in table}

    def duplicate_pairs(self) -> Iterator[tuple[list[str], list[str]]]:
        """Ids and splits of every (before, after) that occurs under more than one id."""
        for owners in _shared(self._pair_owners):
            pairs = [self.pairs[number] for number in owners]
            yield [pair_id for pair_id, _ in pairs], [SPLITS[split] for _, split in pairs]

    def distinct_pairs(self) -> dict[str, int]:
        """split -> number of different (before, after); one in two splits counts in both. Empty without images."""
        counts: Counter[str] = Counter()
        for owners in self._pair_owners.values():
            counts.update({SPLITS[self.pairs[number][1]] for number in owners})
        return {split: counts[split] for split in SPLITS if split in counts}


def _shared(owners: Mapping[bytes, list[int]]) -> list[list[int]]:
    """The pairs of every key that several have, in the order of the second one."""
    return sorted((numbers for numbers in owners.values() if len(numbers) > 1), key=lambda numbers: numbers[1])
