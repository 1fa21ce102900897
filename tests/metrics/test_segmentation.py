"""IoU is scikit-learn's, on random maps and the cases without a class."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import jaccard_score

from idc.metrics.segmentation import confusion, segmentation_scores

NAMES = ("background", "road", "building")


@pytest.mark.parametrize("classes", [3, 2, 1])
def test_it_is_the_jaccard_score_of_scikit_learn(classes: int) -> None:
    """``classes``: of those that occur at all."""
    rng = np.random.default_rng(classes)
    truths, guesses = ([rng.integers(0, classes, (6, 5)) for _ in range(3)] for _ in range(2))
    matrix = sum(confusion(*maps, 3) for maps in zip(truths, guesses, strict=True))
    scores = segmentation_scores(np.asarray(matrix), NAMES)
    accuracy = scores.pop("pixel_accuracy")
    flat = [np.concatenate([image.ravel() for image in images]) for images in (truths, guesses)]
    labels = np.union1d(*flat)
    shares = jaccard_score(*flat, labels=labels, average=None)
    expected = {f"IoU of {NAMES[label]}": share for label, share in zip(labels, shares, strict=True)}
    assert scores == pytest.approx({"mIoU": shares.mean(), **expected})
    assert accuracy == pytest.approx(np.mean([t == g for t, g in zip(truths, guesses, strict=True)]))
    assert matrix[0, classes - 1] == sum(
        ((t == 0) & (g == classes - 1)).sum() for t, g in zip(truths, guesses, strict=True)
    )  # type: ignore[index]


def test_pixels_without_a_class_do_not_count_and_shapes_must_agree() -> None:
    truth = np.array([[0, 1], [255, 255]])
    assert confusion(truth, np.array([[0, 1], [1, 2]]), 3).sum() == 2
    with pytest.raises(ValueError, match=r"class maps of \(2, 2\) and \(1, 2\)"):
        confusion(truth, truth[:1], 3)
