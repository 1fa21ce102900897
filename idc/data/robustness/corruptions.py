"""The 15 common image corruptions of Hendrycks and Dietterich (2019), "Benchmarking Neural Network Robustness to Common
Corruptions and Perturbations", severities 1 to 5.

The parameters are those of the benchmark (ImageNet-C, https://github.com/hendrycks/robustness) for images whose shorter
side has 224 pixels. For other sizes every length (radius, displacement, flake) is scaled with the shorter side,
so that a severity looks alike; at 224 x 224 nothing is scaled. Differences from the benchmark:

- frost: the benchmark overlays photographs of frost, which we may not redistribute. Here the frost is drawn (ridges of
  noise, denser at the border), so scores under frost are not comparable with published ones;
- motion blur and snow use ImageMagick there; here the same kernel (half of a Gaussian along a line, pixels beyond the
  border repeated) is implemented without it;
- results are stored losslessly; the benchmark stores them as JPEG of quality 85, a second corruption of every image.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable
from typing import get_args

import cv2
import numpy as np
from numpy.random import Generator
from PIL import Image
from scipy.ndimage import gaussian_filter, map_coordinates, zoom
from skimage.color import hsv2rgb, rgb2hsv

from idc.data.config import Corruption

CORRUPTIONS: tuple[Corruption, ...] = get_args(Corruption)
"""Names of the corruptions: noise, blur, weather, digital."""

SEVERITIES = (1, 2, 3, 4, 5)

REFERENCE_SIDE = 224
"""Shorter side in pixels for which the benchmark's lengths are meant."""


def corrupt(pixels: np.ndarray, kind: Corruption, severity: int, rng: Generator) -> np.ndarray:
    """A corrupted copy of an image.

    Args:
        pixels: uint8 RGB (H, W, 3).
        severity: 1 to 5.
        rng: the corruption draws from it alone.

    Returns:
        uint8 RGB (H, W, 3). Fractions are truncated, as in the benchmark.
    """
    if severity not in SEVERITIES:
        raise ValueError(f"severity is {severity!r}; the benchmark has 1 to 5")
    if kind not in _FUNCTIONS:
        raise ValueError(f"{kind!r} is not one of {', '.join(CORRUPTIONS)}")
    scale = min(pixels.shape[:2]) / REFERENCE_SIDE
    changed = _FUNCTIONS[kind](pixels / 255.0, severity - 1, scale, rng)
    # Truncated, as in the benchmark; the 1e-9 keeps a value that rounding left a hair below a level at that level.
    return (np.clip(changed, 0.0, 1.0) * 255 + 1e-9).astype(np.uint8)


# Each takes an image (H, W, 3) of float64 in [0, 1], the severity counted from 0, the scale of lengths and a generator.

# ------------------------------------------------------------------------------------------------------------- noise


def _gaussian_noise(image: np.ndarray, level: int, scale: float, rng: Generator) -> np.ndarray:
    deviation = (0.08, 0.12, 0.18, 0.26, 0.38)[level]
    return image + rng.normal(scale=deviation, size=image.shape)


def _shot_noise(image: np.ndarray, level: int, scale: float, rng: Generator) -> np.ndarray:
    photons = (60, 25, 12, 5, 3)[level]
    return np.asarray(rng.poisson(image * photons)) / photons


def _impulse_noise(image: np.ndarray, level: int, scale: float, rng: Generator) -> np.ndarray:
    """Salt and pepper, each channel separately."""
    share = (0.03, 0.06, 0.09, 0.17, 0.27)[level]
    hit = rng.random(image.shape) < share
    return np.where(hit, rng.random(image.shape) < 0.5, image)


# -------------------------------------------------------------------------------------------------------------- blur


