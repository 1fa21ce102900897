"""Confidence (eq. 2) and the draw of key frames."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from idc.data.images import resize_image
from idc.systems.procap.procedures.config import ProceduresConfig
from idc.systems.procap.procedures.similarity import (
    Sampling,
    confidence,
    dinov2_similarity,
    evenly_spaced,
    pair_encoder_similarity,
    pair_rng,
    sample_keyframes,
    tokenizer_similarity,
)
from idc.vision.interpolation.middle_frames import interpolate, linear_blend
from tests.vision.pair_encoder.test_pair_encoder import tiny
from tests.vision.scenes import scene
from tests.vision.tiny_models import save_tiny_dinov2


def test_confidence_is_equation_2() -> None:
    s_before, s_after = np.array([0.9, 0.5, 0.2]), np.array([0.1, 0.5, 0.8])
    squares = np.array([0.64, 0.0, 0.36])
    for temperature in (1.0, 0.1):
        expected = 1 - np.exp(squares / temperature) / np.exp(squares / temperature).sum()
        np.testing.assert_allclose(confidence(s_before, s_after, temperature=temperature), expected, rtol=1e-6)
    np.testing.assert_allclose(confidence(s_before[:2], s_after[:2], temperature=1e-9), [0, 1])  # no overflow


def test_the_middle_of_a_change_is_the_most_confident() -> None:
    frames = red_to_blue()
    features = frames[:, ::4, ::4].reshape(9, -1, 3).astype(np.float16)
    ends = tokenizer_similarity(frames, features, [])
    assert ends is not None
    assert (np.diff(ends[0]) < 0).all()
    assert (np.diff(ends[1]) > 0).all()
    temperature = float(np.square(ends[0] - ends[1]).max())
    weights = sampling(strategy="visual", temperature=temperature)(frames, features, ["unused"])
    np.testing.assert_array_equal(weights, confidence(*ends, temperature))
    assert weights[0] < weights[1] < weights[2] < weights[3] == weights.max()
    alike = sampling(strategy="visual")(frames[[0] * 5], features[[0] * 5], [])
    np.testing.assert_allclose(alike, 1 - 1 / 3, rtol=1e-6)


def test_keyframes_follow_the_confidence_sorted_and_distinct() -> None:
    rng = np.random.default_rng(0)
    drawn = [sample_keyframes(np.array([0.0, 1.0, 3.0, 0.0, 4.0]), 1, rng)[0] for _ in range(4000)]
    shares = np.bincount(drawn, minlength=6) / 4000
    np.testing.assert_allclose(shares, [0, 0, 1 / 8, 3 / 8, 0, 4 / 8], atol=0.03)
    for seed in range(50):
        several = sample_keyframes(np.ones(7), 3, np.random.default_rng(seed))
        assert several == sorted(set(several) & set(range(1, 8)))
        assert len(several) == 3
    assert sample_keyframes(np.zeros(3), 3, rng) == [1, 2, 3]
    with pytest.raises(ValueError, match="4 key frames cannot be drawn from 3"):
        sample_keyframes(np.ones(3), 4, rng)


def test_a_pairs_draw_depends_on_seed_and_id_alone() -> None:
    draws = {(seed, name): pair_rng(seed, name).random() for seed in (0, 1) for name in ("a", "b")}
    assert len(set(draws.values())) == 4
    assert pair_rng(1, "b").random() == draws[1, "b"]


def sampling(**settings: Any) -> Sampling:
    return Sampling(ProceduresConfig(pairs="p", tokenizer="t", **settings))


def red_to_blue() -> np.ndarray:
    return interpolate(scene("red"), scene("blue"), 3, linear_blend)


def test_random_leaves_all_frames_alike_and_uniform_draws_none_but_its_own() -> None:
    frames, features = red_to_blue(), np.zeros((9, 4, 2))
    np.testing.assert_allclose(sampling(strategy="random")(frames, features, []), np.full(7, 6 / 7))
    for k, chosen in ((1, [4]), (2, [3, 5]), (4, [2, 3, 5, 6]), (7, [1, 2, 3, 4, 5, 6, 7])):
        weights = sampling(strategy="uniform", num_keyframes=k)(frames, features, [])
        assert sample_keyframes(weights, k, np.random.default_rng(k)) == chosen
    for between in (1, 3, 7, 15):
        for k in range(1, between + 1):
            chosen = evenly_spaced(between, k)
            assert chosen == sorted(set(chosen) & set(range(1, between + 1))), (between, k)
            assert len(chosen) == k


def test_dinov2_compares_class_tokens(tmp_path: Path) -> None:
    model = save_tiny_dinov2(tmp_path / "dinov2")
    frames = red_to_blue()[:4]
    s_before, s_after = dinov2_similarity(str(tmp_path / "dinov2"))(frames, np.zeros((4, 1, 1)), [])
    vectors = []
    for frame in frames:
        pixels = torch.tensor(resize_image(frame, 224)).permute(2, 0, 1)[None] / 255
        mean, std = torch.tensor([[0.485, 0.456, 0.406], [0.229, 0.224, 0.225]])[..., None, None]
        with torch.no_grad():
            vectors.append(model(pixel_values=(pixels - mean) / std).last_hidden_state[0, 0])
    expected = [[float(torch.cosine_similarity(vectors[end], vectors[n], dim=0)) for n in (1, 2)] for end in (0, 3)]
    np.testing.assert_allclose([s_before, s_after], expected, atol=1e-5)
    with pytest.raises(ValueError, match=r"dinov2=.*nowhere.* cannot be loaded as Dinov2Model"):
        dinov2_similarity(str(tmp_path / "nowhere"))


def test_visual_text_is_equation_12_and_mixed_is_both(tmp_path: Path) -> None:
    encoder = tiny()
    encoder.save(tmp_path / "pairs")
    frames, captions = red_to_blue(), ["the red square became blue", "the blue square"]
    features = frames[:, ::4, ::4].reshape(9, -1, 3).astype(np.float16)
    text = pair_encoder_similarity(str(tmp_path / "pairs"))(frames, features, captions)
    assert text is not None
    texts = encoder.encode_texts(captions)
    first = encoder.encode_pairs([frames[0]], [frames[3]]) @ texts.T
    second = encoder.encode_pairs([frames[3]], [frames[8]]) @ texts.T
    np.testing.assert_allclose([text[0][2], text[1][2]], [first.mean(), second.mean()], atol=1e-5)

    folder = str(tmp_path / "pairs")
    alone = sampling(strategy="visual_text", pair_encoder=folder, temperature=0.01)
    np.testing.assert_array_equal(alone(frames, features, captions), confidence(*text, temperature=0.01))
    both = sampling(strategy="mixed", pair_encoder=folder, mix=0.4)(frames, features, captions)
    parts = []
    for s_before, s_after in (text, tokenizer_similarity(frames, features, [])):
        square = np.square(s_before.astype(np.float64) - s_after)
        parts.append((square - square.min()) / (square.max() - square.min()))
    shares = np.exp(0.4 * parts[0] + 0.6 * parts[1])
    np.testing.assert_allclose(both, 1 - shares / shares.sum(), atol=1e-4)
    for strategy in (alone, sampling(strategy="mixed", pair_encoder=folder, mix=0.5)):
        np.testing.assert_allclose(strategy(frames, features, []), np.full(7, 6 / 7))  # no caption, nothing known
