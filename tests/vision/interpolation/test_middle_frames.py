"""Frames between two images."""

from __future__ import annotations

import numpy as np
import pytest

from idc.vision.interpolation.middle_frames import _mean_difference, flow_middle, interpolate, linear_blend, make_middle
from tests.vision.scenes import scene


def textured(height: int, width: int, shift: float = 0.0) -> np.ndarray:
    """A smooth texture moved to the right by ``shift`` pixels."""
    rows, columns = np.mgrid[0:height, 0:width].astype(np.float64)
    columns = columns - shift
    waves = [np.sin(columns / 5 + rows / 9 + p) + np.cos(columns / 11 - rows / 6 + 2 * p) for p in (0, 1, 2)]
    return np.clip(127 + 50 * np.stack(waves, axis=2), 0, 255).round().astype(np.uint8)


def error(first: np.ndarray, second: np.ndarray) -> float:
    return float(np.abs(first.astype(float) - second).mean())


def test_order_and_number_of_frames() -> None:
    before, after = np.zeros((4, 5, 3), np.uint8), np.full((4, 5, 3), 160, np.uint8)
    frames = interpolate(before, after, 3, linear_blend)
    assert frames.shape == (9, 4, 5, 3)
    assert frames.dtype == np.uint8
    assert frames[:, 0, 0, 0].tolist() == [0, 20, 40, 60, 80, 100, 120, 140, 160]


def test_other_sizes_and_unknown_interpolations_are_refused() -> None:
    with pytest.raises(ValueError, match=r"before is \(4, 5, 3\), after is \(4, 6, 3\)"):
        interpolate(np.zeros((4, 5, 3), np.uint8), np.zeros((4, 6, 3), np.uint8), 1, linear_blend)
    with pytest.raises(ValueError, match="no interpolation is called 'film'; there are: dis, blend, vfiformer"):
        make_middle("film")


def test_the_mean_over_the_channels_is_numpys_to_the_bit() -> None:
    for seed in range(5):
        first, second = np.random.default_rng(seed).normal(100, 60, (2, 37, 64, 3)).astype(np.float32)
        assert np.array_equal(_mean_difference(first, second), np.abs(first - second).mean(2))


def test_flow_finds_the_middle_of_a_motion_and_its_recursion_moves_evenly() -> None:
    first, half, second = textured(96, 128), textured(96, 128, 3), textured(96, 128, 6)
    inner = np.s_[8:-8, 16:-16]
    middle = flow_middle(first, second)
    assert error(middle[inner], half[inner]) < 2.0
    assert error(linear_blend(first, second)[inner], half[inner]) > 5 * error(middle[inner], half[inner])
    assert np.array_equal(flow_middle(first, second), middle)
    for n, frame in enumerate(interpolate(first, textured(96, 128, 8), 3, flow_middle)):
        assert error(frame[inner], textured(96, 128, n)[inner]) < 4.0, n


@pytest.mark.parametrize(("first", "second"), [("red", "blue"), (None, "yellow"), ("green", None)])
def test_colour_change_and_appearance_fade(first: str | None, second: str | None) -> None:
    before, after = scene(first), scene(second)
    assert error(flow_middle(before, after), linear_blend(before, after)) < 3.0


@pytest.mark.parametrize("size", [(1, 1), (7, 5), (16, 300), (240, 320)])
def test_any_size_and_equal_images_stay_as_they_are(size: tuple[int, int]) -> None:
    first, second = textured(*size), textured(*size, shift=1.5)
    frames = interpolate(first, second, 1, flow_middle)
    assert frames.shape == (3, *size, 3)
    assert error(frames[1], linear_blend(first, second)) < 12
    assert (interpolate(first, first, 1, flow_middle) == first).all()
