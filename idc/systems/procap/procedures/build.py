"""Builds a folder of procedures from pairs: frames between, tokens and features, confidence, key frames, caption ids.

The work is done by the stages of ``stages.py``. :func:`build` is given the function that runs them, so that the same
build runs in this process and on Ray.
"""

from __future__ import annotations

import logging
import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from idc.data.pipeline import FolderSource, Runner
from idc.data.store import DatasetFolder, Manifest, fingerprint, iter_rows, read_manifest
from idc.data.text import Vocabulary
from idc.schema import PAIR_SCHEMA_VERSION
from idc.systems.procap.procedures.config import ProceduresConfig
from idc.systems.procap.procedures.official_frames import video_fingerprint
from idc.systems.procap.procedures.official_scores import OfficialScores
from idc.systems.procap.procedures.similarity import kinds_of
from idc.systems.procap.procedures.stages import stages
from idc.training.hashing import content_or_id
from idc.vision.interpolation.convert import fingerprint_of_weights
from idc.vision.tokenizer.config import TokenizerConfig
from idc.vision.tokenizer.model import read_config, tokenizer_fingerprint

log = logging.getLogger(__name__)

VERSION = 2
"""Part of the fingerprint; to be raised when the same settings would give other procedures."""

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
"""Settings that do not change a procedure; pairs, tokenizer and other inputs count by their own fingerprints."""


def procedure_schema() -> pa.Schema:
    """The columns of a stored procedure; F frames are stored, l were interpolated.

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


def build(config: ProceduresConfig, path: str, run: Runner, *, overwrite: bool = False) -> Manifest:
    """Build the folder of procedures at ``path``, or resume an interrupted build; a complete one is left as it is.

    Args:
        run: runs the chunks; a job passes the function for its cluster.
        overwrite: replace procedures of other settings, pairs or tokenizer.

    Raises:
        ValueError: the pairs, the tokenizer, the pair encoder or the scores cannot be read or do not fit, or ``path``
            holds procedures of other inputs or settings.
        TooManyRejects: more pairs than ``config.max_reject_share`` cannot be used.
    """
    tokenizer = read_config(config.tokenizer)
    if tokenizer.codebook_size > np.iinfo(np.int16).max + 1:
        raise ValueError(
            f"{config.tokenizer}: {tokenizer.codebook_size} codes do not fit the int16 of stored tokens; train a "
            "tokenizer with at most 32768"
        )
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
        inputs=_inputs(config),
    )
    return run(
        folder,
        source,
        stages(config, tokenizer, vocabulary, scores),
        max_reject_share=config.max_reject_share,
        name="procedures",
    )


def identity(config: ProceduresConfig) -> str:
    """Fingerprint of the procedures of a config: its settings, and everything it reads by content, never by path.

    This is the only definition: it marks the folder of procedures (:func:`build`) and names the step of a sweep.

    Raises:
        ValueError: an input is not usable, see :func:`build`.
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
    """Settings that the procedures depend on, without those that the strategy ignores, and without its default."""
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
    """Fingerprints of the files that the strategy reads."""
    if scores is not None:
        return ["scores", scores.fingerprint]
    if "text" in kinds_of(config.strategy):
        assert config.pair_encoder is not None
        return ["pair_encoder", tokenizer_fingerprint(config.pair_encoder)]
    return []


def _scores(config: ProceduresConfig, pairs: Manifest) -> OfficialScores | None:
    """Read the official scores, if the strategy uses them, and check them against the pairs.

    Raises:
        ValueError: they are of other pairs, or of another number of frames, or lack similarities that the strategy
            needs; or the strategy needs captions and there are none.
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
            f"{config.scores} has scores of {scores.num_frames} frames, but depth={config.depth} makes "
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
    scored = sum(name in scores.rows for name in names)
    if not scored:
        raise ValueError(
            f"{config.scores} has scores of pairs such as {next(iter(scores.rows))!r}, and none of those in "
            f"{config.pairs}, such as {names[0] if names else '(nothing)'!r}"
        )
    if scored < len(names):
        log.warning(
            "%d of %d pairs are not in %s; their key frames are drawn at random",
            len(names) - scored, len(names), config.scores,
        )  # fmt: skip
    return scores


def training_vocabulary(config: ProceduresConfig) -> Vocabulary:
    """The vocabulary of the training split's captions (only that column is read, as a stream), or another folder's."""
    if config.vocabulary is not None:
        return Vocabulary(read_manifest(config.vocabulary, kind="procedures").extra["vocabulary"])
    rows = iter_rows(config.pairs, columns=["captions"], split="train", batch_size=4096)
    return Vocabulary.build((text for row in rows for text in row["captions"]), config.min_word_count)


def _inputs(config: ProceduresConfig) -> dict[str, str]:
    """What a training on the procedures, and the card of its model, read besides them."""
    inputs = {"pairs": config.pairs, "tokenizer": config.tokenizer}
    if config.interpolation_weights is not None:
        inputs["interpolation_weights"] = config.interpolation_weights
    if Path(config.dinov2).expanduser().is_dir():  # else a hub id
        inputs["dinov2"] = config.dinov2
    return inputs


def folder_extra(
    config: ProceduresConfig, tokenizer: TokenizerConfig, tokenizer_print: str, vocabulary: Vocabulary
) -> dict[str, Any]:
    """Settings that a reader of the folder needs besides the rows."""
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
        "tokenizer_fingerprint": tokenizer_print,
        "vocabulary": vocabulary.words,
        "num_keyframes": config.num_keyframes,
    }
