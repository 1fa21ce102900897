"""Frames between two images: recursive midpoints (ProCap, eq. 1), with an exchangeable middle.

Frames are uint8 RGB (H, W, 3) of any size. A *middle* is a callable ``(first, second) -> frame half way``: the linear
blend, DIS optical flow, or VFIformer, which alone needs torch.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import numpy as np

Middle = Callable[[np.ndarray, np.ndarray], np.ndarray]

_CONSISTENCY = 1.5
"""Forward-backward error in pixels at which a flow counts a third."""
_FLOW_SIDE = 96
"""Images with a shorter side below this are enlarged for the flow."""


def interpolate(before: np.ndarray, after: np.ndarray, depth: int, middle: Middle) -> np.ndarray:
    """The 2^depth + 1 frames from ``before`` to ``after``, both included: (l + 2, H, W, 3) with l = 2^depth - 1. The
    middle of the two is made first, then the middles of the halves, and so on. ValueError: the images differ in
    size."""
    if before.shape != after.shape:
        raise ValueError(f"before is {before.shape}, after is {after.shape}; resize them to one size first")
    frames = [before, after]
    for _ in range(depth):
        between = [middle(first, second) for first, second in itertools.pairwise(frames)]
        frames = [frame for pair in zip(frames, between, strict=False) for frame in pair] + [frames[-1]]
    return np.stack(frames)


def make_middle(name: str, weights: str | None = None) -> Middle:
    """The middle called "blend", "dis" or "vfiformer", of an official checkpoint (net_220.pth). ValueError: the name
    is unknown, or weights are missing or do not fit."""
    if name == "blend":
        return linear_blend
    if name == "dis":
        return flow_middle
    if name == "vfiformer":
        if weights is None:
            raise ValueError("vfiformer needs weights: an official checkpoint (net_220.pth)")
        return _vfiformer_middle(weights)
    raise ValueError(f"no interpolation is called {name!r}; there are: dis, blend, vfiformer")


def linear_blend(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Cross-fading: the mean of both images."""
    return ((first.astype(np.uint16) + second + 1) // 2).astype(np.uint8)


def flow_middle(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Warps both images half way along bidirectional DIS optical flow (Kroeger et al. 2016), then blends them.

    1. Flow first -> second and second -> first (OpenCV's DIS on luminance; small images are enlarged for it).
    2. From both, the motion through every pixel at t = 1/2.
    3. Each image is warped to t = 1/2. Where the two flows contradict each other along the path (forward-backward
       error), that image's pixel is occluded in the other and counts less.
    4. A flow has no meaning where an object changes colour, appears or disappears. Where neither flow is consistent, or
       the warped images agree less than the unwarped ones, the result falls back to the plain mean.
    """
    import cv2

    if np.array_equal(first, second):
        return first.copy()
    a, b = first.astype(np.float32), second.astype(np.float32)
    plain = (a + b) / 2
    forward, backward = _flows(first, second)
    # The motion m through a pixel p at t = 1/2 obeys m(p) = forward(p - m/2) = -backward(p + m/2): one step of the
    # fixed-point iteration over the mean of both, from the flows in place. (More steps, or splatting the flows forward,
    # gave the same PSNR within 0.01 dB on frame triplets.)
    motion = (forward - backward) / 2
    motion = (_sample(forward, -motion / 2) - _sample(backward, motion / 2)) / 2
    to_a, to_b = -motion / 2, motion / 2
    warped_a, warped_b = _sample(a, to_a, sharp=True), _sample(b, to_b, sharp=True)
    sure_a = _weight(_sample(forward, to_a), backward, to_a)
    sure_b = _weight(_sample(backward, to_b), forward, to_b)
    warped = (sure_a * warped_a + sure_b * warped_b) / (sure_a + sure_b)

    size = (7, 7)
    error_warped = cv2.blur(_mean_difference(warped_a, warped_b), size)[..., None]
    error_plain = cv2.blur(_mean_difference(a, b), size)[..., None]
    # 0 where the warped images differ a quarter more than the unwarped ones, 1 where a quarter less; the grey level
    # added on both sides keeps noise in plain parts from deciding.
    useful = np.clip((1.25 * error_plain - error_warped + 1.0) / (0.5 * error_plain + 2.0), 0, 1)
    trust = cv2.blur((useful * np.maximum(sure_a, sure_b))[..., 0], (3, 3))[..., None]
    return np.clip(np.rint(trust * warped + (1 - trust) * plain), 0, 255).astype(np.uint8)


def _flows(first: np.ndarray, second: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Flow first -> second and second -> first, (H, W, 2) float32 in pixels (x, y)."""
    import cv2

    height, width = first.shape[:2]
    scale = max(1.0, _FLOW_SIDE / min(height, width))
    grey = [cv2.cvtColor(np.ascontiguousarray(image), cv2.COLOR_RGB2GRAY) for image in (first, second)]
    if scale > 1:
        size = (round(width * scale), round(height * scale))
        grey = [cv2.resize(image, size, interpolation=cv2.INTER_CUBIC) for image in grey]
    dis = _dis(refine=scale == 1)
    flows = [dis.calc(grey[0], grey[1], None), dis.calc(grey[1], grey[0], None)]
    if scale > 1:
        factor = np.array([width / grey[0].shape[1], height / grey[0].shape[0]], np.float32)
        flows = [cv2.resize(flow, (width, height), interpolation=cv2.INTER_AREA) * factor for flow in flows]
    return flows[0], flows[1]


def _weight(there: np.ndarray, other: np.ndarray, to_start: np.ndarray) -> np.ndarray:
    """(H, W, 1) in (0, 1]: how well a round trip, ``there`` and back by the ``other`` flow, ends where it began."""
    back = _sample(other, to_start + there)
    square = np.square(there + back)
    return np.exp(-(square[..., :1] + square[..., 1:]) / _CONSISTENCY**2) + 1e-3  # the sum of two divides


def _vfiformer_middle(weights: Path | str) -> Middle:
    import torch

    from idc.vision.interpolation.model import load_vfiformer
    from idc.vision.tokenizer.model import to_frames, to_images

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = load_vfiformer(weights).to(device)

    def middle(first: np.ndarray, second: np.ndarray) -> np.ndarray:
        if np.array_equal(first, second):
            return first.copy()
        with torch.inference_mode():
            images = to_images(np.stack([first, second]), device)
            return to_frames(model(images[:1], images[1:]))[0]

    return middle


@cache
def _dis(refine: bool) -> Any:
    """OpenCV's DIS, one per process: it keeps buffers.

    The finest scale 0 would cost twice as much for 0.1 dB on frame triplets; variational refinement a third more, for
    0.3 dB on large frames and nothing on enlarged ones.
    """
    import cv2

    dis = cv2.DISOpticalFlow_create(cv2.DISOPTICAL_FLOW_PRESET_MEDIUM)  # type: ignore[attr-defined]
    dis.setFinestScale(1)
    if not refine:
        dis.setVariationalRefinementIterations(0)
    return dis


def _sample(image: np.ndarray, displacement: np.ndarray, sharp: bool = False) -> np.ndarray:
    """``image`` (H, W, C) float32 read at every pixel's place plus ``displacement`` (H, W, 2); the border is repeated.

    ``sharp`` reads by cubic instead of linear interpolation: linear blurs what moves by part of a pixel.
    """
    import cv2

    columns, rows = _grid(*image.shape[:2])
    x, y = columns + displacement[..., 0], rows + displacement[..., 1]
    return cv2.remap(image, x, y, cv2.INTER_CUBIC if sharp else cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)


@lru_cache(maxsize=4)
def _grid(height: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    """The x of every column, (W,), and the y of every row, (H, 1), float32."""
    return np.arange(width, dtype=np.float32), np.arange(height, dtype=np.float32)[:, None]


def _mean_difference(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Mean absolute difference over the three channels, (H, W). In the order of numpy's ``mean(2)``, bit for bit, which
    is slow on so short an axis."""
    red, green, blue = np.moveaxis(np.abs(a - b), 2, 0)
    return (red + green + blue) / np.float32(3)
