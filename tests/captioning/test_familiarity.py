"""Familiarity: the calibrated distance of a pair's image statistics from those of the training images."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from idc.captioning.familiarity import Familiarity, fit_familiarity, pair_statistics, statistics
from idc.data.images import resize_image
from idc.training.artifact import write_artifact

Pair = tuple[np.ndarray, np.ndarray]


def scene(random: np.random.Generator, side: int = 64) -> np.ndarray:
    """A grey baseline, lit from above or below, with a dark square somewhere on it."""
    light = 150 + random.integers(-15, 15) + np.linspace(-1, 1, 64) * random.normal(0, 15)
    pixels = np.broadcast_to(light[:, None, None], (64, 64, 3)).copy()
    top, left = random.integers(8, 48, 2)
    pixels[top : top + 10, left : left + 10] = random.integers(20, 90, 3)
    return resize_image(pixels.clip(0, 255).astype(np.uint8), side)


def pairs(seed: int, count: int) -> list[Pair]:
    random = np.random.default_rng(seed)
    return [(scene(random), scene(random)) for _ in range(count)]


@pytest.fixture(scope="module")
def fitted() -> Familiarity:
    return fit_familiarity(
        *((pair_statistics(*pair) for pair in pairs(seed, count)) for seed, count in ((0, 300), (1, 199)))
    )


def test_statistics_of_an_image_by_hand() -> None:
    """Left half red, right half white: half of the cells each, one step across."""
    image = np.full((64, 64, 3), 255, np.uint8)
    image[:, :32, 1:] = 0
    found = statistics(image)
    red, green, blue = found[:48].reshape(3, 4, 4)
    assert red.tolist() == [[1] * 4] * 4
    assert green.tolist() == blue.tolist() == [[0, 0, 1, 1]] * 4
    assert found[48:51] == pytest.approx([0, 0.5, 0.5])  # deviation of each channel
    assert found[51:54] == pytest.approx([0, 0, 0])  # gradient down
    assert found[54:57] == pytest.approx([0, 1 / 63, 1 / 63])  # gradient across
    assert found[57:] == pytest.approx([0.5, 0.5])  # saturation: mean, deviation


def test_pairs_of_the_domain_are_warned_of_as_often_as_the_threshold_says(fitted: Familiarity) -> None:
    """A conformal p-value is uniform on new pairs of the domain."""
    found = np.array([fitted(before, after) for before, after in pairs(2, 400)])
    assert found.min() >= 1 / 200
    for share in (0.05, 0.2, 0.5):
        assert abs((found <= share).mean() - share) < 0.08


def test_another_domain_has_the_lowest_familiarity_on_either_side(fitted: Familiarity) -> None:
    random = np.random.default_rng(3)
    inside, outside = scene(random), random.integers(0, 255, (48, 80, 3), dtype=np.uint8)
    lowest = pytest.approx(1 / 200)
    assert fitted(outside, outside) == lowest
    assert fitted(inside, outside) == lowest
    assert fitted(outside, inside) == lowest
    assert fitted(inside, inside) > 0.02


def brighter(seed: int, count: int) -> list[Pair]:
    """Scenes of another domain whose statistics are within the spread of those of :func:`pairs`."""
    return [(np.minimum(before, 215) + 40, np.minimum(after, 215) + 40) for before, after in pairs(seed, count)]


def test_a_damaged_file_is_refused_with_what_to_do(fitted: Familiarity, tmp_path: Path) -> None:
    import torch

    artifact = write_artifact(tmp_path / "x", system="toy", config={}, state_dict={"w": torch.ones(1)})
    fitted.save(artifact)
    file = artifact / "familiarity.safetensors"
    stored = load_file(file)
    for broken in ({**stored, "mean": stored["mean"][:-1]}, {"distances": stored["distances"]}):
        save_file(broken, file)
        with pytest.raises(ValueError, match=r"run jobs/calibrate\.py --overwrite"):
            Familiarity.read(artifact)
    file.write_bytes(b"{}")
    with pytest.raises(ValueError, match=r"familiarity\.safetensors is damaged"):
        Familiarity.read(artifact)
