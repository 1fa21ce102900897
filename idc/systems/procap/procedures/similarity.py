"""Choice of key frames: similarity of a frame to both ends, confidence, draw (ProCap, section 3.1.2)."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence

import numpy as np

from idc.systems.procap.procedures.config import Kind, ProceduresConfig

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


def dinov2_similarity(source: str) -> Similarity:
    """Cosine of DINOv2's class token after the last norm (eq. 11); ValueError if ``source`` is not a DINOv2, or
    cannot be reached."""
    from idc.vision.features import Dinov2Features

    read = Dinov2Features(source)
    return lambda frames, features, captions: _cosines(read(frames)[:, None])


def pair_encoder_similarity(folder: str) -> Similarity:
    """Cosine of the pairs (before, frame) and (frame, after) with the caption, mean over the captions (eq. 12)."""
    import torch

    from idc.vision.pair_encoder.model import PairEncoder

    encoder = PairEncoder.load(folder, "cuda" if torch.cuda.is_available() else "cpu")

    def similarity(frames: np.ndarray, features: np.ndarray, captions: Sequence[str]) -> Ends | None:
        if not captions:
            return None
        texts = encoder.encode_texts(list(captions))
        to_frame, from_frame = encoder.encode_steps(frames)
        return (to_frame @ texts.T).mean(1), (from_frame @ texts.T).mean(1)

    return similarity


def _cosines(vectors: np.ndarray) -> Ends:
    """Mean cosine of the inner vectors (l + 2, N, D) with the first and with the last."""
    unit = vectors / np.maximum(np.linalg.norm(vectors, axis=2, keepdims=True), 1e-6)
    between = unit[1:-1]
    return (between * unit[0]).sum(2).mean(1), (between * unit[-1]).sum(2).mean(1)


class Sampling:
    """Computes the confidence of a pair's frames by the strategy; loads only the models that it needs."""

    def __init__(self, config: ProceduresConfig) -> None:
        self.config = config
        self.similarities: dict[Kind, Similarity] = {}
        if "text" in config.kinds:
            assert config.pair_encoder is not None
            self.similarities["text"] = pair_encoder_similarity(config.pair_encoder)
        if "visual" in config.kinds:
            dinov2 = config.similarity == "dinov2"
            self.similarities["visual"] = dinov2_similarity(config.dinov2) if dinov2 else tokenizer_similarity

    def __call__(self, frames: np.ndarray, features: np.ndarray, captions: Sequence[str]) -> np.ndarray:
        """Confidence (l,) float32 of the frames between, of what :data:`Similarity` takes."""
        config, between = self.config, len(frames) - 2
        if config.strategy == "uniform":  # exactly these are drawn
            numbers = np.arange(1, between + 1)
            return np.isin(numbers, evenly_spaced(between, config.num_keyframes)).astype(np.float32)
        ends = [similarity(frames, features, captions) for similarity in self.similarities.values()]
        differences = [np.square(pair[0].astype(np.float64) - pair[1]) for pair in ends if pair is not None]
        if len(differences) < max(1, len(ends)):
            return np.full(between, 1 - 1 / between, np.float32)  # eq. 2 of equal similarities
        if config.strategy == "mixed":
            text, visual = map(_to_unit, differences)
            differences = [config.mix * text + (1 - config.mix) * visual]
        return confidence(differences[0], config.temperature)


def evenly_spaced(between: int, k: int) -> list[int]:
    """k of the frames 1..l at equal distances from each other and from both ends, halves rounded to even (official)."""
    return [int(np.rint(n / (k + 1) * (between + 1))) for n in range(1, k + 1)]


def confidence(squared_differences: np.ndarray, temperature: float) -> np.ndarray:
    """w = 1 - softmax((s_before - s_after)^2 / temperature), eq. 2: (l,) to (l,) float32, high for frames half way in
    meaning. The paper has no temperature, see :attr:`ProceduresConfig.temperature`."""
    difference = squared_differences / temperature
    shares = np.exp(difference - difference.max())
    return (1 - shares / shares.sum()).astype(np.float32)


def _to_unit(values: np.ndarray) -> np.ndarray:
    low, high = values.min(), values.max()
    return (values - low) / (high - low) if high > low else np.zeros_like(values)


def sample_keyframes(confidence: np.ndarray, k: int, rng: np.random.Generator) -> list[int]:
    """Draw k frames without replacement, in proportion to their confidence: ascending indices into 1..l, as in a
    stored procedure, whose index 0 is the frame before. ValueError: there are fewer than k frames."""
    if k > len(confidence):
        raise ValueError(f"{k} key frames cannot be drawn from {len(confidence)} frames")
    # A draw without replacement needs k weights above 0.
    weight = np.maximum(np.asarray(confidence, dtype=np.float64), 1e-9)
    drawn = rng.choice(len(weight), size=k, replace=False, p=weight / weight.sum())
    return sorted(int(index) + 1 for index in drawn)


def pair_rng(seed: int, pair_id: str) -> np.random.Generator:
    """The generator of a pair's stored draw, independent of worker and order."""
    return np.random.default_rng((seed, zlib.crc32(pair_id.encode())))
