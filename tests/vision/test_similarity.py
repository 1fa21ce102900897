"""Confidence (eq. 2) and the draw of key frames."""

from __future__ import annotations

import numpy as np
import pytest

from idc.vision.interpolation import LinearBlend, interpolate
from idc.vision.similarity import (
    PixelSimilarity,
    TokenizerSimilarity,
    confidence,
    make_similarity,
    pair_rng,
    sample_keyframes,
)
from tests.vision.scenes import scene


def test_confidence_is_equation_2() -> None:
    s_before, s_after = np.array([0.9, 0.5, 0.2]), np.array([0.1, 0.5, 0.8])
    squares = np.array([0.64, 0.0, 0.36])
    expected = 1 - np.exp(squares) / np.exp(squares).sum()
    np.testing.assert_allclose(confidence(s_before, s_after), expected, rtol=1e-6)
    sharp = 1 - np.exp(squares / 0.1) / np.exp(squares / 0.1).sum()
    np.testing.assert_allclose(confidence(s_before, s_after, temperature=0.1), sharp, rtol=1e-6)


def test_confidence_with_a_small_temperature_does_not_overflow() -> None:
    weights = confidence(np.array([0.9, 0.5]), np.array([0.1, 0.5]), temperature=1e-9)
    np.testing.assert_allclose(weights, [0.0, 1.0])


@pytest.mark.parametrize("similarity", [PixelSimilarity(), TokenizerSimilarity()])
def test_the_middle_of_a_change_is_the_most_confident(similarity: PixelSimilarity | TokenizerSimilarity) -> None:
    frames = interpolate(scene("red"), scene("blue"), 3, LinearBlend())
    features = frames[:, ::4, ::4].reshape(9, -1, 3).astype(np.float16)
    s_before, s_after = similarity(frames, features)
    assert s_before.shape == s_after.shape == (7,)
    assert (np.diff(s_before) < 0).all()
    assert (np.diff(s_after) > 0).all()
    weights = confidence(s_before, s_after, temperature=float(np.square(s_before - s_after).max()))
    assert int(weights.argmax()) == 3
    assert weights[0] < weights[1] < weights[2] < weights[3]


def test_equal_frames_are_equally_confident() -> None:
    frames = np.stack([scene("red")] * 5)
    weights = confidence(*PixelSimilarity()(frames, np.zeros((5, 4, 2))))
    np.testing.assert_allclose(weights, 1 - 1 / 3)


def test_keyframes_follow_the_confidence() -> None:
    weights = np.array([0.0, 1.0, 3.0, 0.0, 4.0])
    rng = np.random.default_rng(0)
    drawn = [sample_keyframes(weights, 1, rng)[0] for _ in range(4000)]
    shares = np.bincount(drawn, minlength=6) / 4000
    np.testing.assert_allclose(shares, [0, 0, 1 / 8, 3 / 8, 0, 4 / 8], atol=0.03)


def test_keyframes_are_sorted_and_distinct() -> None:
    for seed in range(50):
        drawn = sample_keyframes(np.ones(7), 3, np.random.default_rng(seed))
        assert drawn == sorted(set(drawn))
        assert len(drawn) == 3
        assert set(drawn) <= set(range(1, 8))
    assert sample_keyframes(np.zeros(3), 3, np.random.default_rng(0)) == [1, 2, 3]
    with pytest.raises(ValueError, match="4 key frames cannot be drawn from 3"):
        sample_keyframes(np.ones(3), 4, np.random.default_rng(0))


def test_a_pairs_draw_depends_on_seed_and_id_alone() -> None:
    draws = {(seed, name): pair_rng(seed, name).random() for seed in (0, 1) for name in ("a", "b")}
    assert len(set(draws.values())) == 4
    assert pair_rng(1, "b").random() == draws[1, "b"]


def test_unknown_similarity() -> None:
    with pytest.raises(ValueError, match="clip4idc"):
        make_similarity("clip4idc")
