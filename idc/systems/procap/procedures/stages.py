"""The four stages that turn pairs into procedures: interpolate, tokenise, score, pack (:mod:`idc.data.pipeline`)."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from idc.data.images import ImageError, decode_image, encode_png
from idc.data.pipeline import Batch, StageSpec, good_rows, with_errors
from idc.data.text import Vocabulary
from idc.systems.procap.procedures.config import ProceduresConfig
from idc.systems.procap.procedures.similarity import Sampling, kinds_of, pair_rng, sample_keyframes
from idc.vision.interpolation.middle_frames import interpolate, make_middle
from idc.vision.tokenizer.config import TokenizerConfig
from idc.vision.tokenizer.model import ImageTokenizer, prepare_frame, to_images


class Interpolate:
    """Replaces ``before``, ``after`` (bytes or pixels) by ``frames``: uint8 (l + 2, H, W, 3), at the tokenizer's
    size."""

    def __init__(
        self, tokenizer: dict[str, Any], depth: int, interpolation: str, weights: str | None = None, threads: int = 1
    ) -> None:
        import cv2

        cv2.setNumThreads(1)
        if interpolation == "vfiformer" and not torch.cuda.is_available():
            torch.set_num_threads(threads)
        self.tokenizer = TokenizerConfig(**tokenizer)
        self.depth = depth
        self.middle = make_middle(interpolation, weights)

    def __call__(self, batch: Batch) -> Batch:
        batch = with_errors(batch)
        frames: list[np.ndarray | None] = [None] * len(batch["error"])
        for i in good_rows(batch):
            name = "before"
            try:
                before = self._frame(batch["before"][i])
                name = "after"
                after = self._frame(batch["after"][i])
            except ImageError as error:
                batch["error"][i] = f"{error.code}: {name}{', ' + error.detail if error.detail else ''}"
                continue
            frames[i] = interpolate(before, after, self.depth, self.middle)
        return {**{key: value for key, value in batch.items() if key not in ("before", "after")}, "frames": frames}

    def _frame(self, image: bytes | np.ndarray) -> np.ndarray:
        return prepare_frame(image if isinstance(image, np.ndarray) else decode_image(image), self.tokenizer)


class Tokenize:
    """Adds ``tokens`` int16 (l + 2, n_I) and ``features`` float16 (l + 2, n_I, d_z) of the ``frames``, in one pass.

    On a GPU under bf16 autocast; on a CPU in float32: CPUs without bf16 units emulate it, 10 to 20 times slower.
    """

    def __init__(self, tokenizer: str, frames_per_batch: int, threads: int) -> None:
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        if self.device.type == "cpu":
            torch.set_num_threads(threads)
        self.model = ImageTokenizer.load(tokenizer).to(self.device)
        self.frames_per_batch = frames_per_batch

    @torch.inference_mode()
    def __call__(self, batch: Batch) -> Batch:
        batch = with_errors(batch)
        rows = good_rows(batch)
        tokens: list[np.ndarray | None] = [None] * len(batch["error"])
        features: list[np.ndarray | None] = [None] * len(batch["error"])
        at_once = max(1, self.frames_per_batch // max((len(batch["frames"][i]) for i in rows), default=1))
        for start in range(0, len(rows), at_once):
            chunk = rows[start : start + at_once]
            images = to_images(np.concatenate([batch["frames"][i] for i in chunk]), self.device)
            if self.device.type == "cpu":
                images = images.contiguous(memory_format=torch.channels_last)
            with torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda"):
                t, f = self.model.tokens_and_features(images)
            all_tokens, all_features = t.to(torch.int16).cpu().numpy(), f.to(torch.float16).cpu().numpy()
            ends = np.cumsum([len(batch["frames"][i]) for i in chunk])[:-1]
            for i, row_tokens, row_features in zip(
                chunk, np.split(all_tokens, ends), np.split(all_features, ends), strict=True
            ):
                tokens[i], features[i] = row_tokens, row_features
        return {**batch, "tokens": tokens, "features": features}


class Score:
    """Adds the ``confidence`` float32 (l,) of the frames between, and the ``keyframes`` drawn by it."""

    def __init__(self, seed: int, num_keyframes: int, threads: int, **sampling: Any) -> None:
        if not torch.cuda.is_available():
            torch.set_num_threads(threads)
        self.sampling = Sampling(num_keyframes=num_keyframes, **sampling)
        self.num_keyframes = num_keyframes
        self.seed = seed

    def __call__(self, batch: Batch) -> Batch:
        batch = with_errors(batch)
        weights: list[np.ndarray | None] = [None] * len(batch["error"])
        keyframes: list[list[int] | None] = [None] * len(batch["error"])
        for i in good_rows(batch):
            weight = self.sampling(batch["frames"][i], batch["features"][i], batch["captions"][i])
            weights[i] = weight
            keyframes[i] = sample_keyframes(weight, self.num_keyframes, pair_rng(self.seed, batch["pair_id"][i]))
        return {**batch, "confidence": weights, "keyframes": keyframes}


class Pack:
    """Encodes everything as it is stored: PNG frames, bytes, caption ids."""

    def __init__(self, words: list[str], store_features: bool) -> None:
        self.vocabulary = Vocabulary(words)
        self.store_features = store_features

    def __call__(self, batch: Batch) -> Batch:
        batch = with_errors(batch)
        rows = set(good_rows(batch))
        packed = [self._row(batch, i) if i in rows else _NOTHING for i in range(len(batch["error"]))]
        return {**batch, **{name: [row[name] for row in packed] for name in _NOTHING}}

    def _row(self, batch: Batch, i: int) -> dict[str, Any]:
        return {
            "frames": [encode_png(frame, compress_level=1) for frame in batch["frames"][i]],
            "keyframes": batch["keyframes"][i],
            "confidence": batch["confidence"][i].tolist(),
            "tokens": batch["tokens"][i].tobytes(),
            "features": batch["features"][i].tobytes() if self.store_features else None,
            "caption_ids": [self.vocabulary.encode(caption) for caption in batch["captions"][i]],
        }


_SCORING = {
    "seed", "num_keyframes", "strategy", "similarity", "dinov2", "pair_encoder", "mix", "temperature",
}  # fmt: skip
"""Settings of :class:`Score`."""
_NOTHING: dict[str, Any] = dict.fromkeys(("frames", "keyframes", "confidence", "tokens", "features", "caption_ids"))


def stages(config: ProceduresConfig, tokenizer: TokenizerConfig, vocabulary: Vocabulary) -> list[StageSpec]:
    """The stages with their resources. Without a GPU all run in the same processes; with one, the stages that run a
    network have processes of their own: tokenising, and scoring by DINOv2 or the pair encoder."""
    threads = max(1, math.floor(config.cpus_per_actor))
    interpolating = StageSpec(
        Interpolate,
        {
            "tokenizer": tokenizer.model_dump(mode="json"),
            "depth": config.depth,
            "interpolation": config.interpolation,
            "weights": config.interpolation_weights,
            "threads": threads,
        },
        num_cpus=config.cpus_per_actor,
        concurrency=config.actors,
    )
    tokenising = replace(
        interpolating,
        cls=Tokenize,
        kwargs={"tokenizer": config.tokenizer, "frames_per_batch": config.frames_per_batch, "threads": threads},
    )
    if config.gpus_per_actor > 0:
        tokenising = replace(tokenising, num_cpus=1.0, num_gpus=config.gpus_per_actor, concurrency=1)
    kinds = kinds_of(config.strategy)
    network = "text" in kinds or ("visual" in kinds and config.similarity == "dinov2")
    scoring = replace(
        tokenising if network else interpolating,
        cls=Score,
        kwargs={"threads": threads, **config.model_dump(include=_SCORING)},
    )
    packing = replace(
        interpolating, cls=Pack, kwargs={"words": vocabulary.words, "store_features": config.store_features}
    )
    if config.gpus_per_actor > 0 and config.interpolation == "vfiformer":
        # equal needs: it shares the tokenizer's process, and its GPU
        interpolating = replace(tokenising, cls=interpolating.cls, kwargs=interpolating.kwargs)
    return [interpolating, tokenising, scoring, packing]
