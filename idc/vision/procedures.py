"""Pairs to procedures: the frames between, their tokens and features, confidence, key frames, caption ids.

Each step is a stage of :mod:`idc.data.pipeline`: interpolate, tokenise, score, pack. :func:`build` puts them together
and is given what runs them, so that the same build runs in this process and on Ray.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import torch

from idc.data.images import ImageError, decode_image, encode_png
from idc.data.pipeline import Batch, FolderSource, Source, StageSpec, good_rows, with_errors
from idc.data.store import DatasetFolder, Manifest, fingerprint, iter_rows, read_manifest
from idc.data.text import Vocabulary
from idc.schema import PAIR_SCHEMA_VERSION
from idc.vision.config import ProceduresConfig, TokenizerConfig
from idc.vision.interpolation import interpolate, make_middle
from idc.vision.similarity import confidence, make_similarity, pair_rng, sample_keyframes
from idc.vision.tokenizer import ImageTokenizer, prepare_frame, to_images, tokenizer_fingerprint
from idc.vision.videos import ReadVideos, video_fingerprint

VERSION = 1
"""Part of the fingerprint: raised when the same settings would give other procedures."""

_PERFORMANCE = frozenset(
    {
        "pairs",
        "tokenizer",
        "vocabulary",
        "frames_per_batch",
        "actors",
        "cpus_per_actor",
        "gpus_per_actor",
        "max_reject_share",
    }
)
"""Settings that do not change a procedure; pairs, tokenizer and vocabulary count by their own fingerprints."""


def procedure_schema() -> pa.Schema:
    """The columns of a procedure at rest; F frames are stored, l were interpolated.

    ``tokens`` is int16 (F, n_I) and ``features`` float16 (F, n_I, d_z), both row by row; ``keyframes`` are indices into
    ``frames``; ``confidence`` has all l frames.
    """
    return pa.schema(
        [
            pa.field("pair_id", pa.string(), nullable=False),
            pa.field("split", pa.string(), nullable=False),
            pa.field("change_type", pa.string()),
            pa.field("captions", pa.list_(pa.string()), nullable=False),
            pa.field("caption_ids", pa.list_(pa.list_(pa.int32())), nullable=False),
            pa.field("frames", pa.list_(pa.binary()), nullable=False),
            pa.field("confidence", pa.list_(pa.float32()), nullable=False),
            pa.field("keyframes", pa.list_(pa.int32()), nullable=False),
            pa.field("tokens", pa.binary(), nullable=False),
            pa.field("features", pa.binary()),
            pa.field("mask", pa.binary()),
            pa.field("meta", pa.string(), nullable=False),
        ]
    )


# -- stages ------------------------------------------------------------------------------------------------------


class Interpolate:
    """``before``, ``after`` (bytes) become ``frames``: uint8 (l + 2, H, W, 3), of the tokenizer's size."""

    def __init__(self, tokenizer: dict[str, Any], depth: int, interpolation: str) -> None:
        import cv2

        cv2.setNumThreads(1)
        self.tokenizer = TokenizerConfig(**tokenizer)
        self.depth = depth
        self.middle = make_middle(interpolation)

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

    def _frame(self, data: bytes) -> np.ndarray:
        return prepare_frame(decode_image(data), self.tokenizer)


