"""Words of two drawn images that are known and need not be read, as those of a PDF file: compared as texts, in their
order. What then is left to the pixels are the words that stayed, which may look different, and all that is no word.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from difflib import SequenceMatcher
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from idc.captioning.contract import Claim, ClaimKind
from idc.systems.objects.canvas import PairCanvas
from idc.systems.objects.geometry import PixelBox, around, around_all, boxes_overlap, slices_of
from idc.systems.objects.reading import Word, WordReader
from idc.systems.objects.wording import quoted, where_of, words_clause

if TYPE_CHECKING:
    from idc.data.pdf import PlacedWord

_STAYED, _MOVED = 1, 4
"""Pixels by which words are displaced that stayed where they were, at most, and that are said to have moved, at
least."""
_MOST_EQUAL = 3_000_000
"""Pairs of equal words in two texts: a second. A page of 2000 words, of which each is there 20 times, has 40,000."""
_MARGIN = 2
"""Pixels around a word's box that letters and their shades reach."""
_QUOTED = 12
"""Words of a claim that are quoted."""


class KnownWords(NamedTuple):
    """The comparison of two texts: what changed, with its clause; what moved, at most one; the boxes of words that
    changed or moved, in which no pixels are compared; and the words that stayed."""

    changed: list[tuple[Claim, str]]
    moved: list[tuple[Claim, str]]
    boxes: list[PixelBox]
    stayed: list[PlacedWord]

    def region_of_interest(self, region: np.ndarray | None, size: tuple[int, ...]) -> np.ndarray:
        """Where pixels are compared, bool (H, W) over the image after, of a part of it (None: all)."""
        kept = np.ones(size[:2], bool) if region is None else region.copy()
        for box in self.boxes:
            kept[slices_of(around(box, _MARGIN, size))] = False
        return kept


class KnownReader(WordReader):
    """Finds the words that stayed in place of reading."""

    def __init__(self, words: Iterable[PlacedWord], canvas: PairCanvas) -> None:
        super().__init__(reads_text=True)
        self.clusters = 1 << 30  # nothing is bounded: nothing is read
        self._words = [
            Word(word.text, np.array(box, np.float32)[[[0, 1], [2, 1], [2, 3], [0, 3]]])
            for word in words
            if (box := canvas.of_after(word.box)) is not None
        ]

    def name(self, image: np.ndarray, box: PixelBox, height: int = 0) -> list[Word]:
        """The first line of them."""
        inside = [word for word in self._words if boxes_overlap(word.box, box)]
        return [word for word in inside if word.box[1] < inside[0].box[3]]

    def words(
        self, images: Sequence[np.ndarray], box: PixelBox, wanted: Callable[[PixelBox], bool]
    ) -> list[list[Word]]:
        """The same of both images; of a strip, which one image alone has, none."""
        inside = [word for word in self._words if boxes_overlap(word.box, box) and wanted(word.box)]
        return [inside] * 2 if len(images) > 1 else [[]]


def compared_words(
    words: Sequence[PlacedWord],
    others: Sequence[PlacedWord],
    before: np.ndarray,
    after: np.ndarray,
    region_of_interest: np.ndarray | None = None,
) -> KnownWords:
    """Compare the words of two images, uint8 RGB (H, W, 3), each in their order. Those that are not seen, in which no
    pixel differs, and those out of the region of interest (bool (H, W) over the image after) are left out."""
    result = KnownWords([], [], [], [])
    sizes = (before.shape[0], before.shape[1]), (after.shape[0], after.shape[1])
    moved: list[tuple[PlacedWord, PlacedWord]] = []
    texts, other_texts = ([word.text for word in side] for side in (words, others))
    counts, other_counts = Counter(texts), Counter(other_texts)
    # Words that are frequent are no anchors of texts in which there would be too many.
    rough = sum(number * other_counts[text] for text, number in counts.items()) > _MOST_EQUAL
    matcher = SequenceMatcher(None, texts, other_texts, autojunk=rough)
    for tag, start, end, other_start, other_end in matcher.get_opcodes():
        first, second = words[start:end], others[other_start:other_end]
        if tag == "equal":
            for pair in zip(first, second, strict=True):
                distance = _distance(*pair)
                if distance <= _STAYED:
                    result.stayed.append(pair[1])
                else:
                    result.boxes.extend(word.box for word in pair)
                    moved += [pair] if distance >= _MOVED else []
            continue
        boxes = [word.box for word in (*first, *second)]
        if not any(_differs(box, before, after) for box in boxes):
            continue
        result.boxes.extend(boxes)
        if _counts(claim := _claim(first, second, *sizes), region_of_interest):
            result.changed.append((claim, words_clause(claim)))
    if moved:
        olds, news = ([pair[side].box for pair in moved] for side in (0, 1))
        box, count = around_all(news), len(moved)
        where = where_of(box, sizes[1])
        claim = Claim("moved", "words", count, where, around_all(olds), box, 1.0)
        if _counts(claim, region_of_interest):
            # After a word that is longer now the others of its line are elsewhere.
            clause = "" if result.changed else f"{count} word{'s' * (count > 1)} {where} moved"
            result.moved.append((claim, clause))
    return result


def _claim(
    first: Sequence[PlacedWord], second: Sequence[PlacedWord], size: tuple[int, int], other_size: tuple[int, int]
) -> Claim:
    kind: ClaimKind = "replaced" if first and second else "gone" if first else "appeared"
    boxes = [around_all([word.box for word in side]) if side else None for side in (first, second)]
    where = where_of(boxes[1], other_size) if boxes[1] else where_of(boxes[0] or (0, 0, 0, 0), size)
    texts = [_text(side) for side in (first, second)]
    return Claim(kind, "words", max(len(first), len(second)), where, boxes[0], boxes[1], 1.0, texts[0], texts[1])


def _text(words: Sequence[PlacedWord]) -> str | None:
    return quoted(word.text for word in words[:_QUOTED]) + " ..." * (len(words) > _QUOTED) if words else None


def _distance(word: PlacedWord, other: PlacedWord) -> int:
    return int(np.abs(np.subtract(word.box, other.box)).max())


def _differs(box: PixelBox, before: np.ndarray, after: np.ndarray) -> bool:
    first, second = before[slices_of(box)], after[slices_of(box)]
    return first.shape != second.shape or bool((first != second).any())


def _counts(claim: Claim, region_of_interest: np.ndarray | None) -> bool:
    box = claim.box_after or claim.box_before
    return region_of_interest is None or box is None or bool(region_of_interest[slices_of(box)].any())
