"""The four stages that turn pairs into procedures: interpolate, tokenise, score, pack (:mod:`idc.data.pipeline`).

They are made of ``config``, a dumped :class:`ProceduresConfig` (but :class:`Pack`), and add columns to the rows without
an error."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from idc.data.images import ImageError, decode_image, encode_png
from idc.data.pipeline import Batch, StageSpec, good_rows, with_errors
from idc.data.text import Vocabulary
from idc.systems.procap.procedures.config import ProceduresConfig
from idc.systems.procap.procedures.similarity import Sampling, pair_rng, sample_keyframes
from idc.vision.interpolation.middle_frames import interpolate, make_middle
from idc.vision.tokenizer.config import TokenizerConfig
from idc.vision.tokenizer.model import ImageTokenizer, prepare_frame, to_images


def _set_threads(config: ProceduresConfig) -> None:
    if not torch.cuda.is_available():
        torch.set_num_threads(max(1, math.floor(config.cpus_per_actor)))


def _with_columns(batch: Batch, names: Sequence[str], rows: Mapping[int, Sequence[Any]]) -> Batch:
    """The batch with more columns: the values of ``rows``, by their number, and None in all others."""
    count = range(len(batch["error"]))
    return {
        **batch,
        **{name: [rows[i][at] if i in rows else None for i in count] for at, name in enumerate(names)},
    }


class Interpolate:
    """Replaces ``before``, ``after`` (bytes or pixels) by ``frames``: uint8 (l + 2, H, W, 3), of the tokenizer."""

    def __init__(self, config: dict[str, Any], tokenizer: dict[str, Any]) -> None:
        import cv2

        cv2.setNumThreads(1)
        self.config, self.tokenizer = ProceduresConfig.model_validate(config), TokenizerConfig(**tokenizer)
        if self.config.interpolation == "vfiformer":
            _set_threads(self.config)
        self.middle = make_middle(self.config.interpolation, self.config.interpolation_weights)

    def __call__(self, batch: Batch) -> Batch:
        batch, rows = with_errors(batch), {}
        for i in good_rows(batch):
            name = "before"
            try:
                before = self._frame(batch["before"][i])
                name = "after"
                after = self._frame(batch["after"][i])
            except ImageError as error:
                batch["error"][i] = f"{error.code}: {name}{', ' + error.detail if error.detail else ''}"
                continue
            rows[i] = [interpolate(before, after, self.config.depth, self.middle)]
        left = {key: value for key, value in batch.items() if key not in ("before", "after")}
        return _with_columns(left, ["frames"], rows)

    def _frame(self, image: bytes | np.ndarray) -> np.ndarray:
        return prepare_frame(image if isinstance(image, np.ndarray) else decode_image(image), self.tokenizer)


class Tokenize:
    """Adds ``tokens`` int16 (l + 2, n_I) and ``features`` float16 (l + 2, n_I, d_z) of the ``frames``, in one pass.

    On a GPU under bf16 autocast; on a CPU in float32: CPUs without bf16 units emulate it, 10 to 20 times slower.
    """

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = ProceduresConfig.model_validate(config)
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        _set_threads(self.config)
        self.model = ImageTokenizer.load(self.config.tokenizer).to(self.device)

    @torch.inference_mode()
    def __call__(self, batch: Batch) -> Batch:
        batch, rows = with_errors(batch), dict[int, Sequence[Any]]()
        good = good_rows(batch)
        at_once = max(1, self.config.frames_per_batch // max((len(batch["frames"][i]) for i in good), default=1))
        for start in range(0, len(good), at_once):
            chunk = good[start : start + at_once]
            images = to_images(np.concatenate([batch["frames"][i] for i in chunk]), self.device)
            if self.device.type == "cpu":
                images = images.contiguous(memory_format=torch.channels_last)
            with torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda"):
                tokens, features = self.model.tokens_and_features(images)
            ends = np.cumsum([len(batch["frames"][i]) for i in chunk])[:-1]
            stored = (tokens.to(torch.int16).cpu().numpy(), features.to(torch.float16).cpu().numpy())
            rows |= zip(chunk, zip(*(np.split(part, ends) for part in stored), strict=True), strict=True)
        return _with_columns(batch, ["tokens", "features"], rows)


class Score:
    """Adds the ``confidence`` float32 (l,) of the frames between, and the ``keyframes`` drawn by it."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = ProceduresConfig.model_validate(config)
        _set_threads(self.config)
        self.sampling = Sampling(self.config)

    def __call__(self, batch: Batch) -> Batch:
        batch, rows = with_errors(batch), {}
        for i in good_rows(batch):
            weight = self.sampling(batch["frames"][i], batch["features"][i], batch["captions"][i])
            rng = pair_rng(self.config.seed, batch["pair_id"][i])
            rows[i] = weight, sample_keyframes(weight, self.config.num_keyframes, rng)
        return _with_columns(batch, ["confidence", "keyframes"], rows)


