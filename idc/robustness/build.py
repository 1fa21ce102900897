"""Robustness sets: a folder of pairs, perturbed in one way with a seed, as a folder of pairs.

**Words replaced.** NAMC (appendix A.3, table 10) fine-tunes with 20, 40, 60 and 80 % of the words replaced; it
specifies neither which words nor their replacements. Here every word of a caption is replaced with that probability
by another word of the training captions, all equally likely; words replaced at 20 % are replaced by the same words at
40 %. In a folder of *procedures* captions and their ids change: the same rows as of noised pairs, in seconds.

**Images corrupted** (:mod:`idc.robustness.corruptions`) **or shifted**: one draw per image. A shift is by whole pixels
in one of the eight directions, with the border's pixels repeated: what an imperfect registration leaves, and what a map
of pixel differences cannot tell from a change. The mask moves along: the parts of before and after of a rendered pair
each with its image, any other mask with the after image, which it lies over.

**Order swapped.** ``add`` and ``drop`` are exchanged, and so are the two images' scene graphs and views in a rendered
pair's ``meta`` and the two values of its mask. Changed pairs get new references from the scene, and without a scene are
left out; in the ``meta`` of others the conditions are exchanged, and what is true of one order alone is left out.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np

from idc.data.config import Corruption, CorruptJob, RobustnessConfig
from idc.data.images import ImageError, decode_image, encode_png
from idc.data.pipeline import Batch, FolderSource, StageSpec, good_rows, num_rows, take, with_errors
from idc.data.schema import CAPTION_ORIGINS, NO_CHANGE, PAIR_SCHEMA_VERSION
from idc.data.store import DatasetFolder, fingerprint, iter_rows, read_schema
from idc.data.text import Vocabulary, map_words, words
from idc.evaluation.provenance import describe_data
from idc.rendered.config import RenderConfig
from idc.rendered.differences import REVERSED
from idc.rendered.render import MASK_AFTER, MASK_BEFORE, two_masks
from idc.rendered.scene import reversed_record
from idc.rendered.sentences import MOST_CAPTIONS, captions_of_meta
from idc.robustness.corruptions import corrupt

VERSION = 2
"""Part of the fingerprint; to be raised when the same settings would produce other rows."""


def open_corruption(job: CorruptJob, overwrite: bool = False) -> tuple[DatasetFolder, FolderSource, list[StageSpec]]:
    """The folder, source and stages of a robustness set, for ``run_local`` or ``cluster.data.run_chunks_on_ray``.

    Raises:
        ValueError: ``job.pairs`` is not a complete folder of pairs (or procedures, for words), has no images, or no
            captions to draw words from; or ``job.out`` holds something else and ``overwrite`` is off.
    """
    splits = None if job.keep_others else job.perturbed()
    source = FolderSource(job.pairs, chunk_size=job.chunk_size, splits=splits)
    of = source.manifest
    words_only = job.kind == "replace_words"
    if of.kind != "pairs" and not (words_only and of.kind == "procedures"):
        allowed = "pairs or procedures" if words_only else "pairs"
        raise ValueError(f"{job.pairs} holds {of.kind}; kind={job.kind} takes {allowed}")
    if of.extra.get("images") is False and not words_only:
        raise ValueError(f"{job.pairs} was imported without images; kind={job.kind} needs them")
    config = RobustnessConfig(**job.model_dump(include=set(RobustnessConfig.model_fields), exclude_unset=True))
    which = "captions" if words_only else job.which
    record = {"of": of.fingerprint, "data_set": describe_data(job.pairs)["data_set"], "kind": job.kind,
              "severity": job.share if words_only else job.severity, "which": which,
              "splits": list(job.perturbed()), "seed": job.seed}  # fmt: skip
    settings = {**config.model_dump(mode="json"), "splits": list(job.perturbed())}
    folder = DatasetFolder.open_for_build(
        job.out,
        kind=of.kind,
        schema=read_schema(job.pairs),
        fingerprint=fingerprint("robustness", VERSION, PAIR_SCHEMA_VERSION, settings, source.fingerprint),
        config=job.model_dump(mode="json"),
        num_chunks=source.num_chunks,
        overwrite=overwrite,
        extra={**of.extra, "notes": [*of.extra.get("notes", []), sentence(config)], "robustness": record},
        inputs=of.inputs,
    )
    kwargs: dict[str, Any] = {"config": config}
    if words_only:
        kwargs |= {"vocabulary": training_words(job.pairs), "ids": of.extra.get("vocabulary")}
    return folder, source, [StageSpec(Perturb, kwargs, concurrency=job.workers)]


def sentence(config: RobustnessConfig) -> str:
    """The perturbation, as text."""
    of = " and ".join(config.perturbed())
    if config.kind == "replace_words":
        return f"robustness: {config.share:.0%} of the words in the captions of {of} replaced (seed {config.seed})"
    if config.kind == "swap_order":
        lost = "references rewritten if the scene is known, other changed pairs left out"
        return f"robustness: before and after swapped in {of}; {lost}"
    images = "both images" if config.which == "both" else f"the {config.which} image"
    return f"robustness: {config.kind} of severity {config.severity} on {images} of {of} (seed {config.seed})"


def training_words(path: str) -> list[str]:
    """The words of the training captions, sorted.

    Raises:
        ValueError: there are fewer than two.
    """
    vocabulary: set[str] = set()
    for row in iter_rows(path, ["captions"], "train", batch_size=4096):
        for caption in row["captions"]:
            vocabulary.update(words(caption))
    vocabulary -= {";", ","}
    if len(vocabulary) < 2:
        raise ValueError(
            f"{path} has {len(vocabulary)} words in its training captions; replacing words needs at least two"
        )
    return sorted(vocabulary)


def rng_of(config: RobustnessConfig, pair_id: str, role: str) -> np.random.Generator:
    """The random generator of one part of a pair: independent of worker, order, severity and share; another for every
    pair and part."""
    digest = hashlib.sha256(f"{config.seed}\n{config.kind}\n{role}\n{pair_id}".encode()).digest()
    return np.random.default_rng(int.from_bytes(digest[:8], "big"))


class Perturb:
    """Stage: changes the rows of the perturbed splits one by one; the others pass unchanged.

    Args:
        vocabulary: the words to draw from.
        ids: the vocabulary of a folder of procedures, from which ``caption_ids`` are made.
    """

    def __init__(
        self, config: RobustnessConfig, vocabulary: Sequence[str] = (), ids: Sequence[str] | None = None
    ) -> None:
        import cv2

        cv2.setNumThreads(1)
        self.config, self.words = config, list(vocabulary)
        self.ids = Vocabulary(ids) if ids is not None else None
        changes = {"replace_words": self._replace_words, "swap_order": self._swap_order}
        self.change: Callable[[dict[str, Any]], dict[str, Any] | None] = changes.get(config.kind, self._change_images)

    def __call__(self, batch: Batch) -> Batch:
        batch = {name: list(column) for name, column in with_errors(batch).items()}
        left_out = set()
        for i in good_rows(batch):
            if batch["split"][i] not in self.config.perturbed():
                continue
            try:
                changed = self.change({name: column[i] for name, column in batch.items()})
            except ImageError as error:
                batch["error"][i] = str(error)
                continue
            if changed is None:
                left_out.add(i)
            for name, value in (changed or {}).items():
                batch[name][i] = value
        return take(batch, [i for i in range(num_rows(batch)) if i not in left_out]) if left_out else batch

    # Each takes a row and returns the changed columns, or None to leave the row out.

    def _replace_words(self, row: dict[str, Any]) -> dict[str, Any]:
        rng, share = rng_of(self.config, row["pair_id"], "captions"), self.config.share
        assert share is not None

        def change(word: str) -> str:
            hit, drawn = rng.random() < share, int(rng.integers(len(self.words) - 1))
            if not hit:
                return word
            return self.words[-1] if self.words[drawn] == word else self.words[drawn]  # any other word, equally likely

        noised = [map_words(caption, change) for caption in row["captions"]]
        if "caption_ids" not in row:
            return {"captions": noised}
        assert self.ids is not None
        return {"captions": noised, "caption_ids": [self.ids.encode(caption) for caption in noised]}

    def _change_images(self, row: dict[str, Any]) -> dict[str, Any]:
        """``before`` and ``after`` corrupted or shifted, as PNG, and ``mask`` shifted with them."""
        config, changed = self.config, dict[str, Any]()
        assert config.severity is not None
        steps = {"before": (0, 0), "after": (0, 0)}
        for role in ("before", "after") if config.which == "both" else (config.which,):
            pixels, rng = decode_image(row[role]), rng_of(config, row["pair_id"], role)
            if config.kind == "shift":
                length = max(1, round(config.severity * min(pixels.shape[:2]) / SHIFT_UNIT))
                down, right = rng.choice(_DIRECTIONS)
                steps[role] = int(down) * length, int(right) * length
                pixels = shifted(pixels, *steps[role])
            else:
                pixels = corrupt(pixels, cast(Corruption, config.kind), config.severity, rng)
            changed[role] = encode_png(pixels)
        if config.kind == "shift" and row["mask"] is not None:
            mask = decode_image(row["mask"])[..., 0]
            if row["source"].startswith("rendered:"):
                before, after = _parts(mask)
                mask = two_masks(shifted(before, *steps["before"]), shifted(after, *steps["after"]))
            else:
                mask = shifted(mask, *steps["after"])
            changed["mask"] = encode_png(mask)
        return changed

    def _swap_order(self, row: dict[str, Any]) -> dict[str, Any] | None:
        """``before`` and ``after`` exchanged, and everything else that depends on their order."""
        meta = json.loads(row["meta"])
        kind = REVERSED.get(row["change_type"], row["change_type"])
        changed = {"before": row["after"], "after": row["before"], "change_type": kind}
        meta["swapped"] = True
        if row["source"].startswith("rendered:"):
            meta = reversed_record(meta)
            if row["mask"] is not None:
                before, after = _parts(decode_image(row["mask"])[..., 0])
                changed["mask"] = encode_png(two_masks(after, before))
            if kind != NO_CHANGE:
                rng, count = rng_of(self.config, row["pair_id"], "captions"), min(len(row["captions"]), MOST_CAPTIONS)
                share = RenderConfig().relation_share
                changed["captions"] = captions_of_meta(meta, kind, count, share, rng)
                if not changed["captions"]:
                    return None
        elif kind != NO_CHANGE:
            return None
        else:
            meta = {name: value for name, value in meta.items() if name not in _ONE_ORDER}
            if "conditions" in meta:  # of a rendered satellite pair
                meta["conditions"] = meta["conditions"][::-1]
        if "captions" in changed and CAPTION_ORIGINS in row:
            changed[CAPTION_ORIGINS] = None
        return {**changed, "meta": json.dumps(meta, sort_keys=True)}


SHIFT_UNIT = 64
"""A shift of severity s is s / 64 of the shorter side."""

_DIRECTIONS = [(down, right) for down in (-1, 0, 1) for right in (-1, 0, 1) if (down, right) != (0, 0)]


def shifted(pixels: np.ndarray, down: int, right: int) -> np.ndarray:
    """An image (H, W) or (H, W, C) moved by whole pixels, with the border's pixels repeated."""
    height, width = pixels.shape[:2]
    rows = np.clip(np.arange(height) - down, 0, height - 1)
    columns = np.clip(np.arange(width) - right, 0, width - 1)
    return np.ascontiguousarray(pixels[rows][:, columns])


_ONE_ORDER = ("guide", "questions", "words")
"""Keys of ``meta`` whose contents are about the change from the first to the second image."""


def _parts(mask: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The changed pixels of either image in a rendered pair's mask, bool (H, W)."""
    return mask & MASK_BEFORE > 0, mask & MASK_AFTER > 0
