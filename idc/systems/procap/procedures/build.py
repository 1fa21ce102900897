"""Pairs to procedures: the frames between, their tokens and features, confidence, key frames, caption ids.

Each step is a stage of :mod:`idc.data.pipeline`: interpolate, tokenise, score, pack. :func:`build` puts them together
and is given what runs them, so that the same build runs in this process and on Ray.
"""

from __future__ import annotations

import logging
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from idc.data.images import ImageError, decode_image, encode_png
from idc.data.pipeline import Batch, FolderSource, Runner, StageSpec, good_rows, with_errors
from idc.data.store import DatasetFolder, Manifest, fingerprint, iter_rows, read_manifest
from idc.data.text import Vocabulary
from idc.schema import PAIR_SCHEMA_VERSION
from idc.systems.procap.procedures.config import ProceduresConfig
from idc.systems.procap.procedures.official_frames import ReadVideos, video_fingerprint
from idc.systems.procap.procedures.official_scores import OfficialScores
from idc.systems.procap.procedures.similarity import Sampling, kinds_of, pair_rng, sample_keyframes
from idc.training.artifact import content_or_id
from idc.vision.interpolation.convert import fingerprint_of_weights
from idc.vision.interpolation.middle_frames import interpolate, make_middle
from idc.vision.tokenizer.config import TokenizerConfig
from idc.vision.tokenizer.model import ImageTokenizer, prepare_frame, to_images, tokenizer_fingerprint

log = logging.getLogger(__name__)

VERSION = 1
"""Part of the fingerprint: raised when the same settings would give other procedures."""

_PERFORMANCE = frozenset(
    {
        "pairs",
        "tokenizer",
        "pair_encoder",
        "scores",
        "vocabulary",
        "interpolation_weights",
        "videos",
        "video_channels",
        "frames_per_batch",
        "actors",
        "cpus_per_actor",
        "gpus_per_actor",
        "max_reject_share",
    }
)
"""Settings that do not change a procedure; pairs, tokenizer and what else is read count by their own fingerprints."""


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
    """``before``, ``after`` (bytes or pixels) become ``frames``: uint8 (l + 2, H, W, 3), of the tokenizer's size."""

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
            name = batch["pair_id"][i]
            weight = self.sampling(name, batch["frames"][i], batch["features"][i], batch["captions"][i])
            weights[i] = weight
            keyframes[i] = sample_keyframes(weight, self.num_keyframes, pair_rng(self.seed, name))
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


def build(config: ProceduresConfig, path: str, run: Runner, *, overwrite: bool = False) -> Manifest:
    """Build the folder of procedures at ``path``, or go on with it; nothing is done if it is there.

    Args:
        run: runs the chunks; a job passes the one for its cluster.
        overwrite: replace procedures of other settings, pairs or tokenizer.

    Raises:
        ValueError: the pairs, the tokenizer, the pair encoder or the scores cannot be read or do not fit, or ``path``
            holds something else.
        TooManyRejects: more pairs than ``config.max_reject_share`` cannot be used.
    """
    tokenizer = ImageTokenizer.load(config.tokenizer).config
    if tokenizer.codebook_size > np.iinfo(np.int16).max + 1:
        raise ValueError(f"{config.tokenizer}: {tokenizer.codebook_size} codes do not fit the int16 of stored tokens")
    pairs = read_manifest(config.pairs, kind="pairs")
    if not config.videos:
        pairs.need_images(config.pairs)
    source = FolderSource(config.pairs, chunk_size=config.pairs_per_chunk, kind="pairs", limit=config.max_pairs)
    tokenizer_print = tokenizer_fingerprint(config.tokenizer)
    vocabulary = training_vocabulary(config)
    scores = _scores(config, pairs)
    folder = DatasetFolder.open_for_build(
        path,
        kind="procedures",
        schema=procedure_schema(),
        fingerprint=_identity(config, pairs, tokenizer_print, vocabulary, scores),
        config=config.model_dump(mode="json"),
        num_chunks=source.num_chunks,
        overwrite=overwrite,
        extra=folder_extra(config, tokenizer, tokenizer_print, vocabulary),
    )
    return run(
        folder,
        source,
        stages(config, tokenizer, vocabulary, scores),
        max_reject_share=config.max_reject_share,
        name="procedures",
    )


def identity(config: ProceduresConfig) -> str:
    """What the procedures of a config are made of: its settings, and everything it reads by content, never by path.

    The one definition: it marks the folder of procedures (:func:`build`) and names the step of a sweep.

    Raises:
        ValueError: something it reads is not usable, as :func:`build`.
    """
    pairs = read_manifest(config.pairs, kind="pairs")
    tokenizer_print = tokenizer_fingerprint(config.tokenizer)
    return _identity(config, pairs, tokenizer_print, training_vocabulary(config), _scores(config, pairs))