def _defocus_blur(image: np.ndarray, level: int, scale: float, rng: Generator) -> np.ndarray:
    radius, alias = ((3, 0.1), (4, 0.5), (6, 0.5), (8, 0.5), (10, 0.5))[level]
    reach = max(8, math.ceil(radius * scale))
    across = np.arange(-reach, reach + 1)
    disk = ((across[None] ** 2 + across[:, None] ** 2) <= (radius * scale) ** 2).astype(np.float64)
    edge = 3 if radius <= 8 else 5
    kernel = cv2.GaussianBlur(disk / disk.sum(), (edge, edge), sigmaX=alias)
    return cv2.filter2D(image, -1, kernel)


def _glass_blur(image: np.ndarray, level: int, scale: float, rng: Generator) -> np.ndarray:
    """Each pixel takes the value of one nearby, row by row from the end. (The benchmark intends to swap the two, but
    both are views of one array, so that one value overwrites the other; its published images are made this way.)"""
    deviation, reach, rounds = ((0.7, 1, 2), (0.9, 2, 1), (1, 2, 3), (1.1, 3, 2), (1.5, 4, 2))[level]
    reach = max(1, round(reach * scale))
    sigma = (deviation * scale, deviation * scale, 0)
    image = np.floor(gaussian_filter(image, sigma, mode="nearest") * 255) / 255
    height, width = image.shape[:2]
    rows, columns = (np.arange(length - reach, reach, -1) for length in (height, width))
    here = (rows[:, None] * width + columns[None]).ravel()
    source = list(range(height * width))
    for _ in range(rounds):
        down, right = rng.integers(-reach, reach, size=(2, len(here)))
        for target, other in zip(here.tolist(), (here + down * width + right).tolist(), strict=True):
            source[target] = source[other]
    shuffled = image.reshape(-1, 3)[source].reshape(image.shape)
    return gaussian_filter(shuffled, sigma, mode="nearest")


def _motion_blur(image: np.ndarray, level: int, scale: float, rng: Generator) -> np.ndarray:
    radius, sigma = ((10, 3), (15, 5), (15, 8), (15, 12), (20, 15))[level]
    return _moved(image, radius * scale, sigma * scale, rng.uniform(-45, 45))


def _zoom_blur(image: np.ndarray, level: int, scale: float, rng: Generator) -> np.ndarray:
    stop, step = ((1.11, 0.01), (1.16, 0.01), (1.21, 0.02), (1.26, 0.02), (1.31, 0.03))[level]
    factors = np.arange(1, stop, step)
    return (image + sum(_zoomed(image, float(factor)) for factor in factors)) / (len(factors) + 1)


# ----------------------------------------------------------------------------------------------------------- weather


def _snow(image: np.ndarray, level: int, scale: float, rng: Generator) -> np.ndarray:
    mean, deviation, flake, threshold, radius, sigma, rest = (
        (0.1, 0.3, 3, 0.5, 10, 4, 0.8),
        (0.2, 0.3, 2, 0.5, 12, 4, 0.7),
        (0.55, 0.3, 4, 0.9, 12, 8, 0.7),
        (0.55, 0.3, 4.5, 0.85, 12, 8, 0.65),
        (0.55, 0.3, 2.5, 0.85, 12, 12, 0.55),
    )[level]
    layer = _zoomed(rng.normal(mean, deviation, image.shape[:2]), max(1.0, flake * scale))
    layer = np.clip(np.where(layer < threshold, 0, layer), 0, 1)
    layer = _moved(layer, radius * scale, sigma * scale, rng.uniform(-135, -45))[..., None]
    grey = cv2.cvtColor(image.astype(np.float32), cv2.COLOR_RGB2GRAY)[..., None]
    whitened = rest * image + (1 - rest) * np.maximum(image, grey * 1.5 + 0.5)
    return whitened + layer + np.rot90(layer, k=2)


