"""From light to pixels: registration, haze, optics, tone, noise and compression."""

from __future__ import annotations

import cv2
import numpy as np

from idc.rendered.look import to_srgb
from idc.rendered.satellite.aerial import Painting

_HAZE = np.array((0.40, 0.43, 0.47), np.float32)
_GREY = np.array((0.3, 0.59, 0.11), np.float32)


def photograph(painting: Painting, seed: tuple[int, ...]) -> np.ndarray:
    """uint8 (H, W, 3), as downloaded; ``seed`` is of the sensor's noise."""
    canvas, c = painting.canvas, painting.conditions
    light = painting.lit()
    if any(c.shift):
        dx, dy = (value * canvas.supersampling for value in c.shift)
        matrix, size = np.array(((1, 0, dx), (0, 1, dy)), np.float32), (canvas.width, canvas.height)
        light = cv2.warpAffine(light, matrix, size, flags=cv2.INTER_LINEAR, borderMode=cv2.BORDER_REFLECT)
    image = canvas.reduce(light)
    height, width = image.shape[:2]
    if c.haze:
        small = np.random.default_rng(c.cloud).standard_normal((4, 4)).astype(np.float32)
        cloud = np.clip(1 + 0.5 * cv2.resize(small, (width, height), interpolation=cv2.INTER_CUBIC), 0.1, 2)
        image = image + (_HAZE - image) * np.clip(c.haze * cloud, 0, 0.8)[..., None]
    if c.blur:
        image = cv2.GaussianBlur(image, (0, 0), c.blur)
    grey = (image @ _GREY)[..., None]
    image = grey + (image - grey) * np.float32(c.saturation)
    image = np.clip(image * np.float32(c.gain) * np.array(c.cast, np.float32), 0, None)
    pixels = to_srgb(image / (1 + np.float32(0.18) * image**2)).astype(np.float32)  # highlights saturate slowly
    pixels = pixels ** np.float32(c.gamma)
    if c.sharpening:
        pixels = pixels + np.float32(c.sharpening) * (pixels - cv2.GaussianBlur(pixels, (0, 0), 1.2))
    if c.noise:
        rng = np.random.default_rng(seed)
        sensor = rng.standard_normal((height, width, 4), np.float32) * np.float32(c.noise)
        pixels = pixels + 0.7 * sensor[..., :1] + 0.5 * sensor[..., 1:]
    whole = (np.clip(pixels, 0, 1) * 255 + 0.5).astype(np.uint8)
    if c.quality < 100:
        _, packed = cv2.imencode(".jpg", whole[..., ::-1], (cv2.IMWRITE_JPEG_QUALITY, c.quality))
        decoded = cv2.imdecode(packed, cv2.IMREAD_COLOR)
        assert decoded is not None
        whole = np.ascontiguousarray(decoded[..., ::-1])
    return whole
