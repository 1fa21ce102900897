"""Words for what the comparison of two images found, and the sentence of a pair's claims. Where it is not sure, it
claims less."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import cv2
import numpy as np

from idc.captioning.contract import Claim, Region
from idc.systems.objects.alignment import CameraView
from idc.systems.objects.comparison import Comparison

INCOMPARABLE = "No single region can be named: too much of the two images differs, or their views do."
MOVED = "Positions differ, as when the camera or what it shows moves."
_STRAIGHT, _TILTED, _ZOOMED = 5.0, 3.0, 1.2
"""Degrees from a quarter turn up to which it is one, degrees from which a view is turned, and ratio of sizes from which
it is a part of the other."""
_TURNS = ("by a quarter to the left", "upside down", "by a quarter to the right")
_SAME_SCALE = 0.01
"""Ratio of scales, less 1, up to which an image is not resized, and of sizes up to which none is a part."""
_BLURRED = 0.65
"""Ratio of sharpness below which an image is blurred: 0.7 at half the resolution. No one of 150 real pairs is below."""
_NOISY, _NOISIER = 0.02, 3.0
"""Smallest noise that is seen, and multiple of the other image's from which one is noisy."""
_NAMED = 3
"""Number of regions that a sentence names."""
_SURE = 0.6
"""Smallest share of a region's pixels that must have a colour for the region to be called by it."""
MIXED = "mixed colours"
_SAMPLE = 20_000
"""Pixels from which a colour is taken at most."""
OBJECT, REGION, LINE, WORDS = "object", "region", "line", "words"
SURROUNDINGS, PICTURE = "background", "picture"
"""Names in claims of what is not a class of a detector: something whose name is not sure, a part of the image, a thin
one, text, what is around the rest, the image as a whole or much of it."""
FAMILIES = {
    **dict.fromkeys(("car", "bus", "truck", "train"), "vehicle"),
    **dict.fromkeys(("cat", "dog", "horse", "sheep", "cow", "elephant", "bear", "zebra", "giraffe"), "animal"),
}
"""Classes that detectors take for each other -> what is said where views disagree."""
UNNAMED = (LINE, REGION)
_ORDER = (SURROUNDINGS, PICTURE, "person", "vehicle", "bicycle", "motorcycle", "animal", "thing", OBJECT, WORDS)
_CLAUSES = 3
"""Largest number of clauses: a sentence is not a list."""
_NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
"""Beyond these a count is "about": a detector does not count exactly."""
_PLURALS = {"person": "people", "sheep": "sheep", "skis": "skis", "scissors": "scissors", "knife": "knives"}
_WIDE = 0.6
"""Share of the image's width or height from which a region has no single position across it."""


def region_sentence(regions: Sequence[Region], comparison: Comparison) -> str:
    """The caption of a pair that is comparable, by its regions, the largest first, without names of objects."""
    if not regions:
        return unchanged_sentence("No region", comparison)
    count = "one region" if len(regions) == 1 else f"{len(regions)} regions"
    named = "; ".join(_region(region) for region in regions[:_NAMED])
    if len(regions) > _NAMED:
        total = _percent(sum(region.share for region in regions))
        named = f"{total} of the picture in all, the largest {named}"
    if comparison.moved:
        text = f"{MOVED} Apart from that, {count} may have changed, or may be hidden in one of the views: {named}."
    else:
        text = f"at least {count}" if comparison.small else count
        text = f"{text[0].upper()}{text[1:]} changed: {named}."
        if comparison.shaded:
            text += " Other parts differ in brightness alone."
    return f"{text}{look_sentence(comparison)}"


def view_sentence(view: CameraView | None) -> str:
    """How the views differ, by a zoom or a turn; else empty."""
    if view is None:
        return ""
    quarters = round(view.turn / 90) % 4
    if quarters and abs((view.turn + 45) % 90 - 45) < _STRAIGHT:
        return f"The image after is turned {_TURNS[quarters - 1]}."
    if view.agreed and not quarters and abs(view.turn) >= _TILTED:
        side = "left" if view.turn > 0 else "right"
        return f"The image after is turned by {abs(view.turn):.0f} degrees to the {side}."
    if view.zoom > _ZOOMED:
        return f"The view after is a part of the one before, {view.zoom:.1f} times as large."
    if view.zoom < 1 / _ZOOMED:
        return f"The view before is a part of the one after, which is {1 / view.zoom:.1f} times as wide."
    return ""


