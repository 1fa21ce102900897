"""What is said of whole images before single things are compared: a frame that shows nothing, a picture whose colours
no lamp changes so, and the exposure of dark ones. Images are uint8 RGB (H, W, 3) of any sizes."""

from __future__ import annotations

import cv2
import numpy as np

from idc.systems.objects.wording import MIXED, colour_of

_SIDE = 64
"""Height and width at which frames are looked at: areas of larger images are averaged, and their noise with them."""
_PLAIN = 4.0
"""Grey levels by which a frame that shows nothing varies at most along its columns, or along its rows."""
_BLACK = 8.0
"""Mean grey level up to which a frame is black, whatever its noise; a brighter dark one must vary less to be dead."""
_LIVE = 6.0
"""Grey levels by which half of the columns, and half of the rows, of the other frame vary at least: a chart on an empty
page is no picture."""
_EDGE = 10
"""Per cent of a row or column whose values may be any: a dead camera may still write its name and time."""
_BRIGHT, _LIGHTEST, _MOST_GAIN = 100.0, 250.0, 8.0
"""Mean and highest grey level (but for one in a thousand) up to which a dark image is made brighter, and by how much at
most."""
_SLIGHT = 1.5
"""Factor up to which it stays as it is."""
_CHANGED = 10
"""Per cent of a picture that may be other things: only what is the same shows how the colours changed."""
_MAPPED, _MATRIX = 0.04, 0.45
"""If no lamp recoloured a picture, light leaves an error of this much of the range of values, and a matrix of colours
at most this share of it. Of 153 real pairs none is near both."""
_CELLS, _EVERYWHERE = 8, 0.5
"""Cells per side, and the share of them in which a lamp leaves half of that error: where one coloured thing came, went
or was painted, the others are as before."""
_STEP = 0.004
"""A grey level: errors below it count as one."""
_NEGATIVE = -0.7
"""Correlation of the brightness up to which one picture is the negative of the other."""
_GREY = 0.06
"""Difference of a pixel's channels up to which it is grey; that of the most coloured 5 %."""


def dead_frame(before: np.ndarray, after: np.ndarray) -> str | None:
    """A sentence on the one of two frames that shows nothing: it is plain, or its rows or columns are all the same,
    and the other one is a picture. None if both or neither show anything."""
    brightened = _gain(max(before, after, key=np.mean))
    frames = [thumbnail(image) * brightened for image in (before, after)]
    for part, start in (("image", 0), ("lower part of the image", _SIDE // 2)):
        spreads, usual = (
            [min(_spread(frame[start:], q, axis) for axis in (0, 1)) for frame in frames] for q in (90, 50)
        )
        dead = int(np.argmin(spreads))
        level = frames[dead].mean()
        most = _PLAIN * min(1.0, level / _BRIGHT) if level > _BLACK else _PLAIN
        if spreads[dead] <= most and usual[1 - dead] >= _LIVE:
            shown = frames[dead][start:]
            plain = max(_spread(shown, 90, axis) for axis in (0, 1)) <= 2 * _PLAIN
            colour = colour_of(shown.reshape(-1, 3) / 255) if plain else "smeared"
            return f"The {part} {('before', 'after')[dead]} is {'plain' if colour == MIXED else colour}."
    return None


def thumbnail(image: np.ndarray) -> np.ndarray:
    """An image of any size as float32 (64, 64, 3), in grey levels."""
    return cv2.resize(image, (_SIDE, _SIDE), interpolation=cv2.INTER_AREA).astype(np.float32)


def _spread(frame: np.ndarray, quantile: int, axis: int) -> float:
    """How much a frame varies along this share of its columns (0) or rows (1), in grey levels."""
    low, high = np.percentile(frame, [_EDGE, 100 - _EDGE], axis=axis)
    return float(np.percentile((high - low).max(axis=-1), quantile))


def _gain(image: np.ndarray) -> float:
    """The factor that gives a dark image a usual exposure, from 1 on."""
    mean, lightest = thumbnail(image).mean(), np.percentile(image[::2, ::2], 99.9)  # lamps and stars are small
    return float(np.clip(min(_BRIGHT / max(mean, 1), _LIGHTEST / max(lightest, 1)), 1, _MOST_GAIN))


def is_dark(image: np.ndarray) -> bool:
    """Whether :func:`exposed` makes an image brighter."""
    return _gain(image) > _SLIGHT


def exposed(image: np.ndarray) -> tuple[np.ndarray, float]:
    """A dark image made brighter, and by which factor: thresholds are of usual exposures."""
    gain = _gain(image)
    return (cv2.convertScaleAbs(image, alpha=gain), gain) if gain > _SLIGHT else (image, 1.0)


def other_colours(before: np.ndarray, after: np.ndarray) -> tuple[str, str] | None:
    """What the colours of a picture were and became where no lamp changes them so: of float32 RGB (H, W, 3) in [0, 1]
    of one view. None for two pictures in usual lights, or of different things.

    A lamp multiplies each channel by a number above 0; what a matrix explains much better is no lamp's.
    """
    first, second = (
        cv2.resize(image, (_SIDE, _SIDE), interpolation=cv2.INTER_AREA).reshape(-1, 3) for image in (before, after)
    )
    levels, other_levels = (pixels.mean(axis=1) - pixels.mean() for pixels in (first, second))
    if levels @ other_levels < _NEGATIVE * np.linalg.norm(levels) * np.linalg.norm(other_levels):
        return "positive", "negative"
    # Of a line through a channel's values and of a number alone: in a plain picture the line follows what changed.
    by_line = np.stack([_unexplained(first[:, [channel]], second[:, channel]) for channel in range(3)], axis=1)
    by_number = second - first * np.median((second + _STEP) / (first + _STEP), axis=0)
    errors, number_errors, rest = (
        np.linalg.norm(left, axis=1) for left in (by_line, by_number, _unexplained(first, second))
    )
    error = np.percentile(errors, 100 - _CHANGED)
    if error < _MAPPED or np.percentile(rest, 100 - _CHANGED) > _MATRIX * error:
        return None
    for left in (errors, number_errors):
        cells = left.reshape(_CELLS, _SIDE // _CELLS, _CELLS, _SIDE // _CELLS).mean(axis=(1, 3))
        if (cells >= _MAPPED / 2).mean() < _EVERYWHERE:
            return None
    colours, others = (np.percentile(np.ptp(pixels, axis=1), 95) for pixels in (first, second))
    if min(colours, others) >= _GREY:
        return "its colours", "others"
    return ("colour", "black and white") if others < colours else ("black and white", "colour")


def _unexplained(values: np.ndarray, others: np.ndarray) -> np.ndarray:
    """What a linear map of ``values`` (N, M) leaves of ``others``; what changed counts little."""
    terms = np.column_stack([values, np.ones(len(values))])
    weights = np.ones(len(values))
    for _ in range(12):
        root = np.sqrt(weights)
        rest = others - terms @ np.linalg.lstsq(terms * root[:, None], (others.T * root).T, rcond=None)[0]
        errors = np.linalg.norm(rest.reshape(len(rest), -1), axis=1)
        weights = 1 / np.maximum(errors, _STEP)
    return rest
