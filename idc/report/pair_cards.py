"""A captioned pair as pages show it: pictures, verdict, marked words, filmstrip (``templates/pair_cards.html``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from idc.data.images import resize_image
from idc.data.text import words
from idc.metrics.change_maps import upsample
from idc.schema import CHANGE_TYPES, NO_CHANGE
from idc.units import score_text

HEADLINE = "CIDEr"
"""The metric shown where there is room for only one."""


@dataclass(frozen=True)
class GalleryItem:
    """A captioned pair; images are uint8 RGB ``(H, W, 3)``.

    Attributes:
        pair_id: its id.
        before, after: the two images.
        caption: the model's caption.
        references: reference captions, may be empty.
        change_type: the annotated one, if it is known.
        named_type: the one that the caption names, if it names one.
        mask: ``(H, W)``, non-zero where the scene changed.
        frames: the procedure with both ends, l + 2 images; may be empty.
        confidence: of the l frames between.
        keyframes: indices into ``frames`` of the key frames, from 1 to l.
        scores: of this caption.
        nearest: the caption of the nearest training pair.
        note: where the pair is from.
        warning: why the caption is not to be trusted, if there is a reason.
        without_model: what to read in its place, if there is a reason.
        change_map: the captioner's own, float32 ``(Y, X)`` in [0, 1] over the image after.
    """

    pair_id: str
    before: np.ndarray
    after: np.ndarray
    caption: str
    references: Sequence[str] = ()
    change_type: str | None = None
    named_type: str | None = None
    mask: np.ndarray | None = None
    frames: Sequence[np.ndarray] = ()
    confidence: Sequence[float] = ()
    keyframes: Sequence[int] = ()
    scores: Mapping[str, float] = field(default_factory=dict)
    nearest: str | None = None
    note: str = ""
    warning: str | None = None
    without_model: str | None = None
    change_map: np.ndarray | None = None

    @property
    def verdict(self) -> str:
        """Whether the caption names the pair's change type, ``right`` or ``wrong``; empty if the type is not known."""
        if self.change_type not in CHANGE_TYPES:
            return ""
        return "right" if self.named_type == self.change_type else "wrong"

    @property
    def actual(self) -> str:
        """The annotated change type in words."""
        return "no change" if self.change_type == NO_CHANGE else str(self.change_type)

    @property
    def named(self) -> str:
        """The change type that the caption names, in words."""
        return {None: "no type", NO_CHANGE: "no change"}.get(self.named_type) or str(self.named_type)

    @property
    def explanation(self) -> str:
        """The verdict in words."""
        actual = "nothing changed" if self.change_type == NO_CHANGE else f"the change type is “{self.change_type}”"
        said = "as the caption says" if self.verdict == "right" else f"the caption names {self.named}"
        return f"{actual}, {said}."

    @property
    def views(self) -> list[tuple[str, np.ndarray]]:
        """Before, after and, if the changed region or the captioner's change map is known, its overlay."""
        views = [("before", self.before), ("after", self.after)]
        if self.mask is not None:
            views.append(("what changed", overlay(self.after, self.mask)))
        if self.change_map is not None:
            views.append(("change map", heat_overlay(self.after, self.change_map)))
        return views

    @property
    def headline(self) -> str:
        """The caption's score, times 100."""
        return f"{HEADLINE} {score_text(self.scores[HEADLINE], 0)}" if HEADLINE in self.scores else ""

    @property
    def marked(self) -> list[tuple[str, bool]]:
        """The caption's words, each with whether a reference has it. Without references every word counts as known."""
        reference_words = {word for reference in self.references for word in words(reference)}
        return [
            (word, not self.references or all(part in reference_words or not part[0].isalnum() for part in words(word)))
            for word in self.caption.split()
        ]

    @property
    def film(self) -> list[Frame]:
        """The procedure as a filmstrip."""
        last = len(self.frames) - 1
        film = []
        for index, image in enumerate(self.frames):
            inner = 0 < index < last and len(self.confidence) == last - 1
            confidence = float(self.confidence[index - 1]) if inner else None
            label = {0: "before", last: "after"}.get(index, f"frame {index}")
            film.append(Frame(image, f"frame {index}", label, confidence, index in self.keyframes))
        return film


@dataclass(frozen=True)
class Frame:
    """A frame of a filmstrip: its picture, the picture's description, its label or confidence, and whether it is a key
    frame."""

    image: np.ndarray
    alt: str
    label: str
    confidence: float | None = None
    key: bool = False


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
