"""Random changes of a pair's images that leave its caption true: light and colour of both images together, contrast,
haze, blur, noise, JPEG and an affine warp of each image alone, and mirroring.

Between the images of a real pair the camera moves and the light changes; a captioner that is trained on pairs whose
views hardly differ compares pixels at the same position. The warps of each image alone are what breaks this habit.

Every draw comes from the generator that is given: with :func:`idc.training.data.sample_rng` it depends on
(seed, epoch, index) alone. Pixels are uint8 RGB (H, W, 3); points are (x, y) in pixels, (0, 0) is the outer corner of
the upper left pixel.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from pydantic import Field

from idc.config import ConfigModel
from idc.data.text import map_words

_MARGIN = 0.04
"""Points that must stay visible keep this distance from the border, as a share of the image."""
_SIDES = {"left": "right", "right": "left"}


class AugmentationConfig(ConfigModel):
    """Largest random changes of a pair's images; 0 switches one off. Amounts are uniform in their ranges, but for haze
    and noise: a pair has one of the two, mostly little (a uniform number cubed, times the largest), and each image a
    half of it to all."""

    light: float = Field(0.3, ge=0, lt=1)
    """Both images: brightness is multiplied by 1 - this to 1 + this."""
    tint: float = Field(0.1, ge=0, lt=1)
    """Both images: each colour channel is multiplied by 1 - this to 1 + this."""
    contrast: float = Field(0.2, ge=0, lt=1)
    """Each image: distances from its mean are multiplied by 1 - this to 1 + this."""
    blur: float = Field(0.8, ge=0, le=10)
    """Each image: largest deviation of a Gaussian blur, in pixels."""
    haze: float = Field(0.0, ge=0, le=10)
    """Each image: largest haze. Haze h adds h times a smooth random field and fades the image to 1 / (1 + h)."""
    noise: float = Field(24.0, ge=0, le=128)
    """Each image: largest deviation of Gaussian noise, in levels of 255."""
    jpeg: float = Field(0.0, ge=0, le=1)
    """Each image: probability of a JPEG compression of quality 10 to 95."""
    shift: float = Field(0.15, ge=0, lt=1)
    """Each image alone: largest shift along each axis, as a share of the image. Objects stay in the image where their
    positions are known."""
    scale: float = Field(0.1, ge=0, lt=1)
    """Each image alone: size is multiplied by 1 - this to 1 + this."""
    shear: float = Field(0.1, ge=0, lt=1)
    """Each image alone: largest horizontal displacement per pixel of height, and the reverse."""


class AugmentedPair(NamedTuple):
    """A pair after :func:`augment`.

    Attributes:
        images: before and after, uint8 (H, W, 3).
        maps: float64 (2, 2, 3): point p of the given before (after) image is at ``maps[i] @ (x, y, 1)``.
    """

    images: tuple[np.ndarray, np.ndarray]
    maps: np.ndarray


def augment(
    before: np.ndarray,
    after: np.ndarray,
    amounts: AugmentationConfig,
    rng: np.random.Generator,
    visible: tuple[np.ndarray, np.ndarray] | None = None,
) -> AugmentedPair:
    """Change both images at random.

    Args:
        before, after: uint8 RGB of equal size.
        visible: points (N, 2) of each image that a shift may not move out of it, e.g. the centres of its objects.
    """
    import cv2

    light = 1 + amounts.light * rng.uniform(-1, 1)
    colour = light * (1 + amounts.tint * rng.uniform(-1, 1, 3))
    share = float(rng.random()) ** 3  # cubed: most pairs get little haze or noise, few get much
    haze, noise = (share * amounts.haze, 0.0) if rng.random() < 0.5 else (0.0, share * amounts.noise)
    height, width = before.shape[:2]
    images, maps = [], []
    for index, pixels in enumerate((before, after)):
        affine = _affine(amounts, rng, height, width, None if visible is None else visible[index])
        maps.append(affine)
        # cv2 has pixel centres at whole numbers, the maps have them at halves.
        centred = affine.copy()
        centred[:, 2] += affine[:, :2].sum(axis=1) / 2 - 0.5
        x: np.ndarray = pixels.astype(np.float32)
        x = cv2.warpAffine(x, centred, (width, height), flags=cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)
        mean = x.mean()
        x = (mean + (x - mean) * (1 + amounts.contrast * rng.uniform(-1, 1))) * colour
        sigma, quality = float(rng.uniform(0, amounts.blur)), rng.random()
        hazy, noisy = (float(most * rng.uniform(0.5, 1)) for most in (haze, noise))
        if hazy > 0:
            field = sum(
                cv2.resize(rng.random((n, n), np.float32), (width, height), interpolation=cv2.INTER_CUBIC) / 2
                for n in (3, 7)
            )
            x = (x + 255 * hazy * np.asarray(field)[..., None]) / (1 + hazy)
        if sigma > 0.2:  # below that no neighbour counts
            x = cv2.GaussianBlur(x, (0, 0), sigma)
        if noisy > 0:
            x = x + noisy * rng.standard_normal(x.shape, dtype=np.float32)
        out = np.clip(x + 0.5, 0, 255).astype(np.uint8)  # + 0.5: the conversion cuts off, this rounds
        if rng.random() < amounts.jpeg:
            # OpenCV takes red for blue here, and gives it back in its place: no conversion is needed.
            _, data = cv2.imencode(".jpg", out, [cv2.IMWRITE_JPEG_QUALITY, round(10 + 85 * quality)])
            out = cv2.imdecode(data, cv2.IMREAD_COLOR)
        images.append(out)
    return AugmentedPair((images[0], images[1]), np.stack(maps))


def _affine(
    amounts: AugmentationConfig, rng: np.random.Generator, height: int, width: int, visible: np.ndarray | None
) -> np.ndarray:
    """A random map (2, 3) about the image's centre."""
    size = np.array([width, height], float)
    linear = (1 + amounts.scale * rng.uniform(-1, 1)) * np.eye(2)
    linear[0, 1], linear[1, 0] = amounts.shear * rng.uniform(-1, 1, 2)
    shift = size / 2 - linear @ (size / 2) + amounts.shift * size * rng.uniform(-1, 1, 2)
    if visible is not None and len(visible):
        moved = visible @ linear.T + shift
        low, high = _MARGIN * size - moved.min(axis=0), (1 - _MARGIN) * size - moved.max(axis=0)
        # The least further shift that keeps all points inside; none if they do not fit.
        shift += np.where(low > high, 0.0, np.clip(0.0, low, np.maximum(low, high)))
    return np.column_stack([linear, shift])


def mirror_image(pixels: np.ndarray) -> np.ndarray:
    """The image (H, W, ...) with left and right exchanged."""
    return pixels[:, ::-1]


def mirror_caption(caption: str) -> str:
    """The caption in lower case with the words "left" and "right" exchanged: true of the mirrored pair."""
    return map_words(caption, lambda word: _SIDES.get(word, word))
