"""How close a made image is to the true one: PSNR and SSIM, and contact sheets of both for the eye."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def psnr_ssim(true: np.ndarray, guess: np.ndarray) -> tuple[float, float]:
    """PSNR in dB (100 for equal images) and SSIM of two uint8 images (H, W, 3), by scikit-image."""
    from skimage.metrics import peak_signal_noise_ratio, structural_similarity

    if np.array_equal(true, guess):
        return 100.0, 1.0
    return (
        float(peak_signal_noise_ratio(true, guess, data_range=255)),
        float(structural_similarity(true, guess, data_range=255, channel_axis=2)),
    )


def contact_sheet(pictures: Sequence[np.ndarray], rows: int) -> np.ndarray:
    """Lay out uint8 pictures of one size as one picture, column by column in ``rows`` rows."""
    count = len(pictures) // rows * rows
    columns = [np.concatenate(pictures[n : n + rows], axis=0) for n in range(0, count, rows)]
    return np.concatenate(columns, axis=1)
