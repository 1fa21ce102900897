"""What counts as a change depends on who asks: kinds of changes, classes of objects and a smallest size, each by its
name or by that of a preset.

``objects`` leaves claims out by it, and says how many; a model that reads language is told it in its prompt. Presets
are the YAML files of this folder; a file of one's own has the same settings.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from idc.captioning.objects_config import COCO_NAMES
from idc.config import ConfigModel, load
from idc.util.model_faults import did_you_mean

if TYPE_CHECKING:
    from idc.captioning.claims import Claim

Kind = Literal[
    "objects", "people", "vehicles", "words", "numbers", "timestamps", "layout", "style", "colour", "images", "light",
    "camera",
]  # fmt: skip
_IN_WORDS: dict[Kind, str] = {
    "objects": "things or elements that appeared, disappeared or were replaced",
    "people": "people",
    "vehicles": "vehicles",
    "words": "words that were added, removed or changed",
    "numbers": "numbers that changed",
    "timestamps": "clocks, dates and time stamps",
    "layout": "positions, sizes, spacing and order of elements",
    "style": "fonts, borders, corners, shadows and opacity",
    "colour": "colours",
    "images": "pictures that were replaced",
    "light": "light, shadows, exposure and weather",
    "camera": "the viewpoint or zoom of the camera",
}
"""What each kind is, for the prompt of a model."""
_VEHICLES = frozenset(
    {"vehicle", "bicycle", "car", "motorcycle", "airplane", "bus", "train", "truck", "boat"}
)  # fmt: skip
_ASPECTS: dict[str | None, Kind] = {
    "position": "layout", "spacing": "layout", "colour": "colour", "background": "colour", "font size": "style",
    "font weight": "style", "letter spacing": "style", "line height": "style", "border": "style", "corners": "style",
    "opacity": "style", "shadow": "style", "order": "layout", "picture": "images",
    "page": "words",
}  # fmt: skip
"""Kinds of the aspects of elements of drawn images; of words, and of what is new or gone, it is that of the claim."""
_OF_PAGES: frozenset[Kind] = frozenset(("objects", "words", "numbers", "layout", "style", "colour", "images"))
"""Kinds of which another page has differences."""
_NAMELESS = ("object", "region", "line")
"""Names of what was not recognised on a photograph."""
_PRESETS = Path(__file__).parent
_SIZE = re.compile(r"(\d+(?:\.\d+)?) ?(%|px)")
_CLOCK = r"\d{1,2}:\d\d(?::\d\d(?:[.,]\d{1,3})?)?Z?"
_STAMP = re.compile(
    rf"(?:(?:\d{{4}}([-./])\d{{1,2}}\1\d{{1,2}}|\d{{1,2}}([-./])\d{{1,2}}\2(?:\d{{4}}|\d\d))(?:T?{_CLOCK})?|{_CLOCK})?"
    r"(?:[AaPp]\.?[Mm]\.?)?"
)
"""Dates of three parts, times of day, or both read as one word; 1204.50 and 1.2.3 are none."""
_NUMBER = re.compile(r"[-+−±(]*[$€£¥#]?\d[\d.,' ]*[%)€$kKMx°]*")


class CountsConfig(ConfigModel):
    """A preset: what counts, and for whom."""

    purpose: str
    """For what it is, in a sentence or two."""
    kinds: tuple[Kind, ...] = ()
    """Kinds that count."""
    classes: tuple[str, ...] = ()
    """Classes of objects that count besides, such as `person`."""
    smallest: str | None = None
    """Size from which a change counts: a share of the picture (`0.5%`), or the longer side of its box (`20px`)."""

    def errors(self) -> Iterator[str]:
        if self.smallest is not None and not _SIZE.fullmatch(self.smallest):
            yield f"smallest: {self.smallest!r} is no size; give a share as 0.5%, or the longer side as 20px"


@dataclass(frozen=True)
class Counts:
    """What counts: kinds, classes besides these, and the smallest share of the picture and longer side in pixels."""

    kinds: frozenset[Kind]
    classes: frozenset[str] = frozenset()
    share: float = 0.0
    side: int = 0

    def has(self, claim: Claim, size: tuple[int, ...], drawn: bool = False) -> bool:
        """Whether a claim about images of this (height, width) counts; ``drawn`` as of :func:`kind_of`."""
        kinds = _OF_PAGES if claim.aspect == "page" else {kind_of(claim, drawn)}
        if not self.kinds & kinds and claim.object not in self.classes:
            return False
        widths, heights = [0], [0]
        for left, top, right, bottom in filter(None, (claim.box_before, claim.box_after)):
            widths.append(right - left)
            heights.append(bottom - top)
        area = max(width * height for width, height in zip(widths, heights, strict=True))
        return max(*widths, *heights) >= self.side and area >= self.share * size[0] * size[1]

    def may_have(self, claim: Claim) -> bool:
        """Whether a claim that does not count is about a thing without a sure name, which may be one that does."""
        return claim.object in _NAMELESS and bool(self.classes or self.kinds & {"people", "vehicles"})

    def prompt(self) -> str:
        """A paragraph for the prompt of a model."""
        least = [f"covers at least {100 * self.share:g} % of the picture"] if self.share else []
        least += [f"is at least {self.side} pixels wide or high"] if self.side else []
        reported = [*(_IN_WORDS[kind] for kind in _IN_WORDS if kind in self.kinds), *sorted(self.classes)]
        ignored = [words for kind, words in _IN_WORDS.items() if kind not in self.kinds]
        text = f"Report only differences of these kinds: {'; '.join(reported)}."
        if ignored:
            text += f" Ignore all others, as of {'; '.join(ignored)}."
        return f"{text} Report only what {' and '.join(least)}." if least else text


def counts_of(words: Sequence[str], names: Iterable[str] = (), files: bool = True) -> Counts | None:
    """What counts by the names of presets, kinds and classes, by sizes, or by YAML files; None for everything. The name
    of a preset and of a kind, ``layout``, is the preset.

    Args:
        names: classes of objects beyond the 80 of COCO.
        files: whether words may name files.

    Raises:
        ValueError: a word is none of these.
    """
    if not words:
        return None
    kinds: set[Kind] = set()
    classes: set[str] = set()
    sizes: list[str] = []
    for word in words:
        if _SIZE.fullmatch(word):
            sizes.append(word)
        elif word in presets() or (files and word.endswith((".yaml", ".yml"))):
            preset = presets().get(word) or load(CountsConfig, word)
            kinds |= set(preset.kinds)
            classes |= set(preset.classes)
            sizes += filter(None, [preset.smallest])
        elif word in get_args(Kind):
            kinds.add(word)  # type: ignore[arg-type]
        elif word in (object_names := {*COCO_NAMES, *names}):
            classes.add(word)
        else:
            choices = [*presets(), *get_args(Kind), *object_names]
            raise ValueError(
                f"{word!r} is neither a preset ({', '.join(presets())}), nor a kind of change "
                f"({', '.join(get_args(Kind))}), a class of objects, a size such as 0.5% or 20px"
                f"{', or a YAML file' if files else ''}{did_you_mean(word, choices)}"
            )
    if not kinds and not classes:
        kinds = set(get_args(Kind))
    shares, sides = ([float(_SIZE.fullmatch(size)[1]) for size in sizes if size.endswith(unit)] for unit in ("%", "px"))  # type: ignore[index]
    counts = Counts(frozenset(kinds), frozenset(classes), max(shares, default=0.0) / 100, round(max(sides, default=0)))
    return None if counts == Counts(frozenset(get_args(Kind))) else counts


@cache
def presets() -> dict[str, CountsConfig]:
    """Name -> preset."""
    return {path.stem: load(CountsConfig, str(path)) for path in sorted(_PRESETS.glob("*.yaml"))}


def kind_of(claim: Claim, drawn: bool = False) -> Kind:
    """The kind of a claim of ``objects``. ``drawn``: about drawn images, of which elements are compared: one that moved
    is of the layout, and one that changed has other colours or another style. On a photograph it may be any thing."""
    if drawn and claim.object == "line" and claim.kind in ("appeared", "gone"):
        return "objects"
    if drawn and claim.aspect in _ASPECTS:
        return _ASPECTS[claim.aspect]
    if drawn and claim.kind == "moved":
        return "layout"
    if drawn and claim.kind == "changed":
        return "colour" if claim.before and claim.after else "style"
    if claim.object == "words":
        return _kind_of_words(claim)
    if claim.object == "person":
        return "people"
    if claim.object in _VEHICLES:
        return "vehicles"
    return "objects"


def counted(
    claims: Sequence[Claim], counts: Counts | None, size: tuple[int, ...], drawn: bool = False
) -> tuple[list[Claim], list[Claim]]:
    """The claims about images of this (height, width) that count, and the others; ``drawn`` as of :func:`kind_of`."""
    kept: list[Claim] = []
    others: list[Claim] = []
    for claim in claims:
        (kept if counts is None or counts.has(claim, size, drawn) else others).append(claim)
    return kept, others


def left_out_sentence(
    claims: Iterable[Claim], others: Iterable[Kind], counts: Counts | None, drawn: bool = False
) -> str:
    """What does not count: "2 differences of words and 1 of light do not count."; empty if nothing was left out.

    Args:
        claims: those that do not count.
        others: kinds of further differences, which may count.
    """
    left = Counter(kind_of(claim, drawn) for claim in claims)
    left.update(kind for kind in others if counts is not None and kind not in counts.kinds)
    if not left:
        return ""
    (kind, count), *more = left.most_common()
    parts = [f"{count} difference{'s' * (count > 1)} of {kind}", *(f"{number} of {other}" for other, number in more)]
    *first, last = parts
    text = f"{', '.join(first)} and {last}" if first else last
    return f"{text} {'does' if left.total() == 1 else 'do'} not count."


def _kind_of_words(claim: Claim) -> Kind:
    before, after = ({word.strip(",;") for word in (text or "").split()} for text in (claim.before, claim.after))
    changed = before ^ after
    if not changed:
        return "words"
    if all(_STAMP.fullmatch(word) for word in changed):
        return "timestamps"
    return "numbers" if all(_NUMBER.fullmatch(word) or _STAMP.fullmatch(word) for word in changed) else "words"