def _frost(image: np.ndarray, level: int, scale: float, rng: Generator) -> np.ndarray:
    """With the benchmark's two weights; the frost is drawn, see the module's text."""
    keep, weight = ((1, 0.4), (0.8, 0.6), (0.7, 0.7), (0.65, 0.7), (0.6, 0.75))[level]
    height, width = image.shape[:2]
    frost = np.zeros((height, width))
    for sigma, share in ((24, 0.45), (10, 0.3), (4, 0.15), (1.5, 0.1)):
        smooth = gaussian_filter(rng.normal(size=(height, width)), max(0.5, sigma * scale), mode="reflect")
        frost += share * np.exp(-2.0 * np.abs(smooth) / (smooth.std() + 1e-9))  # bright where the noise crosses zero
    down, right = (np.abs(np.linspace(-1, 1, length)) for length in (height, width))
    frost *= 0.6 + 0.4 * np.maximum(down[:, None], right[None])
    frost = np.clip(frost / max(np.quantile(frost, 0.99), 1e-9), 0, 1)
    return keep * image + weight * frost[..., None] * np.array([0.86, 0.94, 1.0])


def _fog(image: np.ndarray, level: int, scale: float, rng: Generator) -> np.ndarray:
    amount, decay = ((1.5, 2), (2, 2), (2.5, 1.7), (2.5, 1.5), (3, 1.4))[level]
    height, width = image.shape[:2]
    plasma = _plasma(1 << max(1, math.ceil(math.log2(max(height, width)))), decay, rng)[:height, :width]
    brightest = image.max()
    return (image + amount * plasma[..., None]) * brightest / (brightest + amount)


def _brightness(image: np.ndarray, level: int, scale: float, rng: Generator) -> np.ndarray:
    hsv = rgb2hsv(image)
    hsv[..., 2] = np.clip(hsv[..., 2] + (0.1, 0.2, 0.3, 0.4, 0.5)[level], 0, 1)
    return hsv2rgb(hsv)


# ----------------------------------------------------------------------------------------------------------- digital


def _contrast(image: np.ndarray, level: int, scale: float, rng: Generator) -> np.ndarray:
    mean = image.mean(axis=(0, 1), keepdims=True)
    return (image - mean) * (0.4, 0.3, 0.2, 0.1, 0.05)[level] + mean


