"""Seven of the common image corruptions of Hendrycks and Dietterich (2019), "Benchmarking Neural Network Robustness to
Common Corruptions and Perturbations", severities 1 to 5: those that NAMC's table 10 and the presets use.

The parameters are those of the benchmark (ImageNet-C, https://github.com/hendrycks/robustness) for images whose shorter
side has 224 pixels. For other sizes every length is scaled with the shorter side,
so that a severity looks alike; at 224 x 224 nothing is scaled. Differences from the benchmark:

- motion blur uses ImageMagick there; here the same kernel (half of a Gaussian along a line, pixels beyond the border
  repeated) is implemented without it;
- results are stored losslessly; the benchmark stores them as JPEG of quality 85, a second corruption of every image.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable

import cv2
import numpy as np
from numpy.random import Generator
from PIL import Image
from skimage.color import hsv2rgb, rgb2hsv

from idc.data.config import Corruption

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
    scale = min(pixels.shape[:2]) / REFERENCE_SIDE
    changed = _FUNCTIONS[kind](pixels / 255.0, severity - 1, scale, rng)
    # Truncated, as in the benchmark; the 1e-9 keeps a value that rounding left a hair below a level at that level.
    return (np.clip(changed, 0.0, 1.0) * 255 + 1e-9).astype(np.uint8)


# Each takes an image (H, W, 3) of float64 in [0, 1], the severity counted from 0, the scale of lengths and a generator.


def _gaussian_noise(image: np.ndarray, level: int, scale: float, rng: Generator) -> np.ndarray:
    deviation = (0.08, 0.12, 0.18, 0.26, 0.38)[level]
    return image + rng.normal(scale=deviation, size=image.shape)


def _defocus_blur(image: np.ndarray, level: int, scale: float, rng: Generator) -> np.ndarray:
    radius, alias = ((3, 0.1), (4, 0.5), (6, 0.5), (8, 0.5), (10, 0.5))[level]
    reach = max(8, math.ceil(radius * scale))
    across = np.arange(-reach, reach + 1)
    disk = ((across[None] ** 2 + across[:, None] ** 2) <= (radius * scale) ** 2).astype(np.float64)
    edge = 3 if radius <= 8 else 5
    kernel = cv2.GaussianBlur(disk / disk.sum(), (edge, edge), sigmaX=alias)
    return cv2.filter2D(image, -1, kernel)


def _motion_blur(image: np.ndarray, level: int, scale: float, rng: Generator) -> np.ndarray:
    """The weights of half a Gaussian along a line that begins at the pixel."""
    radius, sigma = (scale * length for length in ((10, 3), (15, 5), (15, 8), (15, 12), (20, 15))[level])
    angle = math.radians(rng.uniform(-45, 45))
    length = 2 * math.ceil(radius) + 1
    along = np.arange(length)
    weights = np.exp(-(along**2) / (2 * max(sigma, 1e-3) ** 2))
    right = np.ceil(along * math.cos(angle) - 0.5).astype(int)
    down = np.ceil(along * math.sin(angle) - 0.5).astype(int)
    kernel = np.zeros((2 * length + 1, 2 * length + 1))
    np.add.at(kernel, (length + down, length + right), weights / weights.sum())
    return cv2.filter2D(image, -1, kernel, borderType=cv2.BORDER_REPLICATE)


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


def _contrast(image: np.ndarray, level: int, scale: float, rng: Generator) -> np.ndarray:
    mean = image.mean(axis=(0, 1), keepdims=True)
    return (image - mean) * (0.4, 0.3, 0.2, 0.1, 0.05)[level] + mean


def _jpeg_compression(image: np.ndarray, level: int, scale: float, rng: Generator) -> np.ndarray:
    stream = io.BytesIO()
    Image.fromarray(np.rint(image * 255).astype(np.uint8)).save(stream, "JPEG", quality=(25, 18, 15, 10, 7)[level])
    return np.asarray(Image.open(stream)) / 255


_FUNCTIONS: dict[Corruption, Callable[[np.ndarray, int, float, Generator], np.ndarray]] = {
    "gaussian_noise": _gaussian_noise,
    "defocus_blur": _defocus_blur,
    "motion_blur": _motion_blur,
    "fog": _fog,
    "brightness": _brightness,
    "contrast": _contrast,
    "jpeg_compression": _jpeg_compression,
}


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
