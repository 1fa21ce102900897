"""IoU against counting sets of pixels, on random maps and the cases without a class."""

from __future__ import annotations

import numpy as np
import pytest

from idc.metrics.segmentation import confusion, segmentation_scores

NAMES = ("background", "road", "building")


def counted(truths: list[np.ndarray], guesses: list[np.ndarray]) -> dict[str, float]:
    """By sets of (image, row, column), over all images together."""
    pixels = [
        {
            name: {
                (n, *at) for n, image in enumerate(images) for at in np.argwhere(image == kind).tolist() for at in [at]
            }
            for kind, name in enumerate(NAMES)
        }
        for images in (truths, guesses)
    ]
    shares = {
        name: len(pixels[0][name] & pixels[1][name]) / len(union)
        for name in NAMES
        if (union := pixels[0][name] | pixels[1][name])
    }
    return {"mIoU": sum(shares.values()) / len(shares), **{f"IoU of {name}": share for name, share in shares.items()}}


@pytest.mark.parametrize("classes", [3, 2, 1])
def test_it_is_the_ratio_of_sets(classes: int) -> None:
    """``classes``: of those that occur at all."""
    rng = np.random.default_rng(classes)
    truths, guesses = ([rng.integers(0, classes, (6, 5)) for _ in range(3)] for _ in range(2))
    matrix = sum(confusion(*maps, 3) for maps in zip(truths, guesses, strict=True))
    scores = segmentation_scores(np.asarray(matrix), NAMES)
    accuracy = scores.pop("pixel_accuracy")
    assert scores == pytest.approx(counted(truths, guesses))
    assert accuracy == pytest.approx(np.mean([t == g for t, g in zip(truths, guesses, strict=True)]))
    assert matrix[0, classes - 1] == sum(
        ((t == 0) & (g == classes - 1)).sum() for t, g in zip(truths, guesses, strict=True)
    )  # type: ignore[index]


def test_pixels_without_a_class_do_not_count_and_shapes_must_agree() -> None:
    truth = np.array([[0, 1], [255, 255]])
    assert confusion(truth, np.array([[0, 1], [1, 2]]), 3).sum() == 2
    with pytest.raises(ValueError, match=r"class maps of \(2, 2\) and \(1, 2\)"):
        confusion(truth, truth[:1], 3)
