"""Scores of class maps against their truth, from one confusion matrix of all pixels of all images: as Change-Agent's
`utils_tool/metrics.py` counts them, the background being a class like the others."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def confusion(truth: np.ndarray, predicted: np.ndarray, classes: int) -> np.ndarray:
    """Pixels by class, int64 (classes, classes): rows are true classes, columns predicted ones.

    Args:
        truth, predicted: class of every pixel, of one shape; pixels whose true class is not below ``classes`` do not
            count.

    Raises:
        ValueError: the shapes differ.
    """
    if truth.shape != predicted.shape:
        raise ValueError(f"class maps of {truth.shape} and {predicted.shape}: truth and prediction have one shape")
    counted = truth < classes
    pairs = classes * truth[counted].astype(np.int64) + predicted[counted]
    return np.bincount(pairs, minlength=classes**2).reshape(classes, classes)


def segmentation_scores(matrix: np.ndarray, names: Sequence[str]) -> dict[str, float]:
    """``mIoU``, ``IoU of NAME`` and ``pixel_accuracy`` of a :func:`confusion` matrix.

    A class that occurs in neither truth nor prediction has no intersection over union: it is left out, of the mean too.
    """
    hits, true, predicted = np.diag(matrix), matrix.sum(axis=1), matrix.sum(axis=0)
    union = true + predicted - hits
    of_class = {
        f"IoU of {name}": float(hit / pixels) for name, hit, pixels in zip(names, hits, union, strict=True) if pixels
    }
    return {
        "mIoU": float(np.mean(list(of_class.values()))) if of_class else 0.0,
        **of_class,
        "pixel_accuracy": float(hits.sum() / max(1, matrix.sum())),
    }
