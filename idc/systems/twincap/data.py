"""Pairs as training samples: two images, captions, and what else is known of the pair.

Every draw of a sample (its captions, mirroring, augmentation) depends on (seed, epoch, index) alone.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from idc.data.augmentation import augment, mirror_caption, mirror_image
from idc.data.images import open_image
from idc.data.text import PAD, Vocabulary
from idc.nn.captioned_rows import CaptionedRows, ImageStore, of_validation, padded
from idc.systems.twincap.config import DataConfig, ModelConfig
from idc.systems.twincap.truth import UNKNOWN, PairTruth, pair_truth
from idc.training.data import sample_rng
from idc.training.task import Batch


class PairSamples(CaptionedRows):
    """The pairs of a split that have captions, mirrored and augmented by ``data`` from the epoch ``augment_from``
    on; without it the pairs as they are, with their first caption."""

    augment_from: float = 0.0

    def __init__(
        self,
        pairs: str,
        split: str,
        model: ModelConfig,
        vocabulary: Vocabulary,
        seed: int,
        data: DataConfig | None = None,
    ):
        super().__init__(pairs, split, vocabulary, model.decoder.max_length, seed)
        self.size, self.data = (model.height, model.width), data
        self.images = ImageStore(self.size, 0 if data is None else data.cache_mb)
        self._truths: dict[int, PairTruth] = {}
        if data is not None and data.augment:
            import cv2

            cv2.setNumThreads(1)  # its threads cost more than they save on images of this size

    def get(self, index: int, epoch: int) -> dict[str, Any]:
        number = self.order[index]
        row, texts = self.rows[number], self.captions[number]
        truth, (before, after) = self._truth(number, row), (self.images(row[side])[0] for side in ("before", "after"))
        images = (before, after)
        if self.data is None:
            return {**self._sample(images, truth, texts[:1], truth.places), **self.scored(row)}
        rng = sample_rng(self.seed, epoch, index)
        drawn = int(rng.integers(len(texts)))
        captions = [texts[(drawn + number) % len(texts)] for number in range(self.data.captions)]
        mirrored = self.data.mirror and rng.random() < 0.5
        circles = truth.places
        if mirrored:
            images = (mirror_image(images[0]), mirror_image(images[1]))
            circles = (circles[0] * (-1, 1, 1) + (1, 0, 0), circles[1] * (-1, 1, 1) + (1, 0, 0))
            captions = [mirror_caption(caption) for caption in captions]
        share = self.data.augment_share
        if self.data.augment and epoch >= self.augment_from and (share == 1 or rng.random() < share):
            size = np.array(self.size[::-1], float)
            points = (circles[0][:, :2] * size, circles[1][:, :2] * size)
            images, maps = augment(*images, self.data.augmentation, rng, points)
            grown = np.sqrt(np.abs(np.linalg.det(maps[:, :, :2])))
            moved = [centres @ affine[:, :2].T + affine[:, 2] for centres, affine in zip(points, maps, strict=True)]
            radii = [old[:, 2] * growth for old, growth in zip(circles, grown, strict=True)]
            before, after = (
                np.column_stack(both) for both in zip([centres / size for centres in moved], radii, strict=True)
            )
            circles = (before, after)
        return self._sample(images, truth, captions, circles)

    def _truth(self, number: int, row: dict[str, Any]) -> PairTruth:
        truth = self._truths.get(number)
        if truth is None:
            with open_image(row["before"]) as image:
                width, height = image.size
            meta = json.loads(row["meta"]) if row["meta"] else {}
            truth = pair_truth(row["change_type"], row["captions"], meta, (height, width))
            if len(self._truths) < self.images.room:
                self._truths[number] = truth
        return truth

    def _sample(
        self, images: Sequence[np.ndarray], truth: PairTruth, captions: Sequence[str], circles: Sequence[np.ndarray]
    ) -> dict[str, Any]:
        ids = [self.vocabulary.encode(caption, self.length) for caption in captions]
        return {"images": np.stack(images), "ids": ids, "truth": truth, "places": circles}


def collate(samples: Sequence[dict[str, Any]]) -> Batch:
    """A batch of B samples of R captions, with N objects and T + 1 ids at most.

    images (B, 2, H, W, 3) uint8; ids and targets (B * R, T), a pair's captions one after another; kind (B,), changed
    (B, 2, 4); places (B, 2, N, 3), labels (B, 2, N, 4), differs and parts (B, 2, N), has_scene (B,), as in
    :class:`~idc.systems.twincap.truth.PairTruth`; missing objects have the labels
    :data:`~idc.systems.twincap.truth.UNKNOWN` and do not differ.
    """
    count = len(samples)
    most = max((len(circles) for sample in samples for circles in sample["places"]), default=0)
    ids = padded([caption for sample in samples for caption in sample["ids"]], PAD)
    circles = np.zeros((count, 2, most, 3), np.float32)
    labels = np.full((count, 2, most, 4), UNKNOWN)
    differs, parts = np.zeros((count, 2, most), bool), np.full((count, 2, most), UNKNOWN)
    for index, sample in enumerate(samples):
        for image in range(2):
            objects = len(sample["places"][image])
            circles[index, image, :objects] = sample["places"][image]
            labels[index, image, :objects] = sample["truth"].labels[image]
            differs[index, image, :objects] = sample["truth"].differs[image]
            parts[index, image, :objects] = sample["truth"].parts[image]
    truths = [sample["truth"] for sample in samples]
    return {
        "images": torch.from_numpy(np.stack([sample["images"] for sample in samples])),
        "ids": ids[:, :-1],
        "targets": ids[:, 1:],
        "kind": torch.tensor([truth.kind for truth in truths]),
        "changed": torch.from_numpy(np.stack([truth.changed for truth in truths])),
        "places": torch.from_numpy(circles),
        "labels": torch.from_numpy(labels),
        "differs": torch.from_numpy(differs),
        "parts": torch.from_numpy(parts),
        "has_scene": torch.tensor([truth.has_scene for truth in truths]),
        **of_validation(samples),
    }
