"""Familiarity of a pair with the training images: a calibrated distance of simple image statistics. For any system;
imports no torch.

Statistics of an image, at 64x64 pixels: colour means on a 4x4 grid; deviation and mean gradient of each channel; mean
and deviation of the saturation. Distance of an image: Mahalanobis distance of its statistics from those of the training
images. Distance of a pair: the larger of its two images' distances. Familiarity of a pair: the share of held-out pairs
of the training domain (the pair itself included) whose distance is at least as large, a conformal p-value: of new pairs
of that domain about a share t has a familiarity of at most t.

Simple statistics rather than features of the captioner: they separated photographs and corrupted images from rendered
scenes better than pooled features of ProCap's image tokenizer, alone or together with these.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from idc.data.remote_copies import local_folder
from idc.training.artifact import FAMILIARITY, add_file

SIDE = 64
"""Height and width at which statistics are computed."""
GRID = 4
"""Cells per side of the grid of colour means."""
STRETCH = 4.0
"""Factor on the distance in the direction of pairs that must be unfamiliar: of rendered satellite scenes and real ones,
each half of these was told apart from 2 on, with room from 4 on."""
_ENOUGH = 512
"""Pixels of the shorter side that are read; of a larger image only every n-th row and column, for speed."""

Pixels = np.ndarray
"""uint8 RGB (H, W, 3)."""


def statistics(image: Pixels) -> np.ndarray:
    """The statistics of an image, float64 (D,)."""
    step = max(1, min(image.shape[:2]) // _ENOUGH)
    # Channels first: sums over the last axes are several times faster.
    picture = Image.fromarray(image[::step, ::step]).resize((SIDE, SIDE), Image.Resampling.BICUBIC)
    pixels = np.ascontiguousarray(np.asarray(picture, np.float32).transpose(2, 0, 1)) / 255
    saturation = pixels.max(axis=0) - pixels.min(axis=0)
    cells = pixels.reshape(3 * GRID, SIDE // GRID, GRID, SIDE // GRID).mean(axis=3).mean(axis=1)
    return np.concatenate(
        [
            cells.ravel(),
            pixels.reshape(3, -1).std(axis=1),
            np.abs(np.diff(pixels, axis=1)).reshape(3, -1).mean(axis=1),
            np.abs(np.diff(pixels, axis=2)).reshape(3, -1).mean(axis=1),
            [saturation.mean(), saturation.std()],
        ],
        dtype=np.float64,
    )


def pair_statistics(before: Pixels, after: Pixels) -> np.ndarray:
    """The statistics of both images of a pair, float64 (2, D)."""
    return np.stack([statistics(before), statistics(after)])


@dataclass(frozen=True)
class Familiarity:
    """The fitted distance, and the distances of held-out pairs.

    Attributes:
        mean: float64 (D,), of the training images' statistics.
        whitening: float64 (D, D); the distance is the norm of ``(statistics - mean) @ whitening``.
        distances: float64 (N,), of the held-out pairs, ascending.
    """

    mean: np.ndarray
    whitening: np.ndarray
    distances: np.ndarray

    def __call__(self, before: Pixels, after: Pixels) -> float:
        return self.share(self.distance(pair_statistics(before, after)))

    def share(self, distance: float) -> float:
        """The familiarity of a pair at this distance from the training images, in (0, 1]."""
        smaller = np.searchsorted(self.distances, distance, side="left")
        # The pair counts as one of the held-out ones: a p-value of so few is never 0.
        return float(1 + len(self.distances) - smaller) / (1 + len(self.distances))

    def distance(self, pair: np.ndarray) -> float:
        """The distance of a pair from the training images, from its :func:`pair_statistics`."""
        return float(np.linalg.norm((pair - self.mean) @ self.whitening, axis=1).max())

    def save(self, artifact: Path | str) -> None:
        """Add it to an artifact, or replace the existing one."""
        from safetensors.numpy import save

        add_file(artifact, FAMILIARITY, save(vars(self)))

    @classmethod
    def read(cls, artifact: Path | str) -> Familiarity | None:
        """The familiarity of an artifact, or None if it has none. A file that is damaged, or was fitted on other
        statistics than this program computes, is a ValueError."""
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
            or familiarity.distances.ndim != 1
        ):
            raise ValueError(f"{path} was fitted with other image statistics than the {size} of this version; {again}")
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
    fitted = Familiarity(mean, np.ascontiguousarray(whitening), np.empty(0))
    distances = sorted(map(fitted.distance, held_out))
    return Familiarity(fitted.mean, fitted.whitening, np.array(distances))
