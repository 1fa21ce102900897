"""Builds a folder of procedures from pairs: frames between, tokens and features, confidence, key frames, caption ids.

The work is done by the stages of ``stages.py``. :func:`build` is given the function that runs them, so that the same
build runs in this process and on Ray.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from idc.data.pipeline import FolderSource, Runner
from idc.data.schema import PAIR_SCHEMA_VERSION
from idc.data.store import DatasetFolder, Manifest, fingerprint, iter_rows, read_manifest
from idc.data.text import Vocabulary
from idc.systems.procap.procedures.config import ProceduresConfig
from idc.systems.procap.procedures.stages import stages
from idc.training.hashing import content_or_id
from idc.vision.interpolation.model import load_vfiformer
from idc.vision.pretrained import network_fingerprint
from idc.vision.tokenizer.model import read_config

VERSION = 2
"""Part of the fingerprint; to be raised when the same settings would give other procedures."""

_PERFORMANCE = {
    "pairs", "tokenizer", "pair_encoder", "vocabulary", "interpolation_weights", "frames_per_batch", "actors",
    "cpus_per_actor", "gpus_per_actor", "max_reject_share",
}  # fmt: skip
"""Settings that do not change a procedure; pairs, tokenizer and other inputs count by their own fingerprints."""


def procedure_schema() -> pa.Schema:
    """The columns of a stored procedure, of l + 2 frames: ``tokens`` is int16 (l + 2, n_I) and ``features`` float16
    (l + 2, n_I, d_z), both row by row; ``keyframes`` are indices into ``frames``; ``confidence`` is of the l between.
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
    ``run`` runs the chunks; ``overwrite`` replaces procedures of other settings, pairs or tokenizer.

    Raises:
        ValueError: the pairs, the tokenizer or the pair encoder cannot be read or do not fit, or ``path`` holds
            procedures of other inputs or settings.
        TooManyRejects: more pairs than ``config.max_reject_share`` cannot be used.
    """
    tokenizer = read_config(config.tokenizer)
    if tokenizer.codebook_size > np.iinfo(np.int16).max + 1:
        raise ValueError(
            f"{config.tokenizer}: {tokenizer.codebook_size} codes do not fit the int16 of stored tokens; train a "
            "tokenizer with at most 32768"
        )
    pairs = read_manifest(config.pairs, kind="pairs")
    pairs.need_images(config.pairs)
    source = FolderSource(config.pairs, chunk_size=config.pairs_per_chunk, kind="pairs", limit=config.max_pairs)
    vocabulary = training_vocabulary(config)
    if "text" in config.kinds and pairs.num_rows and pairs.num_without_captions == pairs.num_rows:
        raise ValueError(
            f"build.strategy={config.strategy} compares frames with captions, and no pair of {config.pairs} has one; "
            "take build.strategy=visual"
        )
    folder = DatasetFolder.open_for_build(
        path,
        kind="procedures",
        schema=procedure_schema(),
        fingerprint=identity(config, vocabulary),
        config=config.model_dump(mode="json"),
        num_chunks=source.num_chunks,
        overwrite=overwrite,
        extra={
            "num_frames": config.num_between + 2,
            "image_size": tokenizer.image_size,
            "grid": list(tokenizer.grid),
            "feature_dim": tokenizer.latent_dim,
            "features": config.store_features,
            "codebook_size": tokenizer.codebook_size,
            "tokenizer_fingerprint": network_fingerprint(config.tokenizer),
            "vocabulary": vocabulary.words,
            "num_keyframes": config.num_keyframes,
        },
        inputs=_inputs(config),
    )
    return run(
        folder,
        source,
        stages(config, tokenizer, vocabulary),
        max_reject_share=config.max_reject_share,
        name="procedures",
    )


def identity(config: ProceduresConfig, vocabulary: Vocabulary | None = None) -> str:
    """Fingerprint of the procedures of a config: its settings, and everything it reads by content, never by path.
    The only definition: it marks the folder (:func:`build`) and names the step of a sweep. ValueError: an input is
    not usable."""
    weights, prints = config.interpolation_weights, list[str]()
    if weights is not None:
        load_vfiformer(weights)  # to fail before the build
    if "text" in config.kinds:
        assert config.pair_encoder is not None
        prints = ["pair_encoder", network_fingerprint(config.pair_encoder)]
    return fingerprint(
        "procedures",
        VERSION,
        PAIR_SCHEMA_VERSION,
        _settings(config),
        read_manifest(config.pairs, kind="pairs").fingerprint,
        network_fingerprint(config.tokenizer),
        fingerprint((training_vocabulary(config) if vocabulary is None else vocabulary).words),
        *([] if weights is None else [network_fingerprint(weights)]),
        *prints,
    )


def _settings(config: ProceduresConfig) -> dict[str, Any]:
    """Settings that the procedures depend on, without those that the strategy ignores, and without its default."""
    settings = config.model_dump(mode="json", exclude=_PERFORMANCE)
    if config.strategy == "visual":
        del settings["strategy"]
    if not config.kinds:
        del settings["temperature"]
    if "visual" not in config.kinds:
        del settings["similarity"]
    if settings.get("similarity") != "dinov2":
        del settings["dinov2"]
    else:
        settings["dinov2"] = content_or_id(config.dinov2)
    if config.strategy != "mixed":
        del settings["mix"]
    return settings


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
