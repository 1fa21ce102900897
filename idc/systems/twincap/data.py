"""Pairs as training samples: two images, captions, and what else is known of the pair.

Every draw of a sample (its captions, mirroring, augmentation) depends on (seed, epoch, index) alone.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from idc.data.augmentation import augment, mirror_caption, mirror_image
from idc.data.images import decode_image, open_image, resize_image
from idc.data.mapped_rows import MappedRows
from idc.data.text import PAD, Vocabulary
from idc.metrics.difference_lists import scene_truth
from idc.schema import NO_CHANGE
from idc.systems.twincap.config import DataConfig, ModelConfig
from idc.systems.twincap.truth import UNKNOWN, PairTruth, pair_truth
from idc.training.caption_validation import ValidatedRows
from idc.training.data import sample_rng
from idc.training.task import Batch

COLUMNS = ("pair_id", "before", "after", "captions", "change_type", "meta")


class PairSamples(ValidatedRows):
    """The pairs of a split that have captions, as samples.

    Args:
        data: mirroring, augmentation and balance of a training split; None: the pairs as they are, with their first
            caption.

    Attributes:
        augment_from: first epoch with augmentation.
    """

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
        self.rows = MappedRows(pairs, COLUMNS, split)
        self.size, self.length = (model.height, model.width), model.decoder.max_length
        self.vocabulary, self.seed, self.data = vocabulary, seed, data
        self.captions: list[list[str]] = self.rows.column("captions")
        kinds = self.rows.column("change_type")
        captioned = [index for index, texts in enumerate(self.captions) if texts]
        self.order = np.array(captioned, int)
        self.rarer: np.ndarray | None = None
        if data is not None and data.balance:
            unchanged = np.array([kinds[index] == NO_CHANGE for index in captioned], bool)
            groups = sorted((self.order[unchanged], self.order[~unchanged]), key=len)
            if len(groups[0]):
                self.rarer, self.order = groups
        if data is not None and data.augment:
            import cv2

            cv2.setNumThreads(1)  # its threads cost more than they save on images of this size
        self._kept: dict[int, tuple[np.ndarray, np.ndarray, PairTruth]] = {}
        self._decoded: dict[bytes, np.ndarray] = {}
        self._free = 0 if data is None else data.cache_mb * 2**20 // (3 * self.size[0] * self.size[1])

    def __len__(self) -> int:
        return len(self.order) * (1 if self.rarer is None else 2)

    def get(self, index: int, epoch: int) -> dict[str, Any]:
        row = self._row(index, epoch)
        images, truth = self._pair(row)
        if self.data is None:
            return {**self._sample(images, truth, self.captions[row][:1]), **self._scored(row)}
        rng = sample_rng(self.seed, epoch, index)
        texts = self.captions[row]
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

    def _row(self, index: int, epoch: int) -> int:
        if self.rarer is None:
            return int(self.order[index])
        count = len(self.order)  # even indices: the more frequent kind; odd ones: the rarer, again and again
        if index % 2 == 0:
            return int(self.order[index // 2])
        return int(self.rarer[(index // 2 + epoch * count) % len(self.rarer)])

    def _pair(self, index: int) -> tuple[tuple[np.ndarray, np.ndarray], PairTruth]:
        """Both images at the model's size, and the truth."""
        if index in self._kept:
            before, after, truth = self._kept[index]
            return (before, after), truth
        row = self.rows[index]
        with open_image(row["before"]) as image:
            width, height = image.size
        meta = json.loads(row["meta"]) if row["meta"] else {}
        truth = pair_truth(row["change_type"], row["captions"], meta, (height, width))
        before, after = (self._image(row[name]) for name in ("before", "after"))
        if len(self._decoded) < self._free:
            self._kept[index] = (before, after, truth)
        return (before, after), truth

    def _image(self, data: bytes) -> np.ndarray:
        """An image at the model's size. Pairs of one scene share images, so equal files are decoded and kept once."""
        key = hashlib.blake2b(data, digest_size=16).digest()
        image = self._decoded.get(key)
        if image is None:
            image = resize_image(decode_image(data), self.size)
            if len(self._decoded) < self._free:
                self._decoded[key] = image
        return image

    def _sample(
        self,
        images: Sequence[np.ndarray],
        truth: PairTruth,
        captions: Sequence[str],
        circles: Sequence[np.ndarray] | None = None,
    ) -> dict[str, Any]:
        ids = [self.vocabulary.encode(caption, self.length) for caption in captions]
        return {"images": np.stack(images), "ids": ids, "truth": truth, "places": circles or truth.places}

    def _scored(self, index: int) -> dict[str, Any]:
        """The references and the scene, which validation compares captions with."""
        row = self.rows[index]
        meta = json.loads(row["meta"]) if row["meta"] else {}
        scene = scene_truth(row["change_type"], meta)
        return {"pair_id": row["pair_id"], "references": row["captions"], "scene": scene}


def collate(samples: Sequence[dict[str, Any]]) -> Batch:
    """A batch of B samples of R captions, with N objects and T + 1 ids at most.

    images (B, 2, H, W, 3) uint8; ids and targets (B * R, T), a pair's captions one after another; kind (B,), changed
    (B, 2, 4); places (B, 2, N, 3), labels (B, 2, N, 4), differs and parts (B, 2, N), has_scene (B,), as in
    :class:`~idc.systems.twincap.truth.PairTruth`; missing objects have the labels
    :data:`~idc.systems.twincap.truth.UNKNOWN` and do not differ.
    """
    count = len(samples)
    captions = [ids for sample in samples for ids in sample["ids"]]
    longest = max(map(len, captions))
    most = max((len(circles) for sample in samples for circles in sample["places"]), default=0)
    ids = torch.full((len(captions), longest), PAD)
    for row, caption in enumerate(captions):
        ids[row, : len(caption)] = torch.tensor(caption)
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
    names = [name for name in ("pair_id", "references", "scene") if name in samples[0]]
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
        **{name: [sample[name] for sample in samples] for name in names},
    }