class Tokenize:
    """``frames`` give ``tokens`` int16 (l + 2, n_I) and ``features`` float16 (l + 2, n_I, d_z), in one pass.

    On a GPU under bf16 autocast; on a CPU in float32: without bf16 units it is emulated, 10 to 20 times slower.
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
            some = rows[start : start + at_once]
            images = to_images(np.concatenate([batch["frames"][i] for i in some])).to(self.device)
            images = images.contiguous(memory_format=torch.channels_last)
            with torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda"):
                t, f = self.model.tokens_and_features(images)
            all_tokens, all_features = t.to(torch.int16).cpu().numpy(), f.to(torch.float16).cpu().numpy()
            ends = np.cumsum([len(batch["frames"][i]) for i in some])[:-1]
            for i, row_tokens, row_features in zip(
                some, np.split(all_tokens, ends), np.split(all_features, ends), strict=True
            ):
                tokens[i], features[i] = row_tokens, row_features
        return {**batch, "tokens": tokens, "features": features}


class Score:
    """``confidence`` float32 (l,) of the frames between, and the ``keyframes`` drawn by it."""

    def __init__(self, similarity: str, temperature: float, num_keyframes: int, seed: int) -> None:
        self.similarity = make_similarity(similarity)
        self.temperature = temperature
        self.num_keyframes = num_keyframes
        self.seed = seed

    def __call__(self, batch: Batch) -> Batch:
        batch = with_errors(batch)
        weights: list[np.ndarray | None] = [None] * len(batch["error"])
        keyframes: list[list[int] | None] = [None] * len(batch["error"])
        for i in good_rows(batch):
            s_before, s_after = self.similarity(batch["frames"][i], batch["features"][i])
            weight = confidence(s_before, s_after, self.temperature)
            weights[i] = weight
            keyframes[i] = sample_keyframes(weight, self.num_keyframes, pair_rng(self.seed, batch["pair_id"][i]))
        return {**batch, "confidence": weights, "keyframes": keyframes}


class Pack:
    """Everything as it is stored: PNG frames, bytes, caption ids."""

    def __init__(self, words: list[str], stored_frames: str, store_features: bool) -> None:
        self.vocabulary = Vocabulary(words)
        self.stored_frames = stored_frames
        self.store_features = store_features

    def __call__(self, batch: Batch) -> Batch:
        batch = with_errors(batch)
        rows = set(good_rows(batch))
        packed = [self._row(batch, i) if i in rows else _NOTHING for i in range(len(batch["error"]))]
        return {**batch, **{name: [row[name] for row in packed] for name in _NOTHING}}

    def _row(self, batch: Batch, i: int) -> dict[str, Any]:
        frames, keyframes = batch["frames"][i], batch["keyframes"][i]
        tokens, features = batch["tokens"][i], batch["features"][i]
        if self.stored_frames == "keyframes":
            kept = [0, *keyframes, len(frames) - 1]
            frames, tokens, features = frames[kept], tokens[kept], features[kept]
            keyframes = list(range(1, len(kept) - 1))
        return {
            "frames": [encode_png(frame, compress_level=1) for frame in frames],
            "keyframes": keyframes,
            "confidence": batch["confidence"][i].tolist(),
            "tokens": tokens.tobytes(),
            "features": features.tobytes() if self.store_features else None,
            "caption_ids": [self.vocabulary.encode(caption) for caption in batch["captions"][i]],
        }


_NOTHING: dict[str, Any] = dict.fromkeys(("frames", "keyframes", "confidence", "tokens", "features", "caption_ids"))


# -- the build ---------------------------------------------------------------------------------------------------


class Runner(Protocol):
    """What runs chunks through stages: :func:`idc.data.pipeline.run_local`, or the same on Ray."""

    def __call__(
        self, folder: DatasetFolder, source: Source, stages: list[StageSpec], *, max_reject_share: float, name: str
    ) -> Manifest: ...


def build(config: ProceduresConfig, path: str, run: Runner, *, overwrite: bool = False) -> Manifest:
    """Build the folder of procedures at ``path``, or go on with it; nothing is done if it is there.

    Args:
        run: runs the chunks; a job passes the one for its cluster.
        overwrite: replace procedures of other settings, pairs or tokenizer.

    Raises:
        ValueError: the pairs or the tokenizer cannot be read, or ``path`` holds something else.
        TooManyRejects: more pairs than ``config.max_reject_share`` cannot be used.
    """
    tokenizer = ImageTokenizer.load(config.tokenizer).config
    if tokenizer.codebook_size > np.iinfo(np.int16).max + 1:
        raise ValueError(f"{config.tokenizer}: {tokenizer.codebook_size} codes do not fit the int16 of stored tokens")
    pairs = read_manifest(config.pairs, kind="pairs")
    source = FolderSource(config.pairs, chunk_size=config.pairs_per_chunk, kind="pairs", limit=config.max_pairs)
    tokenizer_print = tokenizer_fingerprint(config.tokenizer)
    vocabulary = training_vocabulary(config)
    words = fingerprint(vocabulary.words)
    settings = config.model_dump(mode="json", exclude={*_PERFORMANCE, "videos", "video_channels"})
    if config.videos:
        settings["videos"] = [config.video_channels, *(video_fingerprint(path) for path in config.videos)]
    identity = fingerprint(
        "procedures", VERSION, PAIR_SCHEMA_VERSION, settings, pairs.fingerprint, tokenizer_print, words
    )
    folder = DatasetFolder.open_for_build(
        path,
        kind="procedures",
        schema=procedure_schema(),
        fingerprint=identity,
        config=config.model_dump(mode="json"),
        num_chunks=source.num_chunks,
        overwrite=overwrite,
        extra=folder_extra(config, tokenizer, tokenizer_print, vocabulary),
    )
    return run(
        folder,
        source,
        stages(config, tokenizer, vocabulary),
        max_reject_share=config.max_reject_share,
        name="procedures",
    )


def training_vocabulary(config: ProceduresConfig) -> Vocabulary:
    """The words of the training split's captions (only that column is read, as a stream), or another folder's."""
    if config.vocabulary is not None:
        return Vocabulary(read_manifest(config.vocabulary, kind="procedures").extra["vocabulary"])
    rows = iter_rows(config.pairs, columns=["captions"], split="train", batch_size=4096)
    return Vocabulary.build((text for row in rows for text in row["captions"]), config.min_word_count)


def folder_extra(
    config: ProceduresConfig, tokenizer: TokenizerConfig, tokenizer_print: str, vocabulary: Vocabulary
) -> dict[str, Any]:
    """What a reader of the folder needs beside the rows."""
    stored = config.num_between if config.stored_frames == "all" else config.num_keyframes
    return {
        "num_frames": stored + 2,
        "num_between": config.num_between,
        "stored_frames": config.stored_frames,
        "image_size": tokenizer.image_size,
        "patches_per_frame": tokenizer.patches_per_frame,
        "grid": list(tokenizer.grid),
        "feature_dim": tokenizer.latent_dim,
        "features": config.store_features,
        "codebook_size": tokenizer.codebook_size,
        "tokenizer": config.tokenizer,
        "tokenizer_fingerprint": tokenizer_print,
        "vocabulary": vocabulary.words,
        "num_keyframes": config.num_keyframes,
    }


def stages(config: ProceduresConfig, tokenizer: TokenizerConfig, vocabulary: Vocabulary) -> list[StageSpec]:
    """The stages and what they need. Without a GPU all run in the same processes; with one, tokenising has its own."""
    shape = tokenizer.model_dump(mode="json")
    threads = max(1, math.floor(config.cpus_per_actor))
    interpolating = StageSpec(
        Interpolate,
        {"tokenizer": shape, "depth": config.depth, "interpolation": config.interpolation},
        num_cpus=config.cpus_per_actor,
        concurrency=config.actors,
    )
    if config.videos:
        videos = {"videos": list(config.videos), "between": config.num_between, "channels": config.video_channels}
        interpolating = replace(interpolating, cls=ReadVideos, kwargs={"tokenizer": shape, **videos})
    tokenising = replace(
        interpolating,
        cls=Tokenize,
        kwargs={"tokenizer": config.tokenizer, "frames_per_batch": config.frames_per_batch, "threads": threads},
    )
    if config.gpus_per_actor > 0:
        tokenising = replace(tokenising, num_cpus=1.0, num_gpus=config.gpus_per_actor, concurrency=1)
    scoring = replace(
        interpolating,
        cls=Score,
        kwargs={
            "similarity": config.similarity,
            "temperature": config.temperature,
            "num_keyframes": config.num_keyframes,
            "seed": config.seed,
        },
    )
    packing = replace(
        interpolating,
        cls=Pack,
        kwargs={
            "words": vocabulary.words,
            "stored_frames": config.stored_frames,
            "store_features": config.store_features,
        },
    )
    return [interpolating, tokenising, scoring, packing]


# -- reading -----------------------------------------------------------------------------------------------------


def filmstrip(row: dict[str, Any]) -> np.ndarray:
    """A stored procedure as one picture: its frames side by side, a bar of confidence under each frame between (if all
    are stored), key frames marked with a white bar; uint8 (H', W', 3)."""
    frames = [decode_image(data) for data in row["frames"]]
    height, width = frames[0].shape[:2]
    bar = max(8, height // 6)
    strip = np.zeros((height + bar, width * len(frames), 3), np.uint8)
    weights = np.asarray(row["confidence"])
    low, high = float(weights.min()), float(weights.max())
    for n, frame in enumerate(frames):
        left = n * width
        strip[:height, left : left + width] = frame
        if 1 <= n <= len(weights) and len(frames) == len(weights) + 2:
            share = 0.5 if high - low < 1e-6 else (weights[n - 1] - low) / (high - low)
            top = height + bar - max(2, round(share * bar))
            colour = (255, 255, 255) if n in row["keyframes"] else (90, 130, 220)
            strip[top:, left + 2 : left + width - 2] = colour
    return strip
