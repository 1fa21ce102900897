"""The benchmark's corruptions: its parameters where they can be measured, and what holds for all of them."""

from __future__ import annotations

import io
from typing import get_args

import numpy as np
import pytest
from PIL import Image

from idc.data.config import Corruption
from idc.robustness.corruptions import corrupt

NOISY = np.random.default_rng(0).integers(0, 256, (56, 84, 3), np.uint8)
SCENE = np.asarray(Image.fromarray(NOISY[:7, :7]).resize((224, 224), Image.Resampling.BICUBIC))
GREY = np.full((224, 224, 3), 128, np.uint8)


def run(pixels: np.ndarray, kind: str, severity: int, seed: int = 0) -> np.ndarray:
    return corrupt(pixels, kind, severity, np.random.default_rng(seed))  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", get_args(Corruption))
def test_every_size_the_same_twice_and_further_away_at_a_higher_severity(kind: str) -> None:
    for pixels in (NOISY, NOISY[:, :30], NOISY[:1, :1]):
        before = pixels.copy()
        first, again = run(pixels, kind, 5), run(pixels, kind, 5)
        assert (first.shape, first.dtype) == (pixels.shape, np.uint8)
        assert np.array_equal(first, again)
        assert np.array_equal(pixels, before)
    away = [np.abs(run(SCENE, kind, severity).astype(float) - SCENE).mean() for severity in range(1, 6)]
    assert away == sorted(away)
    assert away[4] > 1.2 * away[0] > 0
    if kind in ("gaussian_noise", "motion_blur", "fog"):
        assert not np.array_equal(run(SCENE, kind, 5, seed=0), run(SCENE, kind, 5, seed=1)), "it is drawn"


def test_noise_contrast_brightness_and_jpeg_by_their_definitions() -> None:
    for severity, deviation in enumerate((0.08, 0.12, 0.18, 0.26, 0.38), start=1):
        drawn = np.random.default_rng(0).normal(128 / 255, deviation, 200_000)
        expected = np.clip(drawn, 0, 1).std() * 255
        assert run(GREY, "gaussian_noise", severity).std() == pytest.approx(expected, rel=0.02)
    mean = SCENE.mean(axis=(0, 1))
    for severity, factor in enumerate((0.4, 0.3, 0.2, 0.1, 0.05), start=1):
        assert np.abs(run(SCENE, "contrast", severity) - ((SCENE - mean) * factor + mean)).max() <= 1
    for severity, more in enumerate((0.1, 0.2, 0.3, 0.4, 0.5), start=1):
        assert np.abs(run(GREY, "brightness", severity) - np.minimum(128 + 255 * more, 255)).max() <= 1
    for severity, quality in enumerate((25, 18, 15, 10, 7), start=1):
        stream = io.BytesIO()
        Image.fromarray(SCENE).save(stream, "JPEG", quality=quality)
        assert np.array_equal(run(SCENE, "jpeg_compression", severity), np.asarray(Image.open(stream)))


def test_defocus_spreads_a_dot_over_the_benchmarks_disk_whose_radius_follows_the_size() -> None:
    """A disk of radius 10 at 224 pixels has radius 5 at 112."""
    sizes = [(224, severity, radius) for severity, radius in enumerate((3, 4, 6, 8, 10), start=1)]
    for side, severity, radius in (*sizes, (112, 5, 5), (448, 5, 20)):
        dot = np.zeros((side, side, 3), np.uint8)
        middle, arm = side // 2, side // 40
        dot[middle - arm : middle + arm + 1, middle - arm : middle + arm + 1] = 255
        rows = np.flatnonzero(run(dot, "defocus_blur", severity)[:, middle, 0])
        assert abs((rows[-1] - rows[0] + 1) - (2 * arm + 1 + 2 * radius)) <= 4


def test_fog_adds_a_cloud_and_keeps_the_range() -> None:
    """The benchmark scales by m / (m + c) with m the brightest value: black stays within [0, m c / (m + c)]."""
    half = GREY.copy()
    half[:, :112] = 0
    fogged = run(half, "fog", 5)
    m = 128 / 255
    assert 60 < fogged[:, :112].max() <= 255 * m * 3 / (m + 3) + 1
    assert fogged.max() <= 128
    assert np.ptp(fogged[:, :112].astype(int).mean(axis=2)) > 20