def crop_sentence(warp: np.ndarray, reduced: Sequence[tuple[int, ...]], sizes: Sequence[tuple[int, ...]]) -> str:
    """Which of two images is a part of the other, at its scale; else empty.

    Args:
        warp: as :attr:`idc.systems.objects.comparison.Comparison.warp`, of the reduced images.
        reduced, sizes: (height, width) of the image before and after, reduced and as they are.
    """
    before, after = (np.array(size[1::-1]) for size in sizes)
    factors = [size[1] / other[1] for size, other in zip(sizes, reduced, strict=True)]
    scales, first = np.diag(warp)[:2] / warp[2, 2] * factors[0] / factors[1], warp[:2, 2] / warp[2, 2] * factors[0]
    ratio = abs(before / after - 1)
    off = np.where(before == after, _SAME_SCALE, ratio / 4)
    if (ratio < _SAME_SCALE).all() or (np.abs(scales - 1) > off).any():
        return ""
    outside = *first, *(before - after - first)  # columns and rows of the image before that the one after lacks
    if min(outside) >= -1:
        return "The image after is a part of the one before."
    return "The image before is a part of the one after." if max(outside) <= 1 else ""


def unchanged_sentence(subject: str, comparison: Comparison) -> str:
    """The caption where nothing is claimed; its subject is "Nothing" or "No region"."""
    if comparison.moved:
        text = "No change was found, but positions differ, as when the camera or what it shows moves."
    else:
        text = f"{subject} {'clearly ' if comparison.small or comparison.shaded else ''}changed."
        if comparison.shaded:
            text += " Parts differ in brightness alone."
    return f"{text}{look_sentence(comparison, part='')}"


def look_sentence(comparison: Comparison, part: str = "rest of the ") -> str:
    """A blank and a sentence on the light of what did not change, if it differs much; so on sharpness and noise."""
    text = ""
    if not 0.8 < comparison.light < 1.25:
        text += f" The {part}picture became {'brighter' if comparison.light > 1 else 'darker'}."
    low, high = sorted(comparison.noise)
    if high > max(_NOISY, _NOISIER * low):
        text += f" The image after is {'' if high == comparison.noise[0] else 'less '}noisy."
    elif not _BLURRED < comparison.sharpness < 1 / _BLURRED:
        text += f" The image after is {'sharper' if comparison.sharpness > 1 else 'less sharp'}."
    return text


def joined(words: Iterable[str]) -> str:
    """A list in words: "a, b and c"."""
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last


def with_article(name: str) -> str:
    """ "a car", "an orange"."""
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"


def where_of(box: tuple[float, float, float, float], size: tuple[int, int]) -> str:
    """The position of a box (left, top, right, bottom) on an image of a size (height, width), both in pixels, in words:
    "at the top left"."""
    height, width = size
    return _position(box[0] / width, box[1] / height, box[2] / width, box[3] / height)


def region_of(mask: np.ndarray, before: np.ndarray, after: np.ndarray, size: tuple[int, int]) -> Region:
    """A region in words and numbers: of a mask over images float32 RGB (H, W, 3) in [0, 1]; the box refers to an
    image of ``size``."""
    rows, columns = (np.flatnonzero(mask.any(axis=axis)) for axis in (1, 0))
    ends = (columns[0] / mask.shape[1], rows[0] / mask.shape[0]), (
        (columns[-1] + 1) / mask.shape[1], (rows[-1] + 1) / mask.shape[0],
    )  # fmt: skip
    (left, top), (right, bottom) = ends
    height, width = size
    names = [colour_of(image[mask]) for image in (before, after)]
    return Region(
        box=(round(left * width), round(top * height), round(right * width), round(bottom * height)),
        share=float(mask.mean()),
        position=_position(left, top, right, bottom),
        before=names[0],
        after=names[1],
    )


def colour_of(pixels: np.ndarray) -> str:
    """The name of the colour that most of these pixels (N, 3) have, or :data:`MIXED`."""
    names, counts = np.unique(_colours(pixels), return_counts=True)
    return str(names[counts.argmax()]) if counts.max() >= _SURE * counts.sum() else MIXED