def _elastic_transform(image: np.ndarray, level: int, scale: float, rng: Generator) -> np.ndarray:
    """The lengths are shares of 244, which the benchmark uses instead of 224."""
    amount, sigma, jitter = ((2, 0.7, 0.1), (2, 0.08, 0.2), (0.05, 0.01, 0.02), (0.07, 0.01, 0.02), (0.12, 0.01, 0.02))[
        level
    ]
    unit = 244 * scale
    height, width = image.shape[:2]
    centre, arm = np.array([width // 2, height // 2]), max(1, min(height, width) // 3)
    corners = np.array([centre + arm, [centre[0] + arm, centre[1] - arm], centre - arm], np.float32)
    moved = corners + rng.uniform(-jitter * unit, jitter * unit, corners.shape).astype(np.float32)
    turned = cv2.warpAffine(
        image, cv2.getAffineTransform(corners, moved), (width, height), borderMode=cv2.BORDER_REFLECT_101
    )
    right, down = (
        gaussian_filter(rng.uniform(-1, 1, (height, width)), sigma * unit, mode="reflect", truncate=3) * amount * unit
        for _ in range(2)
    )
    coordinates = [np.arange(height)[:, None] + down, np.arange(width)[None] + right]
    return np.stack([map_coordinates(turned[..., c], coordinates, order=1, mode="reflect") for c in range(3)], axis=2)


def _pixelate(image: np.ndarray, level: int, scale: float, rng: Generator) -> np.ndarray:
    share = (0.6, 0.5, 0.4, 0.3, 0.25)[level]
    picture = _picture(image)
    width, height = picture.size
    small = picture.resize((max(1, int(width * share)), max(1, int(height * share))), Image.Resampling.BOX)
    return np.asarray(small.resize((width, height), Image.Resampling.BOX)) / 255


def _jpeg_compression(image: np.ndarray, level: int, scale: float, rng: Generator) -> np.ndarray:
    stream = io.BytesIO()
    _picture(image).save(stream, "JPEG", quality=(25, 18, 15, 10, 7)[level])
    return np.asarray(Image.open(stream)) / 255


_FUNCTIONS: dict[Corruption, Callable[[np.ndarray, int, float, Generator], np.ndarray]] = {
    "gaussian_noise": _gaussian_noise,
    "shot_noise": _shot_noise,
    "impulse_noise": _impulse_noise,
    "defocus_blur": _defocus_blur,
    "glass_blur": _glass_blur,
    "motion_blur": _motion_blur,
    "zoom_blur": _zoom_blur,
    "snow": _snow,
    "frost": _frost,
    "fog": _fog,
    "brightness": _brightness,
    "contrast": _contrast,
    "elastic_transform": _elastic_transform,
    "pixelate": _pixelate,
    "jpeg_compression": _jpeg_compression,
}


# ----------------------------------------------------------------------------------------------------------- helpers


def _picture(image: np.ndarray) -> Image.Image:
    return Image.fromarray(np.rint(image * 255).astype(np.uint8))


def _zoomed(image: np.ndarray, factor: float) -> np.ndarray:
    """The middle of an image (H, W) or (H, W, 3), enlarged to its size; linear."""
    height, width = image.shape[:2]
    rows, columns = math.ceil(height / factor), math.ceil(width / factor)
    top, left = (height - rows) // 2, (width - columns) // 2
    cut = image[top : top + rows, left : left + columns]
    large = zoom(cut, (factor, factor, 1)[: image.ndim], order=1)
    top, left = (large.shape[0] - height) // 2, (large.shape[1] - width) // 2
    return large[top : top + height, left : left + width]


def _moved(image: np.ndarray, radius: float, sigma: float, angle: float) -> np.ndarray:
    """Motion blur: the weights of half a Gaussian along a line that begins at the pixel; ``angle`` in degrees."""
    length = 2 * math.ceil(radius) + 1
    weights = np.exp(-(np.arange(length) ** 2) / (2 * max(sigma, 1e-3) ** 2))
    along = np.arange(length)
    right = np.ceil(along * math.cos(math.radians(angle)) - 0.5).astype(int)
    down = np.ceil(along * math.sin(math.radians(angle)) - 0.5).astype(int)
    kernel = np.zeros((2 * length + 1, 2 * length + 1))
    np.add.at(kernel, (length + down, length + right), weights / weights.sum())
    return cv2.filter2D(image, -1, kernel, borderType=cv2.BORDER_REPLICATE)


def _plasma(side: int, decay: float, rng: Generator) -> np.ndarray:
    """A cloud (side, side) in [0, 1] by the diamond-square algorithm on a torus; ``side`` is a power of two. A finer
    step's random part is ``decay`` squared times smaller."""
    cloud = np.zeros((side, side))
    step, wibble = side, 100.0

    def mean(total: np.ndarray) -> np.ndarray:
        return total / 4 + wibble * rng.uniform(-wibble, wibble, total.shape)

    while step >= 2:
        half = step // 2
        corners = cloud[::step, ::step]
        rows = corners + np.roll(corners, -1, axis=0)
        cloud[half::step, half::step] = mean(rows + np.roll(rows, -1, axis=1))
        centres, corners = cloud[half::step, half::step], cloud[::step, ::step]
        cloud[::step, half::step] = mean(centres + np.roll(centres, 1, axis=0) + corners + np.roll(corners, -1, axis=1))
        cloud[half::step, ::step] = mean(centres + np.roll(centres, 1, axis=1) + corners + np.roll(corners, -1, axis=0))
        step, wibble = half, wibble / decay
    cloud -= cloud.min()
    return cloud / cloud.max()