class Pack:
    """Encodes everything as it is stored: PNG frames, bytes, caption ids."""

    def __init__(self, words: list[str], store_features: bool) -> None:
        self.vocabulary, self.store_features = Vocabulary(words), store_features

    def __call__(self, batch: Batch) -> Batch:
        batch = with_errors(batch)
        rows = {
            i: [
                [encode_png(frame, compress_level=1) for frame in batch["frames"][i]],
                batch["keyframes"][i],
                batch["confidence"][i].tolist(),
                batch["tokens"][i].tobytes(),
                batch["features"][i].tobytes() if self.store_features else None,
                [self.vocabulary.encode(caption) for caption in batch["captions"][i]],
            ]
            for i in good_rows(batch)
        }
        return _with_columns(batch, ["frames", "keyframes", "confidence", "tokens", "features", "caption_ids"], rows)


def stages(config: ProceduresConfig, tokenizer: TokenizerConfig, vocabulary: Vocabulary) -> list[StageSpec]:
    """The stages with their resources. Without a GPU all run in the same processes; with one, the stages that run a
    network have processes of their own: tokenising, and scoring by DINOv2 or the pair encoder."""
    settings = {"config": config.model_dump(mode="json")}
    kwargs = {**settings, "tokenizer": tokenizer.model_dump(mode="json")}
    interpolating = StageSpec(Interpolate, kwargs, num_cpus=config.cpus_per_actor, concurrency=config.actors)
    tokenising = replace(interpolating, cls=Tokenize, kwargs=settings)
    if config.gpus_per_actor > 0:
        tokenising = replace(tokenising, num_cpus=1.0, num_gpus=config.gpus_per_actor, concurrency=1)
    network = "text" in config.kinds or ("visual" in config.kinds and config.similarity == "dinov2")
    scoring = replace(tokenising if network else interpolating, cls=Score, kwargs=settings)
    words = {"words": vocabulary.words, "store_features": config.store_features}
    packing = replace(interpolating, cls=Pack, kwargs=words)
    if config.gpus_per_actor > 0 and config.interpolation == "vfiformer":
        # equal needs: it shares the tokenizer's process, and its GPU
        interpolating = replace(tokenising, cls=interpolating.cls, kwargs=interpolating.kwargs)
    return [interpolating, tokenising, scoring, packing]


class KeyFrames:
    """Computes the features of before, key frames and after of a pair, as a folder of procedures with these settings
    stores them. ValueError: weights that the settings name cannot be loaded, or the key frames were drawn with
    captions.

    The draw by confidence is seeded by the settings' seed and the pixels of the two images: the same pair always has
    the same draw, but not that of its stored procedure, which is seeded by the pair's id."""

    def __init__(self, config: ProceduresConfig, tokenizer: ImageTokenizer) -> None:
        if "text" in config.kinds:
            raise ValueError(
                "procedure=frames: the key frames of these procedures were drawn with captions, which a new pair does "
                "not have; build procedures with build.strategy=visual"
            )
        here = config.model_copy(update={"cpus_per_actor": float(torch.get_num_threads())})  # stages set the threads
        settings = here.model_dump(mode="json")
        self.config, self.tokenizer = config, tokenizer
        self.interpolate = Interpolate(settings, tokenizer.config.model_dump(mode="json"))
        self.score = Score(settings)

    @torch.no_grad()
    def __call__(self, befores: Sequence[np.ndarray], afters: Sequence[np.ndarray]) -> Tensor:
        """Features (B, k + 2, n_I, d_z) of pairs of uint8 RGB images (H, W, 3) of any sizes."""
        drawn = [_digest(before, after) for before, after in zip(befores, afters, strict=True)]
        batch = self.interpolate({"pair_id": drawn, "before": list(befores), "after": list(afters)})
        pixels, at_once = np.concatenate(batch["frames"]), self.config.frames_per_batch
        passes = [
            self.tokenizer.features(to_images(pixels[start : start + at_once], self.tokenizer.codebook.device)).float()
            for start in range(0, len(pixels), at_once)
        ]
        last = self.config.num_between + 1
        features = torch.cat(passes).unflatten(0, (len(befores), last + 1))
        # Similarity reads them in float16, as the stage between tokenizer and score does.
        stored = list(features.to(torch.float16).cpu().numpy())
        batch = self.score({**batch, "features": stored, "captions": [[] for _ in befores]})
        which = torch.tensor([[0, *chosen, last] for chosen in batch["keyframes"]], device=features.device)
        return features[torch.arange(len(which), device=features.device).unsqueeze(1), which]


def _digest(before: np.ndarray, after: np.ndarray) -> str:
    digest = hashlib.sha256()
    for image in (before, after):
        digest.update(np.ascontiguousarray(image).tobytes())
    return digest.hexdigest()