def sampled(pixels: np.ndarray) -> np.ndarray:
    """Pixels (N, 3) or their codes (N,), or evenly chosen ones where they are many."""
    return pixels[:: -(-len(pixels) // _SAMPLE) or 1]


def _colours(pixels: np.ndarray) -> np.ndarray:
    """The name of each pixel's colour, by its lightness, chroma and hue in CIELAB."""
    lightness, a, b = cv2.cvtColor(pixels.reshape(1, -1, 3).astype(np.float32), cv2.COLOR_RGB2LAB)[0].T
    chroma, hue = np.hypot(a, b), np.degrees(np.arctan2(b, a)) % 360
    grey = (chroma < 13) | (lightness < 12)
    light = lightness >= 62
    reddish = (hue < 45) | (hue >= 345)
    return np.select(
        [
            grey & (lightness < 22), grey & (lightness < 42), grey & (lightness < 65), grey & (lightness < 88), grey,
            reddish & light, reddish,
            (hue < 80) & ~light, (hue < 72) & (chroma < 40), hue < 72,
            (hue < 104) & light, hue < 104,
            hue < 116,  # grass in the sun and yellow in the shade
            hue < 170, hue < 225, hue < 310,
        ],
        [
            "black", "dark grey", "grey", "light grey", "white",
            "pink", "red",
            "brown", "beige", "orange",
            "yellow", "dark yellow",
            "yellow or green",
            "green", "cyan", "blue",
        ],
        "purple",
    )  # fmt: skip


def _position(left: float, top: float, right: float, bottom: float) -> str:
    x, y = (left + right) / 2, (top + bottom) / 2
    across = "" if right - left > _WIDE or 1 / 3 <= x <= 2 / 3 else "left" if x < 0.5 else "right"
    down = "" if bottom - top > _WIDE or 1 / 3 <= y <= 2 / 3 else "top" if y < 0.5 else "bottom"
    if not across and not down:
        return "over most of it" if right - left > _WIDE and bottom - top > _WIDE else "in the middle"
    return f"at the {down} {across}".rstrip() if down else f"on the {across}"


def _region(region: Region) -> str:
    words = f"{region.position} ({_percent(region.share)} of the picture"
    if region.before != region.after:
        words += f", {region.before} before and {region.after} after"
    return f"{words})"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %" if share >= 0.01 else f"{100 * share:.1f} %"


def sentence_of(claims: Sequence[Claim], explained: bool) -> str:
    """The sentence.

    Args:
        claims: at least one.
        explained: whether they explain all that changed. Only then things are counted, and have "appeared" or are
            "gone": else they may also have come from, or be at, another place.
    """
    named = sorted((claim for claim in claims if claim.object not in UNNAMED), key=_matters)
    clauses = list(dict.fromkeys(_clause(claim, explained) for claim in named))
    unnamed = [claim for claim in claims if claim.object in UNNAMED]
    if (room := _CLAUSES - len(clauses)) > 0:
        clauses += _unnamed_clauses(unnamed, room, named=bool(clauses))
    return as_sentence("; ".join(clauses[:_CLAUSES]))


def as_sentence(clause: str) -> str:
    """A clause with a capital and a stop."""
    return f"{clause[:1].upper()}{clause[1:]}."


def _clause(claim: Claim, explained: bool) -> str:
    if claim.object == WORDS:
        return words_clause(claim)
    if claim.object in (SURROUNDINGS, PICTURE):
        colours = f" from {claim.before} to {claim.after}" if claim.before != claim.after else ""
        return f"{'the' if claim.object == SURROUNDINGS else 'much of the'} {claim.object} changed{colours}"
    explained &= claim.object != OBJECT
    several = claim.count > 1
    things = _counted(claim.object, claim.count) if explained or not several else plural(claim.object)
    match claim.kind:
        case "moved" if claim.aspect == "position":
            return f"the {claim.object} {claim.where} moved"
        case "gone":
            end = "gone" if explained else "no longer there"
            return f"{things} {claim.where} {'are' if several else 'is'} {end}"
        case "appeared" if explained:
            return f"{things} {'have' if several else 'has'} appeared {claim.where}"
        case "appeared":
            return f"there {'are' if several else 'is'} now {things} {claim.where}"
        case "moved" if several:
            return f"the {plural(claim.object)} are in other places than before"
        case "moved" if claim.before != claim.after:
            return f"{things} {claim.before} is no longer there, but there is now one {claim.after}"
        case "replaced":
            other = claim.after or OBJECT
            again = "another " if other in (claim.before, FAMILIES.get(claim.before or "")) else ""
            return f"{things} {claim.where} has been replaced by {again + other if again else _counted(other, 1)}"
        case "moved":
            return f"the {claim.object} {claim.where} has moved or been replaced"
    end = "has moved a little, or is another one" if moves(claim.object) else "looks different"
    return f"the {claim.object} {claim.where} {end}"


def moves(name: str) -> bool:
    """Whether things of this name move by themselves."""
    return name == "person" or name in {*FAMILIES, *FAMILIES.values()}


def _matters(claim: Claim) -> int:
    """The order of claims in a sentence: by what matters to a viewer."""
    kind = FAMILIES.get(claim.object, claim.object)
    return _ORDER.index(kind if kind in _ORDER else "thing")


def _unnamed_clauses(claims: Sequence[Claim], room: int, named: bool) -> list[str]:
    """Clauses of parts without a name: by kind and colour where these are clear, else by place. Parts of one kind and
    colour share a clause."""
    groups: dict[tuple[str, str, str | None, str | None], list[Claim]] = {}
    for claim in sorted(claims, key=lambda claim: (claim.kind == "changed", not (claim.before or claim.after))):
        groups.setdefault((claim.object, claim.kind, claim.before, claim.after), []).append(claim)
    clauses: list[str] = []
    for (name, kind, before, after), parts in groups.items():
        positions = list(dict.fromkeys(claim.where for claim in parts))
        where = joined(positions) if len(positions) <= _CLAUSES else f"in several places (most {positions[0]})"
        colour, several = before or after, len(parts) > 1
        thing = f"something{f' {colour}' if colour else ' else' if named or clauses else ''}"
        if several or name == LINE:
            thing = _counted(f"{colour or ''} {LINE if name == LINE else 'thing'}".strip(), len(parts))
        match kind:
            case "appeared":
                clauses.append(f"there {'are' if several else 'is'} now {thing} {where}")
            case "gone":
                clauses.append(f"{thing} {where} {'are' if several else 'is'} no longer there")
            case "moved":
                clauses.append(f"{thing} {where} moved")
            case _ if colour and before != after:
                clauses.append(f"something {where} changed from {before} to {after}")
            case _:
                verb = "looks different" if colour and not several else "look different" if several else "changed"
                clauses.append(f"{thing} {where} {verb}" if colour or several else f"{thing} changed {where}")
    return clauses[:room]


def _counted(name: str, count: int) -> str:
    """ "a car", "two cars", "about 12 cars"."""
    if count == 1:
        return with_article(name)
    return f"{_NUMBERS[count] if count < len(_NUMBERS) else f'about {count}'} {plural(name)}"


def plural(name: str) -> str:
    """The plural of an object's name."""
    if " or " in name:
        return " or ".join(map(plural, name.split(" or ")))
    first, _, last = name.rpartition(" ")
    if last not in _PLURALS:
        ending = "es" if last.endswith(("s", "x", "ch", "sh")) else "s"
        last = f"{last[:-1]}ies" if last.endswith("y") and last[-2:-1] not in "aeiou" else f"{last}{ending}"
    else:
        last = _PLURALS[last]
    return f"{first} {last}".strip()


def words_clause(claim: Claim) -> str:
    """A claim on words as a clause, without capital and stop."""
    if claim.before is None and claim.after is None:
        return f"the words {claim.where} changed"
    several = any(" " in words for words in (claim.before, claim.after) if words)
    words = " became ".join(f'"{words}"' for words in (claim.before, claim.after) if words)
    subject = f"the word{'s' if several else ''} {words}"
    if claim.kind == "replaced":
        return f"{subject} {claim.where}"
    verb = "are" if several else "is"
    return f"{subject} {verb} {'now' if claim.kind == 'appeared' else 'no longer'} {claim.where}"


def quoted(words: Iterable[str]) -> str:
    """Words as they stand between quotation marks."""
    return " ".join(words).replace('"', "'")
