"""Choice of key frames: similarity of a frame to both ends, confidence, draw (ProCap, section 3.1.2)."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np

Kind = Literal["text", "visual"]
Strategy = Literal["visual", "visual_text", "mixed", "random", "uniform"]
Ends = tuple[np.ndarray, np.ndarray]
"""(s(before, .), s(., after)) of eq. 2, each (l,), of the frames between."""


Similarity = Callable[[np.ndarray, np.ndarray, Sequence[str]], Ends | None]
"""s of eq. 2 of the frames between, or None if it cannot be computed. Of frames, uint8 (l + 2, H, W, 3), before first
and after last; the tokenizer's features of them, float (l + 2, n_I, d_z); captions, what changed, maybe none."""


def tokenizer_similarity(frames: np.ndarray, features: np.ndarray, captions: Sequence[str]) -> Ends:
    """Cosine of the features patch by patch, mean over the patches; needs no model besides the run's own tokenizer.

    The pair's mean feature is subtracted first; what all its frames have in common would bring every cosine close to 1.
    """
    features = features.astype(np.float32)
    return _cosines(features - features.mean(axis=(0, 1)))


class Dinov2Similarity:
    """Cosine of DINOv2's class token after the last norm (eq. 11).

    Args:
        source: a local folder or a hub id.

    Raises:
        ValueError: it is not a DINOv2, or cannot be reached.
    """

    def __init__(self, source: str) -> None:
        from idc.vision.features import Dinov2Features

        self.features = Dinov2Features(source)

    def __call__(self, frames: np.ndarray, features: np.ndarray, captions: Sequence[str]) -> Ends:
        return _cosines(self.features(frames)[:, None])


class PairEncoderSimilarity:
    """Cosine of the pairs (before, frame) and (frame, after) with the caption, mean over the captions (eq. 12)."""

    def __init__(self, folder: str) -> None:
        import torch

        from idc.vision.pair_encoder.model import PairEncoder

        self.encoder = PairEncoder.load(folder, "cuda" if torch.cuda.is_available() else "cpu")

    def __call__(self, frames: np.ndarray, features: np.ndarray, captions: Sequence[str]) -> Ends | None:
        if not captions:
            return None
        texts = self.encoder.encode_texts(list(captions))
        to_frame, from_frame = self.encoder.encode_steps(frames)
        return (to_frame @ texts.T).mean(1), (from_frame @ texts.T).mean(1)


def _cosines(vectors: np.ndarray) -> Ends:
    """Mean cosine of the inner vectors (l + 2, N, D) with the first and with the last."""
    unit = vectors / np.maximum(np.linalg.norm(vectors, axis=2, keepdims=True), 1e-6)
    between = unit[1:-1]
    return (between * unit[0]).sum(2).mean(1), (between * unit[-1]).sum(2).mean(1)


# -- confidence --------------------------------------------------------------------------------------------------


class Sampling:
    """Computes the confidence of a pair's frames by one strategy; loads only the models that the strategy needs.

    Args:
        similarity, others: settings of :class:`.config.ProceduresConfig` that the strategy needs.
    """

    def __init__(
        self,
        strategy: Strategy,
        *,
        similarity: str = "tokenizer",
        dinov2: str = "",
        pair_encoder: str | None = None,
        mix: float | None = None,
        temperature: float = 1.0,
        num_keyframes: int = 1,
    ) -> None:
        assert strategy != "mixed" or mix is not None
        self.strategy = strategy
        self.mix = mix
        self.temperature = temperature
        self.num_keyframes = num_keyframes
        self.visual: Similarity | None = None
        self.visual_text: Similarity | None = None
        if "visual" in kinds_of(strategy):
            self.visual = Dinov2Similarity(dinov2) if similarity == "dinov2" else tokenizer_similarity
        if "text" in kinds_of(strategy):
            assert pair_encoder is not None
            self.visual_text = PairEncoderSimilarity(pair_encoder)

    def __call__(self, frames: np.ndarray, features: np.ndarray, captions: Sequence[str]) -> np.ndarray:
        """Confidence (l,) float32 of the frames between, of what :data:`Similarity` takes."""
        between = len(frames) - 2
        if self.strategy == "uniform":
            return only(evenly_spaced(between, self.num_keyframes), between)
        if self.strategy == "random":
            return equal_confidence(between)
        visual = self.visual(frames, features, captions) if self.visual is not None else None
        text = self.visual_text(frames, features, captions) if self.visual_text is not None else None
        if self.strategy == "mixed":
            if text is None or visual is None:
                return equal_confidence(between)
            assert self.mix is not None
            parts = [_to_unit(squared_difference(*ends)) for ends in (text, visual)]
            return _confidence_of(self.mix * parts[0] + (1 - self.mix) * parts[1], self.temperature)
        ends = text if self.strategy == "visual_text" else visual
        return equal_confidence(between) if ends is None else confidence(*ends, self.temperature)


