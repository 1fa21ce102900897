"""Augmentation and mirroring: seeded, bounded, and places follow the pixels."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from idc.config import load
from idc.data.augmentation import AugmentationConfig, augment, mirror_caption, mirror_image
from idc.metrics.change_types import named_type
from idc.metrics.claims import read_object_claims

NOTHING = dict.fromkeys(AugmentationConfig.model_fields, 0.0)
SIZE = (48, 64)


def amounts(**given: float) -> AugmentationConfig:
    return load(AugmentationConfig, None, {**NOTHING, **given})


def spots(points: Sequence[tuple[float, float]]) -> np.ndarray:
    """A black image with a soft white spot at each point (x, y)."""
    y, x = np.mgrid[: SIZE[0], : SIZE[1]] + 0.5
    values = sum(np.exp(-((x - px) ** 2 + (y - py) ** 2) / 8) for px, py in points)
    return np.repeat((255 * np.clip(values, 0, 1)).astype(np.uint8)[..., None], 3, axis=2)


def centre(pixels: np.ndarray) -> np.ndarray:
    weight = pixels[..., 0].astype(float)
    y, x = np.mgrid[: SIZE[0], : SIZE[1]] + 0.5
    return np.array([(weight * x).sum(), (weight * y).sum()]) / weight.sum()


def test_amounts_of_nothing_change_nothing_and_equal_generators_give_equal_pairs() -> None:
    pair = spots([(20, 20)]), spots([(40, 30)])
    found = augment(*pair, amounts(), np.random.default_rng(0))
    assert all(np.array_equal(*images) for images in zip(found.images, pair, strict=True))
    assert np.allclose(found.maps, [[[1, 0, 0], [0, 1, 0]]] * 2)
    config = AugmentationConfig(jpeg=0.5)
    first, again, other = (augment(*pair, config, np.random.default_rng(seed)) for seed in (1, 1, 2))
    assert all(np.array_equal(one, two) for one, two in zip(first.images, again.images, strict=True))
    assert np.array_equal(first.maps, again.maps)
    assert not np.array_equal(first.images[0], other.images[0])
    assert not np.allclose(first.maps, other.maps)
    for given in ({"blur": 3.0}, {"jpeg": 1.0}, {"contrast": 0.5}):
        images = augment(*pair, amounts(**given), np.random.default_rng(4)).images
        assert not np.array_equal(images[0], pair[0]), given


@pytest.mark.parametrize("seed", range(3))
def test_places_follow_the_pixels_of_each_image(seed: int) -> None:
    points, config = [(30.0, 22.0), (34.0, 26.0)], amounts(shift=0.2, scale=0.2, shear=0.2)
    found = augment(spots(points[:1]), spots(points[1:]), config, np.random.default_rng(seed))
    assert not np.allclose(found.maps[0], found.maps[1])
    for pixels, affine, point in zip(found.images, found.maps, points, strict=True):
        assert centre(pixels) == pytest.approx(affine @ (*point, 1), abs=0.2)


def test_points_that_must_be_visible_stay_visible() -> None:
    visible = np.array([(6.0, 6.0), (58.0, 42.0)])
    pair, config = (spots([(6, 6)]), spots([(58, 42)])), amounts(shift=0.5)
    left = 0
    for seed in range(20):
        for points, inside in (((visible, visible), True), (None, False)):
            found = augment(*pair, config, np.random.default_rng(seed), points)
            moved = [visible @ affine[:, :2].T + affine[:, 2] for affine in found.maps]
            shown = all(((at > 0) & (at < SIZE[::-1])).all() for at in moved)
            assert shown or not inside
            left += not shown
    assert left > 10, "without the points most shifts of up to a half move one of them out"


def test_light_is_that_of_both_images_and_noise_or_haze_each_images_own() -> None:
    grey = np.full((*SIZE, 3), 100, np.uint8)
    lit = augment(grey, grey, amounts(light=0.3, tint=0.2), np.random.default_rng(3)).images
    assert np.array_equal(*lit)
    assert len(np.unique(lit[0][0, 0])) == 3, "a tint differs between the channels"
    noisy, hazy = 0, 0
    for seed in range(40):
        before, after = augment(grey, grey, amounts(noise=60, haze=2), np.random.default_rng(seed)).images
        if (rough := _roughness(before)) > 1:
            noisy += 1
            assert 0.4 < rough / _roughness(after) < 2.5
        elif np.ptp(before) > 20:  # a smooth field
            hazy += 1
            assert (before == before[..., :1]).all(), "haze has no colour"
        else:
            continue
        assert not np.array_equal(before, after)
    assert noisy > 5
    assert hazy > 5


def _roughness(pixels: np.ndarray) -> float:
    """Mean difference of neighbours, beyond that of a smooth field."""
    return float(np.abs(np.diff(pixels.astype(float), n=2, axis=1)).mean())


def test_mirroring_exchanges_the_sides_in_pixels_and_words() -> None:
    pixels = spots([(10, 20)])
    assert centre(mirror_image(pixels)) == pytest.approx((SIZE[1] - 10, 20), abs=0.05)
    caption = "The red ball to the left of the cube that is right of the Left cylinder moved"
    mirrored = mirror_caption(caption)
    assert mirrored == "the red ball to the right of the cube that is left of the right cylinder moved"
    assert mirror_caption(mirrored) == caption.lower()
    assert read_object_claims(mirrored).described == read_object_claims(caption).described
    assert named_type(mirrored) == named_type(caption) == "move"
