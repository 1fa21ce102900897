"""Known noise in the descriptions of rendered pairs: words that the oracle made wrong, and regions that show an object
which no phrase of the description fits."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from idc.data.images import decode_image
from idc.data.rendered.draw import cast
from idc.data.rendered.scene import Thing, View
from idc.data.text import words
from idc.metrics.hallucination import WORDS, look_of, named_objects
from idc.systems.namc.nim import NoiseIdentification, Texts
from idc.training.task import Batch


def noisy_words(text: str, noise: Sequence[dict[str, Any]] | None, image: str) -> list[int] | None:
    """Of each word 1 if it is known to be wrong (an injected one), else 0; None if nothing is known. A missing detail
    is no word."""
    if noise is None:
        return None
    spans = [
        (record["start"], record["end"])
        for record in noise
        if record["image"] == image and record["end"] > record["start"]
    ]
    flags, position, lower = [], 0, text.lower().replace("\u2019", "'")
    for word in words(text):
        position = lower.index(word, position)
        flags.append(int(any(start <= position < end for start, end in spans)))
        position += len(word)
    return flags


def undescribed_patches(
    text: str, meta: Mapping[str, Any], side: int, image: bytes, positions: int
) -> np.ndarray | None:
    """The object at the centre of each patch: 1 for one that no phrase of the text fits, 0 for one that a phrase fits,
    -1 for no object.

    Args:
        text: the description of the image.
        meta: of a rendered pair.
        side: 0 for the image before, 1 for the one after.
        image: its file, for its proportions.
        positions: P, patches of a square grid.

    Returns:
        (P,); None if the pair has no scene.
    """
    if not {"before", "after", "views"} <= meta.keys():
        return None
    seen = meta[("before", "after")[side]]
    named = named_objects(text)
    undescribed = [not any(phrase and phrase <= look for phrase in named) for look in map(look_of, seen)]
    height, width, _ = decode_image(image).shape
    shown = cast(tuple(Thing(**thing) for thing in seen), View.of_record(meta["views"][side]), width, height)
    grid = math.isqrt(positions)
    rows, columns = (((np.arange(grid) + 0.5) / grid * length).astype(int) for length in (height, width))
    centres = shown[np.ix_(rows, columns)].reshape(-1)
    return np.array([*undescribed, -1], int)[centres]


def ideal_irrelevance(text: str, objects: Sequence[Mapping[str, Any]]) -> dict[str, list[float]]:
    """Irrelevance of each word to a reader that knows every object of the image: the bounds of what eq. 1 can find.

    Args:
        objects: of the image, as the ``meta`` of a rendered pair has them.

    Returns:
        ``word``: 1 if no object has the attribute that the word names; ``phrase``: 1 if none fits the phrase up to the
        word, which is as far as CLIP's text encoder reads. 0.5 for words that name no attribute.
    """
    looks = [look_of(thing) for thing in objects]
    irrelevance: dict[str, list[float]] = {"word": [], "phrase": []}
    phrase: frozenset[tuple[str, str]] = frozenset()
    for word in words(text):
        attribute = WORDS.get(word)
        phrase = frozenset() if attribute is None else phrase | {attribute}
        for name, named in (("word", frozenset([attribute])), ("phrase", phrase)):
            missing = not any(named <= look for look in looks)
            irrelevance[name].append(0.5 if attribute is None else float(missing))
    return irrelevance


Known = dict[str, tuple[np.ndarray, np.ndarray]]
"""Figure -> irrelevances, and flags of the same shape: 1 is noise, 0 is none, -1 does not count."""


def known_irrelevance(nim: NoiseIdentification, batch: Batch, texts: Texts) -> Known:
    """The irrelevance of what is known to be noise or not, words and patches; and as the baseline of each figure that
    with the images of other pairs, where it knows only what it is of most words, or of most patches of objects.

    Args:
        batch: of described pairs.
        texts: their descriptions.
    """
    out: Known = {}
    for name, images in (("", batch["images"]), ("_of_strange_images", of_other_pairs(batch["images"]))):
        of_patches, of_words = nim.relevance(images, texts)
        out[f"wrong_word_auc{name}"] = ((1 - of_words).cpu().numpy(), batch["wrong"].cpu().numpy())
        out[f"undescribed_patch_auc{name}"] = ((1 - of_patches).cpu().numpy(), batch["undescribed"].cpu().numpy())
    return out


def of_other_pairs(images_N: Tensor) -> Tensor:
    """The images of a batch, or their features, befores first, dealt out to other pairs of it: half a batch away, as
    neighbours often show the same scene."""
    pairs = len(images_N) // 2
    return torch.cat([side.roll(max(1, pairs // 2), dims=0) for side in images_N.split(pairs)])


def areas_under_roc(batches: Iterable[Known]) -> dict[str, float]:
    """The area under the ROC curve of irrelevance as a detector of noise, for each figure of which noise and its
    absence occur."""
    from sklearn.metrics import roc_auc_score

    parts: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {}
    for batch in batches:
        for name, (scores, flags) in batch.items():
            parts.setdefault(name, []).append((scores[flags >= 0], flags[flags >= 0]))
    out = {}
    for name, chunks in parts.items():
        scores, flags = (np.concatenate(column) for column in zip(*chunks, strict=True))
        if 0 < flags.sum() < len(flags):
            out[name] = float(roc_auc_score(flags, scores))
    return out
