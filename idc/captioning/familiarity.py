"""Familiarity of a pair with the training images: a calibrated distance of image statistics. For any system; imports no
torch.

Statistics of an image, at 64x64 pixels: mean, deviation and quantiles of its brightness; and of the image with its
brightness scaled to a deviation of 1, colour means on a 4x4 grid, gradients, detail at several scales, contrasts of
blocks, and saturation. Scaled, since else a dark, foggy or low-contrast photograph, whose statistics are all near those
of an empty scene, lies in the middle of the training images. Distance of an image: Mahalanobis distance of its
statistics from those of the training images. Familiarity of a pair: the share of held-out pairs of the training domain
(the pair itself included) whose farther image is at least as far away, a conformal p-value: of new pairs of that domain
about a share t has a familiarity of at most t. It is the lowest one also where an image is nearer to the mean than
those of all these pairs: what is like the mean of many images is none of them.

Simple statistics rather than features of the captioner: they separated photographs and corrupted images from rendered
scenes better than pooled features of ProCap's image tokenizer, alone or together with these.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from PIL import Image

from idc.data.remote_copies import local_folder
from idc.training.artifact import FAMILIARITY, add_file

SIDE = 64
"""Height and width at which statistics are computed."""
GRID = 4
"""Cells per side of the grid of colour means."""
_QUANTILES = (1, 10, 25, 50, 75, 90, 99)
"""Per cent."""
_BLOCK = 8
"""Side of the blocks whose contrasts are statistics."""
_FLAT = 0.02
"""Added to the deviation of the brightness, by which an image is scaled: the noise of a plain one stays small."""
STRETCH = 4.0
"""Factor on the distance in the direction of pairs that must be unfamiliar: of rendered satellite scenes and real ones,
each half of these was told apart from 2 on, with room from 4 on."""
_ENOUGH = 512
"""Pixels of the shorter side that are read; of a larger image only every n-th row and column, for speed."""


def statistics(image: np.ndarray) -> np.ndarray:
    """The statistics of an image, uint8 RGB (H, W, 3), as float64 (D,)."""
    import cv2  # not with the settings, for the help of commands

    step = max(1, min(image.shape[:2]) // _ENOUGH)
    picture = Image.fromarray(image[::step, ::step]).resize((SIDE, SIDE), Image.Resampling.BICUBIC)
    pixels = np.asarray(picture, np.float32) / 255
    grey = pixels @ np.array([0.299, 0.587, 0.114], np.float32)
    mean, contrast = grey.mean(), grey.std() + _FLAT
    scaled = (grey - mean) / contrast
    cells = ((pixels - mean) / contrast).reshape(GRID, SIDE // GRID, GRID, SIDE // GRID, 3).mean(axis=(1, 3))
    blocks = scaled.reshape(SIDE // _BLOCK, _BLOCK, SIDE // _BLOCK, _BLOCK).std(axis=(1, 3))
    slopes = [np.abs(np.diff(scaled, axis=axis)) for axis in (0, 1)]
    curvature = np.abs(cv2.Laplacian(scaled, cv2.CV_32F))
    saturation = np.ptp(pixels, axis=2)
    brightness = np.percentile(grey, _QUANTILES)
    return np.concatenate(
        [
            np.log([mean + 0.02, contrast]),
            brightness,
            (brightness - mean) / contrast,
            cells.ravel(),
            *([slope.mean(), *np.percentile(slope, _QUANTILES[3:])] for slope in slopes),
            [np.abs(scaled - cv2.GaussianBlur(scaled, (0, 0), sigma)).mean() for sigma in (1, 2, 4, 8)],
            np.log(np.percentile(curvature, _QUANTILES[2:]) + 0.01),
            np.log(np.percentile(blocks, _QUANTILES[1:]) + 0.01),
            [saturation.mean(), saturation.std()],
            np.percentile(saturation / contrast, _QUANTILES[2:]),
        ],
        dtype=np.float64,
    )


def pair_statistics(before: np.ndarray, after: np.ndarray) -> np.ndarray:
    """The statistics of both images of a pair, float64 (2, D)."""
    return np.stack([statistics(before), statistics(after)])


@dataclass(frozen=True)
class Familiarity:
    """The fitted distance, and the distances of held-out pairs.

    Attributes:
        mean: float64 (D,), of the training images' statistics.
        whitening: float64 (D, D); the distance is the norm of ``(statistics - mean) @ whitening``.
        distances: float64 (2, N), those of the nearer and of the farther images of the held-out pairs, each ascending.
    """

    mean: np.ndarray
    whitening: np.ndarray
    distances: np.ndarray

    def __call__(self, before: np.ndarray, after: np.ndarray) -> float:
        return self.share(self.distance(pair_statistics(before, after)))

    def share(self, distance: np.ndarray) -> float:
        """The familiarity in (0, 1] of a pair whose nearer and farther image have these distances."""
        near, far = self.distances
        nearer = np.searchsorted(far, distance[1], side="left") if distance[0] >= near[0] else len(far)
        # The pair counts as one of the held-out ones: a p-value of so few is never 0.
        return float(1 + len(far) - nearer) / (1 + len(far))

    def distance(self, pair: np.ndarray) -> np.ndarray:
        """The distances of the nearer and the farther image from the training images, from :func:`pair_statistics`."""
        return np.sort(np.linalg.norm((pair - self.mean) @ self.whitening, axis=1))

    def save(self, artifact: Path | str) -> None:
        """Add it to an artifact, or replace the existing one."""
        from safetensors.numpy import save

        add_file(artifact, FAMILIARITY, save(vars(self)))

    @classmethod
    def read(cls, artifact: Path | str) -> Familiarity | None:
        """The familiarity of an artifact, or None if it has none; with a warning if it was fitted on other statistics
        than those of this program. A damaged file is a ValueError."""
        from safetensors import SafetensorError
        from safetensors.numpy import load_file

        path = local_folder(artifact) / FAMILIARITY
        if not path.exists():
            return None
        again = "run jobs/calibrate.py --overwrite"
        try:
            familiarity = cls(**load_file(path))
        except (SafetensorError, TypeError) as error:
            raise ValueError(f"{path} is damaged ({error}); {again}") from None
        size = len(statistics(np.zeros((1, 1, 3), np.uint8)))
        if (
            familiarity.mean.shape != (size,)
            or familiarity.whitening.shape != (size, size)
            or familiarity.distances.ndim != 2
        ):
            warnings.warn(f"{path} has other image statistics than this version and is ignored; {again}", stacklevel=2)
            return None
        return familiarity


def fit_familiarity(
    training: Iterable[np.ndarray], held_out: Iterable[np.ndarray], unlike: Iterable[np.ndarray] = ()
) -> Familiarity:
    """Fit the distance on the :func:`pair_statistics` of training pairs, and calibrate it on held-out pairs of the same
    domain. ``unlike``: pairs of another domain, which must be unfamiliar: the distance is stretched by :data:`STRETCH`
    along the mean direction in which their images lie from the training images."""
    from sklearn.covariance import ledoit_wolf

    rows = np.concatenate(list(training))
    mean, scale = rows.mean(axis=0), rows.std(axis=0) + 1e-6  # + 1e-6: a statistic may be the same in all images
    covariance, _ = ledoit_wolf((rows - mean) / scale)
    # L with L @ L.T = the inverse covariance: the norm of x @ L is the Mahalanobis distance.
    whitening = np.linalg.cholesky(np.linalg.inv(covariance)) / scale[:, None]
    if other := list(unlike):
        offsets = (np.concatenate(other) - mean) @ whitening
        # Of unit length each, so that a few images that are far out in another direction do not decide alone.
        direction = (offsets / np.linalg.norm(offsets, axis=1, keepdims=True)).mean(axis=0)
        direction /= np.linalg.norm(direction)
        whitening = whitening @ (np.eye(len(mean)) + (STRETCH - 1) * np.outer(direction, direction))
    fitted = Familiarity(mean, np.ascontiguousarray(whitening), np.empty((2, 0)))
    return replace(fitted, distances=np.sort(np.transpose([fitted.distance(pair) for pair in held_out])))
