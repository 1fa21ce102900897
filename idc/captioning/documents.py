"""Two documents (PDF files): their pages, paired by what is on them, and what changed on which.

A page is compared as `objects` compares drawn images, with the words that the file has. Pages are rendered when they
are needed, one pair at a time.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from difflib import SequenceMatcher
from typing import NamedTuple

import numpy as np

from idc.captioning.claims import Claim
from idc.captioning.contract import Candidate, Description, SearchOptions
from idc.captioning.objects_config import ObjectsConfig
from idc.data.pdf import Document, PageLook, RenderedPage
from idc.systems import untrained_captioner, untrained_name

_ALIKE = 0.5
"""Similarity from which two pages are two versions of one; pages of different texts in one layout have 0.3."""
_MOST_DESCRIBED, _SECONDS = 100, 60.0
"""Pages that are looked at closely, and processor time after which no other one is; how many differ besides is said."""
_MOST_SAID = 20
"""Changed pages of which the text has a sentence."""
_EMPTY = RenderedPage(np.full((1, 1, 3), 255, np.uint8), ())


class PagePair(NamedTuple):
    """Numbers of a page, from 0, before and after; None where only one document has it. ``same``: every pixel is."""

    before: int | None
    after: int | None
    same: bool = False

    @property
    def number(self) -> int:
        """As claims have it, from 1."""
        number = self.before if self.after is None else self.after
        assert number is not None
        return number + 1


class DocumentPair:
    """Two documents with their pages paired; picklable.

    Raises:
        ImageError: as of :class:`~idc.data.pdf.Document`, also of the methods.
    """

    def __init__(self, before: Document, after: Document) -> None:
        self._documents = before, after
        looks, others = (document.looks() for document in self._documents)
        self.pairs, self._counts = paired_pages(looks, others), (len(looks), len(others))

    def images(self, number: int | None = None) -> tuple[np.ndarray, np.ndarray]:
        """The page of a number of claims, uint8 RGB (H, W, 3) before and after; white where there is none. Without a
        number of the first pair."""
        pairs = sorted(self.pairs, key=lambda pair: None in pair[:2])  # a number may be of a page that is gone too
        pair = next((pair for pair in pairs if pair.number == number), pairs[0])
        before, after = (page.image for page in self._rendered(pair))
        white = [np.full_like(image, 255) for image in (after, before)]
        return (white[0] if pair.before is None else before), (white[1] if pair.after is None else after)

    def describe(
        self, options: SearchOptions, region_of_interest: np.ndarray | None = None, objects: ObjectsConfig | None = None
    ) -> Description:
        """A sentence on the documents and one for each page that changed. Claims and regions have boxes in the pixels
        of :meth:`images` of their page; change map and regions are of the first one that has claims."""
        config = (objects or ObjectsConfig()).model_copy(update={"mode": "exact"})
        captioner, started = untrained_captioner(config), time.thread_time()
        options = SearchOptions(change_map=options.change_map, counts=options.counts)
        described: list[tuple[PagePair, Description]] = []
        alone, unseen = [pair for pair in self.pairs if None in pair[:2]], 0
        for pair in self.pairs:
            if pair.same or None in pair[:2]:
                continue
            if len(described) >= _MOST_DESCRIBED or time.thread_time() - started > _SECONDS:
                unseen += 1
                continue
            first, second = self._rendered(pair)
            words = (first.words, second.words) if first.words and second.words else None
            counted = _resized(region_of_interest, second.image.shape[:2])
            [page] = captioner.describe(
                [first.image], [second.image], replace(options, words=words), region_of_interest=[counted]
            )
            described.append((pair, page))
        changed = [(pair, page) for pair, page in described if page.claims or page.verdict == "changed"]
        claims = [replace(claim, page=pair.number) for pair, page in changed for claim in page.claims or ()]
        claims += map(_page_claim, alone)
        uncounted = [each for each in described if each[1].best.caption.startswith("Nothing that counts")]
        text = " ".join(self._sentences(changed, uncounted, alone, unseen))
        shown = next((page for _, page in changed), None)
        doubts = [f"page {pair.number}: {page.doubt}" for pair, page in described if page.doubt]
        doubts += [f"{unseen} pages that differ were not compared"] if unseen else []
        return Description(
            (Candidate(text, math.log(min((claim.confidence for claim in claims), default=1.0))),),
            change_map=shown.change_map if shown else np.zeros((1, 1), np.float32) if options.change_map else None,
            regions=shown.regions if shown else (), claims=tuple(claims), objects_text=text,
            captioner=untrained_name(objects or ObjectsConfig()), chosen="documents are compared page by page",
            doubt="; ".join(doubts) if doubts and not claims else None,
        )  # fmt: skip

    def _rendered(self, pair: PagePair) -> list[RenderedPage]:
        sides = zip(self._documents, pair[:2], strict=True)
        return [_EMPTY if number is None else document.page(number) for document, number in sides]

    def _sentences(
        self,
        changed: Sequence[tuple[PagePair, Description]],
        uncounted: Sequence[tuple[PagePair, Description]],
        alone: Sequence[PagePair],
        unseen: int,
    ) -> Iterator[str]:
        """``uncounted``: pages of which what changed does not count."""
        total = self._counts[1]
        parts = [f"{_pages([pair for pair, _ in changed])} of {total} changed"] if changed else []
        new, gone = ([pair for pair in alone if pair[side] is None] for side in (0, 1))
        parts += [f"{_pages(new)} {_are(new)} new"] if new else []
        parts += [f"{_pages(gone)} of the document before {_are(gone)} gone"] if gone else []
        parts += [f"{unseen} more pages differ, and were not compared"] if unseen else []
        if parts:
            text = "; ".join(parts)
            yield f"{text[0].upper()}{text[1:]}."
        elif uncounted:
            yield "Nothing that counts changed."
        elif total == 1:
            yield "Nothing changed: the page is the same."
        else:
            yield f"Nothing changed: all {total} pages are the same."
        said = sorted([*changed, *uncounted], key=lambda each: each[0].number)
        for pair, page in said[:_MOST_SAID]:
            old = "" if pair.before == pair.after or pair.before is None else f", before {pair.before + 1}"
            yield f"Page {pair.number}{old}: {page.best.caption}"
        if more := len(said[_MOST_SAID:]):
            yield f"The changes of {more} more pages are not listed."


def paired_pages(looks: Sequence[PageLook], others: Sequence[PageLook]) -> list[PagePair]:
    """The pages of two documents in their order: equal ones as `diff` finds them, and between these the pairs that are
    most alike; a page that is like none is of one document alone."""
    pairs: list[PagePair] = []
    matcher = SequenceMatcher(None, [look.key for look in looks], [look.key for look in others], autojunk=False)
    for tag, start, end, other_start, other_end in matcher.get_opcodes():
        if tag == "equal":
            numbers = zip(range(start, end), range(other_start, other_end), strict=True)
            pairs += [PagePair(*pair, same=True) for pair in numbers]
        else:
            similarities = _similarities(looks[start:end], others[other_start:other_end])
            for row, column in _aligned(similarities):
                pairs.append(
                    PagePair(row if row is None else start + row, column if column is None else other_start + column)
                )
    return pairs


def _similarities(looks: Sequence[PageLook], others: Sequence[PageLook]) -> np.ndarray:
    """How alike pages are, (N, M), up to 1: in their darkness, and in their words where both have some."""
    values = []
    for name in ("ink", "words"):
        sides = [np.array([getattr(look, name) for look in pages]) for pages in (looks, others)]
        if not all(map(len, sides)):
            return np.zeros((len(looks), len(others)))
        values.append((sides[0] @ sides[1].T, *(side.any(axis=1) for side in sides)))
    (ink, *inked), (words, *worded) = values
    ink[~inked[0][:, None] & ~inked[1]] = 1  # two empty pages
    return np.where(worded[0][:, None] & worded[1], (ink + words) / 2, ink)


def _aligned(similarities: np.ndarray) -> list[tuple[int | None, int | None]]:
    """Pairs of rows and columns of (N, M) in their order, of the largest sum by which they exceed :data:`_ALIKE`."""
    height, width = similarities.shape
    gains = similarities - _ALIKE
    best = np.zeros((height + 1, width + 1))
    for row in range(height):
        diagonal = best[row, :-1] + np.maximum(gains[row], 0)
        best[row + 1, 1:] = np.maximum.accumulate(np.maximum(diagonal, best[row, 1:]))
    pairs: list[tuple[int | None, int | None]] = []
    row, column = height, width
    while row or column:
        value = best[row, column]
        if column and value == best[row, column - 1]:
            column -= 1
            pairs.append((None, column))
        elif row and value == best[row - 1, column]:
            row -= 1
            pairs.append((row, None))
        else:
            row, column = row - 1, column - 1
            pairs.append((row, column))
    return pairs[::-1]


def _resized(region: np.ndarray | None, size: tuple[int, int]) -> np.ndarray | None:
    """A region of interest, bool (H, W), of a page of another size."""
    if region is None or region.shape == size:
        return region
    import cv2

    return cv2.resize(region.astype(np.uint8), size[::-1], interpolation=cv2.INTER_NEAREST) > 0


def _page_claim(pair: PagePair) -> Claim:
    if pair.before is None:
        text = f"Page {pair.number} is new."
        return Claim("appeared", "page", 1, f"as page {pair.number}", None, None, 1.0, text=text, page=pair.number)
    text = f"Page {pair.number} of the document before is gone."
    return Claim("gone", "page", 1, f"from page {pair.number}", None, None, 1.0, text=text, page=pair.number)


def _pages(pairs: Sequence[PagePair]) -> str:
    """ "page 3", "pages 3, 5 and 7 to 9"."""
    runs: list[list[int]] = []
    for number in (pair.number for pair in pairs):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    names = [name for run in runs for name in ([f"{run[0]} to {run[-1]}"] if len(run) > 2 else map(str, run))]
    listed = f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else names[0]
    return f"page{'s' * (len(pairs) > 1)} {listed}"


def _are(pairs: Sequence[PagePair]) -> str:
    return "is" if len(pairs) == 1 else "are"
