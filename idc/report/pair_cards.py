"""A captioned pair as pages show it: pictures, caption with its verdict and marked words, procedure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from idc.captioning.boxes import NamedBox, draw_boxes
from idc.data.images import resize_image
from idc.data.schema import CHANGE_TYPES, NO_CHANGE
from idc.data.text import words
from idc.metrics.change_maps import upsample
from idc.report.page import Card, Text_, html_join, reduced, struck, styled
from idc.util.units import score_text

_FONT_SIZE = 30
"""Of the names on pictures, which a card shows at about a third of their size."""
HEADLINE = "CIDEr"
"""The metric shown where there is room for only one."""


def pair_card(
    pair_id: str,
    before: np.ndarray,
    after: np.ndarray,
    caption: str,
    *,
    references: Sequence[str] = (),
    change_type: str | None = None,
    named_type: str | None = None,
    mask: np.ndarray | None = None,
    change_map: np.ndarray | None = None,
    frames: Sequence[np.ndarray] = (),
    confidence: Sequence[float] = (),
    keyframes: Sequence[int] = (),
    scores: Mapping[str, float] = {},
    nearest: str | None = None,
    note: str = "",
    warning: str | None = None,
    without_model: str | None = None,
) -> Card:
    """A captioned pair; images are uint8 RGB ``(H, W, 3)``. The caption has the colour of its verdict, and dots below
    the words that no reference has.

    Args:
        change_type: the annotated one, if it is known; ``named_type``: the one that the caption names.
        mask: ``(H, W)``, non-zero where the scene changed.
        change_map: the captioner's own, float32 ``(Y, X)`` in [0, 1] over the image after.
        frames: the procedure with both ends, l + 2 images; ``keyframes``: indices into it, from 1 to l.
        confidence: of the l frames between.
        nearest: the caption of the nearest training pair.
        note: where the pair is from; ``warning``: why the caption is not to be trusted.
        without_model: what to read in its place, if there is a reason.
    """
    views = [("before", before), ("after", after)]
    views += [("what changed", overlay(after, mask))] if mask is not None else []
    views += [("change map", heat_overlay(after, change_map))] if change_map is not None else []
    tags: list[Text_] = [pair_id]
    verdict = ""
    if change_type in CHANGE_TYPES:
        verdict = "right" if named_type == change_type else "wrong"
        mark = "✓" if verdict == "right" else "✗"
        tags.append(styled(verdict, f"{mark} is {_in_words(change_type)}, names {_in_words(named_type)}"))
    elif named_type is not None:
        tags.append(f"names {named_type}")
    tags += [f"{HEADLINE} {score_text(scores[HEADLINE], 0)}"] if HEADLINE in scores else []
    tags += [note] if note else []
    lines = [("", without_model or ""), (f"said {verdict}", _marked(caption, references))]
    film = []
    for index, image in enumerate(frames):
        inner = 0 < index < len(frames) - 1 and len(confidence) == len(frames) - 2
        label = {0: "before", len(frames) - 1: "after"}.get(index, f"frame {index}")
        label = f"{confidence[index - 1]:.3f}" if inner else label
        film.append((f"{label} key" if index in keyframes else label, image, index in keyframes))
    return Card(
        pair_id, views, [*lines, ("verdict wrong small", warning or "")], tags, film,
        [*references, *([f"nearest training pair: {nearest}"] if nearest else [])],
    )  # fmt: skip


def with_boxes(image: np.ndarray, boxes: Sequence[NamedBox]) -> np.ndarray:
    """An image as a card shows it, with boxes in pixels of the whole image."""
    return draw_boxes(reduced(image), boxes, image.shape, _FONT_SIZE)


def _in_words(change_type: str | None) -> str:
    return {None: "no type", NO_CHANGE: "no change"}.get(change_type) or str(change_type)


def _marked(caption: str, references: Sequence[str]) -> Text_:
    if not caption.strip():
        return styled("soft", "(empty caption)")
    shared = {word for reference in references for word in words(reference)}

    def agrees(word: str) -> bool:
        return not references or all(part in shared or not part[0].isalnum() for part in words(word))

    return html_join([word if agrees(word) else struck(word) for word in caption.split()], " ")


def overlay(image: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """The image dimmed, with the masked part in its colours under a tint and with an outline."""
    hit = np.asarray(mask > 0)
    if hit.shape != image.shape[:2]:
        hit = resize_image((hit * 255).astype(np.uint8), image.shape[:2]) > 127
    grey = image.mean(axis=2, keepdims=True) * 0.45 + 0.25 * image
    out = np.where(hit[..., None], 0.65 * image + 0.35 * np.array([255, 60, 40]), grey)
    # Eroded by the four neighbours: what the erosion takes away is the outline.
    padded = np.pad(hit, 1)
    inside = padded[:-2, 1:-1] & padded[2:, 1:-1] & padded[1:-1, :-2] & padded[1:-1, 2:]
    out[hit & ~inside] = (255, 220, 60)
    return np.clip(out, 0, 255).astype(np.uint8)


def heat_overlay(image: np.ndarray, change_map: np.ndarray) -> np.ndarray:
    """The image dimmed, under a tint in proportion to a change map ``(Y, X)`` in [0, 1]."""
    share = upsample(change_map, image.shape[:2]).clip(0, 1)[..., None]
    grey = image.mean(axis=2, keepdims=True) * 0.45 + 0.25 * image
    out = (1 - share) * grey + share * (0.55 * image + 0.45 * np.array([255, 60, 40]))
    return np.clip(out, 0, 255).astype(np.uint8)