def _identity(
    config: ProceduresConfig,
    pairs: Manifest,
    tokenizer_print: str,
    vocabulary: Vocabulary,
    scores: OfficialScores | None,
) -> str:
    weights, videos = config.interpolation_weights, config.videos
    return fingerprint(
        "procedures",
        VERSION,
        PAIR_SCHEMA_VERSION,
        _settings(config),
        pairs.fingerprint,
        tokenizer_print,
        fingerprint(vocabulary.words),
        *([] if weights is None else [fingerprint_of_weights(weights)]),
        *([config.video_channels, *map(video_fingerprint, videos)] if videos else []),
        *_sampling_prints(config, scores),
    )


def _settings(config: ProceduresConfig) -> dict[str, Any]:
    """The settings that make the procedures what they are; not what the strategy does not use, nor its default."""
    settings = config.model_dump(mode="json", exclude=set(_PERFORMANCE))
    kinds = kinds_of(config.strategy)
    if config.strategy == "visual":
        del settings["strategy"]
    if not kinds:
        del settings["temperature"]
    if "visual" not in kinds or config.scores is not None:
        del settings["similarity"]
    if settings.get("similarity") != "dinov2":
        del settings["dinov2"]
    else:
        settings["dinov2"] = content_or_id(config.dinov2)
    if config.strategy != "mixed":
        del settings["mix"]
    return settings


def _sampling_prints(config: ProceduresConfig, scores: OfficialScores | None) -> list[str]:
    """Fingerprints of what the strategy reads."""
    if scores is not None:
        return ["scores", scores.fingerprint]
    if "text" in kinds_of(config.strategy):
        assert config.pair_encoder is not None
        return ["pair_encoder", tokenizer_fingerprint(config.pair_encoder)]
    return []


def _scores(config: ProceduresConfig, pairs: Manifest) -> OfficialScores | None:
    """The official scores, if the strategy takes them; checked against the pairs.

    Raises:
        ValueError: they are of other pairs, or of another number of frames, or lack what the strategy needs; or it
            needs captions, and there are none.
    """
    kinds = kinds_of(config.strategy)
    if config.scores is None or not kinds:
        if "text" in kinds and pairs.num_rows and pairs.num_without_captions == pairs.num_rows:
            raise ValueError(
                f"strategy={config.strategy!r} compares frames with captions, and no pair of {config.pairs} has one; "
                "take strategy=visual"
            )
        return None
    scores = OfficialScores.read(config.scores)
    if scores.num_frames != config.num_between + 2:
        raise ValueError(
            f"{config.scores} has scores of {scores.num_frames} frames, and depth={config.depth} makes "
            f"{config.num_between + 2}; take depth={round(math.log2(scores.num_frames - 1))}"
        )
    for kind in kinds:
        if lacking := scores.lacking(kind):
            what = {"text": "CLIP4IDC", "visual": "DINOv2"}[kind]
            raise ValueError(
                f"{config.scores}: {lacking} of {len(scores.rows)} pairs have no {what} scores; "
                f"strategy={config.strategy!r} needs them"
            )
    names = [row["pair_id"] for row in iter_rows(config.pairs, columns=["pair_id"])][: config.max_pairs]
    known = sum(name in scores.rows for name in names)
    if not known:
        raise ValueError(
            f"{config.scores} has scores of pairs such as {next(iter(scores.rows))!r}, and none of those in "
            f"{config.pairs}, such as {names[0] if names else '(nothing)'!r}"
        )
    if known < len(names):
        log.warning(
            "%d of %d pairs are not in %s; their key frames are drawn at random",
            len(names) - known, len(names), config.scores,
        )  # fmt: skip
    return scores


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


def stages(
    config: ProceduresConfig, tokenizer: TokenizerConfig, vocabulary: Vocabulary, scores: OfficialScores | None = None
) -> list[StageSpec]:
    """The stages and what they need. Without a GPU all run in the same processes; with one, what runs a network on it
    has its own: tokenising, and scoring by DINOv2 or the pair encoder."""
    shape = tokenizer.model_dump(mode="json")
    threads = max(1, math.floor(config.cpus_per_actor))
    interpolating = StageSpec(
        Interpolate,
        {
            "tokenizer": shape,
            "depth": config.depth,
            "interpolation": config.interpolation,
            "weights": config.interpolation_weights,
            "threads": threads,
        },
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
    kinds = kinds_of(config.strategy) if scores is None else ()
    network = "text" in kinds or ("visual" in kinds and config.similarity == "dinov2")
    scoring = replace(
        tokenising if network else interpolating,
        cls=Score,
        kwargs={
            "seed": config.seed,
            "num_keyframes": config.num_keyframes,
            "threads": threads,
            "strategy": config.strategy,
            "similarity": config.similarity,
            "dinov2": config.dinov2,
            "pair_encoder": config.pair_encoder,
            "scores": scores,
            "mix": config.mix,
            "temperature": config.temperature,
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
    if config.gpus_per_actor > 0 and config.interpolation == "vfiformer":
        # equal needs: it shares the tokenizer's process, and its GPU
        interpolating = replace(tokenising, cls=interpolating.cls, kwargs=interpolating.kwargs)
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
