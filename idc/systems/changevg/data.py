"""Pairs as the guide's training samples: two images, the class of every pixel, one caption.

The caption that is drawn depends on (seed, epoch, index) alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image

from idc.changeimti.class_masks import class_map
from idc.data.images import decode_image, resize_image
from idc.data.schema import NO_CHANGE
from idc.data.text import PAD, Vocabulary
from idc.nn.captioned_rows import CaptionedRows, of_validation, padded
from idc.systems.changevg.config import GuideConfig
from idc.training.data import sample_rng
from idc.training.task import Batch

COLUMNS = ("pair_id", "before", "after", "captions", "change_type", "mask")


class GuideSamples(CaptionedRows):
    """The pairs of a split that have captions, as samples.

    Args:
        no_change_caption: the caption that is learned of a pair that has it among others.
        training: draw one of the captions; False: the first, with all of them as references.
    """

    def __init__(
        self,
        pairs: str,
        split: str,
        model: GuideConfig,
        vocabulary: Vocabulary,
        seed: int,
        no_change_caption: str | None = None,
        training: bool = True,
    ):
        super().__init__(pairs, split, vocabulary, model.decoder.max_length, seed, COLUMNS)
        self.side, self.training, self.no_change_caption = model.image_size, training, no_change_caption

    def get(self, index: int, epoch: int) -> dict[str, Any]:
        row = self.rows[self.order[index]]
        images = [decode_image(row[name]) for name in ("before", "after")]
        size = (self.side, self.side)
        captions = row["captions"]
        sample = {
            "images": np.stack([resize_image(image, size) for image in images]),
            "classes": row_classes(row, (images[1].shape[0], images[1].shape[1]), self.side),
            "ids": self.vocabulary.encode(self._caption(captions, index, epoch), self.length),
        }
        return sample if self.training else {**sample, "pair_id": row["pair_id"], "references": captions}

    def _caption(self, captions: Sequence[str], index: int, epoch: int) -> str:
        if not self.training:
            return captions[0]
        for caption in captions:
            if self.no_change_caption is not None and caption.strip(" .") == self.no_change_caption:
                return caption
        return captions[int(sample_rng(self.seed, epoch, index).integers(len(captions)))]


def row_classes(row: dict[str, Any], size: tuple[int, int], side: int) -> np.ndarray:
    """The class of every pixel of a pair, int64 (side, side): of its mask, or background if nothing changed.
    ``size``: height and width of the image after.

    Raises:
        ValueError: naming the pair: it has no mask, one of another size than the image, or one without classes.
    """
    if row["mask"] is None:
        if row["change_type"] != NO_CHANGE:
            raise ValueError(
                f"pair {row['pair_id']!r} has no mask; the guide learns from masks of roads and buildings, as "
                f"LEVIR-MCI has them (images/SPLIT/label), and only pairs of change type {NO_CHANGE!r} need none"
            )
        return np.zeros((side, side), np.int64)
    try:
        classes = class_map(row["mask"])
    except ValueError as error:
        raise ValueError(f"pair {row['pair_id']!r}: {error}") from None
    if classes.shape != size:
        raise ValueError(
            f"pair {row['pair_id']!r}: the mask has {classes.shape[1]}x{classes.shape[0]} pixels, its image after "
            f"{size[1]}x{size[0]}"
        )
    return np.asarray(Image.fromarray(classes).resize((side, side), Image.Resampling.NEAREST), np.int64)


def collate(samples: Sequence[dict[str, Any]]) -> Batch:
    """A batch of B samples with T + 1 ids at most: images (B, 2, H, W, 3) uint8, classes (B, H, W), ids and targets
    (B, T); of validation samples also ``pair_id`` and ``references``."""
    ids = padded([sample["ids"] for sample in samples], PAD)
    return {
        "images": torch.from_numpy(np.stack([sample["images"] for sample in samples])),
        "classes": torch.from_numpy(np.stack([sample["classes"] for sample in samples])),
        "ids": ids[:, :-1],
        "targets": ids[:, 1:],
        **of_validation(samples),
    }
