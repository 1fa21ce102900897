"""The light of one image on another one of the same view, fitted to what did not change and is not over- or
underexposed.

Images are float32 RGB (H, W, 3) in [0, 1].
"""

from __future__ import annotations

import cv2
import numpy as np

_LIGHT_SIDE = 64
"""Longer side at which the light is fitted: it varies slowly, and noise averages out."""
_TERMS, _CURVED, _EXACT = (9, 12, 14), 0.5, 0.15
"""Number of terms of the light, with those of other tones and with another saturation, and the shares of the error
before and of the median deviation below which theirs must be: they would also follow what changed."""
_STEADY = 0.008
"""Error of the light that is none; of one above six times as much it does not matter how large it is."""
_CLIPPED, _MIN_EXPOSED = 0.02, 100
"""Distance of a channel from 0 or 1 up to which it is over- or underexposed, and the smallest number of other pixels to
which alone the light is fitted."""
_DARK = 0.02
"""Brightness in which noise prevails."""


def brightness_ratio(before: float, after: float) -> float:
    """How much brighter the image after is, from one number of each image in [0, 1]. Below :data:`_DARK` one cannot
    tell: two black images are equally bright."""
    return max(after, _DARK) / max(before, _DARK)


def in_the_light_of(before: np.ndarray, after: np.ndarray, valid: np.ndarray) -> np.ndarray:
    """The image before in the light of the image after: gain and offset of each channel, the gain linear over the image
    and the offset quadratic, fitted robustly so that what changed does not count; or with other tones too."""
    height, width = after.shape[:2]
    scale = _LIGHT_SIDE / max(height, width)
    columns, rows = max(4, round(width * scale)), max(4, round(height * scale))
    covered, *images = (
        cv2.resize(image, (columns, rows), interpolation=cv2.INTER_AREA)
        for image in (valid.astype(np.float32), before, after)
    )
    used = covered.ravel() > 0.99
    if used.sum() < 50:
        return before
    lit = np.empty_like(before)
    first, second = (image.reshape(-1, 3)[used] for image in images)
    (x, y), everywhere = (axis[used] for axis in _axes(rows, columns)), _axes(height, width)
    for channel in range(3):
        target = second[:, channel]
        low, high = _bounds(first[:, channel], target)
        terms, exposed = _light_terms(first, channel, x, y), low == high
        parameters = _parameters(terms, first[:, channel], target)
        error = _beyond(terms, parameters, low, high)
        if error > 0 and _MIN_EXPOSED <= exposed.sum() < len(target):
            others = _parameters(terms[exposed], first[exposed, channel], target[exposed])
            if _beyond(terms, others, low, high) < _CURVED * error:
                parameters = others
        terms = _light_terms(before.reshape(-1, 3), channel, *everywhere, len(parameters))
        lit[..., channel] = (terms @ parameters).reshape(height, width)
    lit = lit.clip(0, 1)
    # What is white, or black, may have been anything brighter, or darker.
    np.maximum(lit, after, out=lit, where=before > 1 - _CLIPPED)
    np.minimum(lit, after, out=lit, where=before < _CLIPPED)
    return lit


def _bounds(before: np.ndarray, after: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Between which values those of a channel before (N,) may be in the light of the values after: what is white or
    black on one image is at least as bright, or as dark."""
    low = np.where((after < _CLIPPED) | (before > 1 - _CLIPPED), -np.inf, after)
    high = np.where((after > 1 - _CLIPPED) | (before < _CLIPPED), np.inf, after)
    return low, high


def _beyond(terms: np.ndarray, parameters: np.ndarray, low: np.ndarray, high: np.ndarray) -> float:
    """How far the values that parameters give are beyond their bounds."""
    values = terms[:, : len(parameters)] @ parameters
    return _off(np.abs(values - values.clip(low, high)))


def _parameters(terms: np.ndarray, values: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Parameters of the first terms (N, M), or of all, that give a channel (N,) of the image after from that before."""
    gain = brightness_ratio(float(np.median(values)), float(np.median(target)))
    parameters, errors, weights = _fitted(terms[:, : _TERMS[0]], target, gain, np.ones(len(target)))
    deviation = float(np.median(np.abs(target - np.median(target))))
    limit, most = _CURVED * _off(errors), min(float(np.median(errors)), _EXACT * deviation)
    # What changed would alone give a saturation: it is fitted where the light before it agrees.
    for count, start in zip(_TERMS[1:], (np.ones(len(target)), weights), strict=True):
        others, errors, _ = _fitted(terms[:, :count], target, gain, start)
        if _off(errors) < limit and np.median(errors) <= most:
            parameters, limit = others, _off(errors)
    return parameters


def _fitted(
    terms: np.ndarray, target: np.ndarray, gain: float, weights: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Parameters of the terms (N, M) that give a channel (N,), robustly, from these weights on; errors and weights."""
    for _ in range(12):
        # The ridge draws the gain to the ratio of the medians: in a plain image it would follow the noise, to 0. In a
        # grey one saturation cannot be told.
        ridge = (1e-2 + 1e-3 * weights.sum()) * np.diag([1, 1, 1, *[1e-3] * 9, 0.1, 0.1][: terms.shape[1]])
        gram = terms.T @ (weights[:, None] * terms) + ridge
        parameters = np.linalg.solve(gram, terms.T @ (weights * target) + gain * ridge[0])
        errors = np.abs(terms @ parameters - target)
        spread = max(1.4826 * float(np.median(errors)), _STEADY)
        weights = np.clip(1 - (errors / (3 * spread)) ** 2, 0, None) ** 2  # Tukey's biweight
    return parameters, errors, weights


def _off(errors: np.ndarray) -> float:
    """Mean of the errors that are more than none, each clipped."""
    return float(np.clip(errors - _STEADY, 0, 5 * _STEADY).mean())


def _light_terms(
    colours: np.ndarray, channel: int, x: np.ndarray, y: np.ndarray, count: int = _TERMS[-1]
) -> np.ndarray:
    """The first ``count`` of colours (N, 3), one of :data:`_TERMS`."""
    values, other, third = (colours[:, (channel + step) % 3] for step in range(3))
    terms = [values, values * x, values * y, np.ones_like(x), x, y, x * x, y * y, x * y]
    terms += [values**0.5, values * values, values**3] if count > _TERMS[0] else []
    terms += [other - values, third - values] if count > _TERMS[1] else []
    return np.stack(terms, axis=1)


def _axes(height: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    """x and y of all pixels, from -0.5 to 0.5."""
    rows, columns = np.mgrid[0:height, 0:width].astype(np.float32)
    return (columns / width - 0.5).ravel(), (rows / height - 0.5).ravel()
