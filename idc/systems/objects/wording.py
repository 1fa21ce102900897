"""Words for what the comparison of two images found. Where it is not sure, it claims less."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import cv2
import numpy as np

from idc.captioning.contract import Region
from idc.systems.objects.comparison import Comparison

INCOMPARABLE = "No single region can be named: too much of the two images differs, or their views do."
MOVED = "Positions differ, as when the camera moves."
_NAMED = 3
"""Number of regions that a sentence names."""
_SURE = 0.6
"""Smallest share of a region's pixels that must have a colour for the region to be called by it."""
MIXED = "mixed colours"
OBJECT, REGION, WORDS = "object", "region", "words"
"""Names in claims of what is not a class of a detector: something whose name is not sure, a part of the image, text."""
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
    return f"{text}{light_sentence(comparison.light)}"


def unchanged_sentence(subject: str, comparison: Comparison) -> str:
    """The caption where nothing is claimed; its subject is "Nothing" or "No region"."""
    if comparison.moved:
        text = "No change was found, but positions differ, as when the camera moves."
    else:
        text = f"{subject} {'clearly ' if comparison.small or comparison.shaded else ''}changed."
        if comparison.shaded:
            text += " Parts differ in brightness alone."
    return f"{text}{light_sentence(comparison.light)}"


def light_sentence(light: float) -> str:
    """A blank and a sentence on the light of what did not change, if it differs much; else empty."""
    if 0.8 < light < 1.25:
        return ""
    return f" The rest of the picture became {'brighter' if light > 1 else 'darker'}."


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