def kinds_of(strategy: Strategy) -> tuple[Kind, ...]:
    """The kinds of similarity that a strategy needs."""
    kinds: dict[Strategy, tuple[Kind, ...]] = {
        "mixed": ("text", "visual"), "visual": ("visual",), "visual_text": ("text",),
    }  # fmt: skip
    return kinds.get(strategy, ())


def confidence(s_before: np.ndarray, s_after: np.ndarray, temperature: float = 1.0) -> np.ndarray:
    """w = 1 - softmax((s_before - s_after)^2 / temperature), eq. 2: (l,) to (l,) float32.

    High for frames half way in meaning. The paper has no temperature (1). Cosines of frames of one pair differ little,
    their squared differences even less, so at 1 the softmax is nearly uniform, w is about 1 - 1/l for all, and the draw
    is nearly uniform too; with a temperature of the order of the squared differences the scores differ.
    """
    return _confidence_of(squared_difference(s_before, s_after), temperature)


def squared_difference(s_before: np.ndarray, s_after: np.ndarray) -> np.ndarray:
    """(s_before - s_after)^2 of eq. 2, float64."""
    return np.square(s_before.astype(np.float64) - s_after)


def equal_confidence(between: int) -> np.ndarray:
    """The confidence by eq. 2 of frames with equal similarities: 1 - 1/l for each, (l,) float32."""
    return np.full(between, 1 - 1 / between, np.float32)


def evenly_spaced(between: int, k: int) -> list[int]:
    """k of the frames 1..l at equal distances from each other and from both ends, halves rounded to even (official)."""
    return [int(np.rint(n / (k + 1) * (between + 1))) for n in range(1, k + 1)]


def only(keyframes: Sequence[int], between: int) -> np.ndarray:
    """The confidence (l,) float32 with which exactly these frames, of 1..l, are drawn."""
    weight = np.zeros(between, np.float32)
    weight[np.asarray(keyframes) - 1] = 1
    return weight


def _confidence_of(difference: np.ndarray, temperature: float) -> np.ndarray:
    difference = difference / temperature
    shares = np.exp(difference - difference.max())
    return (1 - shares / shares.sum()).astype(np.float32)


def _to_unit(values: np.ndarray) -> np.ndarray:
    """Scale ``values`` to [0, 1]; all 0 if they are equal."""
    low, high = values.min(), values.max()
    return (values - low) / (high - low) if high > low else np.zeros_like(values)


def sample_keyframes(confidence: np.ndarray, k: int, rng: np.random.Generator) -> list[int]:
    """Draw k frames without replacement, in proportion to their confidence: ascending indices into 1..l.

    Index 0 is the frame before; the l frames between are 1..l, as in a stored procedure.

    Raises:
        ValueError: there are fewer than k frames.
    """
    if k > len(confidence):
        raise ValueError(f"{k} key frames cannot be drawn from {len(confidence)} frames")
    # A draw without replacement needs k weights above 0.
    weight = np.maximum(np.asarray(confidence, dtype=np.float64), 1e-9)
    drawn = rng.choice(len(weight), size=k, replace=False, p=weight / weight.sum())
    return sorted(int(index) + 1 for index in drawn)


def pair_rng(seed: int, pair_id: str) -> np.random.Generator:
    """The generator of a pair's stored draw, independent of worker and order."""
    return np.random.default_rng((seed, zlib.crc32(pair_id.encode())))
