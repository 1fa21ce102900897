"""How informative a frame is: similarity to both ends, confidence, the draw of key frames (ProCap, section 3.1.2)."""

from __future__ import annotations

import zlib
from typing import Protocol

import numpy as np


class Similarity(Protocol):
    """s(I, .) of eq. 2, for I = before and I = after at once."""

    def __call__(self, frames: np.ndarray, features: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(s(before, .), s(after, .)), each (l,), of the frames between.

        Args:
            frames: uint8 (l + 2, H, W, 3), before first and after last.
            features: float (l + 2, n_I, d_z), the tokenizer's features of these frames.
        """
        ...


def make_similarity(name: str) -> Similarity:
    """The similarity called ``name`` in :class:`idc.vision.config.ProceduresConfig`; only its own parts are loaded."""
    if name == "tokenizer":
        return TokenizerSimilarity()
    if name == "pixels":
        return PixelSimilarity()
    raise ValueError(f"no similarity is called {name!r}; there are: tokenizer, pixels")


class TokenizerSimilarity:
    """Cosine of the features patch by patch, mean over the patches: needs no other model than the run's own.

    The pair's mean feature is taken off first; what all its frames have in common would bring every cosine close to 1.
    """

    def __call__(self, frames: np.ndarray, features: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        features = features.astype(np.float32)
        return _cosines(features - features.mean(axis=(0, 1)))


class PixelSimilarity:
    """Cosine of the pixels around the pair's mean colour, mean over the pixels."""

    def __call__(self, frames: np.ndarray, features: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        pixels = frames.reshape(len(frames), -1, 3).astype(np.float32)
        return _cosines(pixels - pixels.mean(axis=(0, 1)))


def _cosines(vectors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean cosine of the inner vectors (l + 2, N, D) with the first and with the last."""
    unit = vectors / np.maximum(np.linalg.norm(vectors, axis=2, keepdims=True), 1e-6)
    between = unit[1:-1]
    return (between * unit[0]).sum(2).mean(1), (between * unit[-1]).sum(2).mean(1)


def confidence(s_before: np.ndarray, s_after: np.ndarray, temperature: float = 1.0) -> np.ndarray:
    """w = 1 - softmax((s_before - s_after)^2 / temperature), eq. 2: (l,) to (l,) float32.

    High for frames half way in meaning. The paper has no temperature (1). Cosines of frames of one pair differ by
    little, their squared differences by less, so at 1 the softmax is nearly uniform, w is about 1 - 1/l for all, and
    the draw nearly uniform too; a temperature of the order of the squared differences makes the score tell.
    """
    difference = np.square(s_before.astype(np.float64) - s_after) / temperature
    shares = np.exp(difference - difference.max())
    return (1 - shares / shares.sum()).astype(np.float32)


def sample_keyframes(confidence: np.ndarray, k: int, rng: np.random.Generator) -> list[int]:
    """k frames drawn without replacement, in proportion to their confidence: ascending indices into 1..l.

    Index 0 is the frame before; the l frames between are 1..l, as in a stored procedure.

    Raises:
        ValueError: there are fewer than k frames.
    """
    if k > len(confidence):
        raise ValueError(f"{k} key frames cannot be drawn from {len(confidence)} frames")
    weight = np.maximum(np.asarray(confidence, dtype=np.float64), 1e-9)
    drawn = rng.choice(len(weight), size=k, replace=False, p=weight / weight.sum())
    return sorted(int(index) + 1 for index in drawn)


def pair_rng(seed: int, pair_id: str) -> np.random.Generator:
    """The generator of a pair's stored draw: the same whatever the worker and the order."""
    return np.random.default_rng((seed, zlib.crc32(pair_id.encode())))
