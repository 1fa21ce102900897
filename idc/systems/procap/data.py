"""ProCap's samples: rows of stored procedures, with all their random choices already drawn.

Every draw comes from a generator seeded by (seed, epoch, index of the row), so a sample does not depend on the number
of workers, the accumulation or the point of a restart. Shape letters as in ``model.py``; a frame is either its
stored tokenizer features (P, Z) float16 or, where the procedures hold none, its pixels (Y, X, 3) uint8.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
import torch
from numpy.random import Generator
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from idc.data.domain import training_domain
from idc.data.images import decode_image
from idc.data.manifest import complete_manifest, uncaptioned
from idc.data.mapped_rows import MappedRows
from idc.data.text import BOS, EOS, PAD, Vocabulary
from idc.metrics.scene_scores import scene_truth
from idc.systems.procap.config import MaskingConfig, PretrainJob
from idc.systems.procap.model import ClipWords, Shapes
from idc.systems.procap.procedures.similarity import sample_keyframes
from idc.training.caption_validation import ValidatedRows

Item = dict[str, Any]

BLOCK_AREA, BLOCK_ASPECT = (0.2, 0.8), 2.0
"""Share of the frame that a block of masking covers, one block for all frames of a sample (appendix D); its height over
width is between 1 / BLOCK_ASPECT and BLOCK_ASPECT (official code; not stated in the paper)."""
COLOR_SHIFT = 0.5
"""A colour shift is drawn from U(-COLOR_SHIFT, COLOR_SHIFT), for pixels in [0, 1] (official code; the paper names no
range)."""
ROTATION, TRANSLATION, SCALING = 30.0, 0.1, 0.1
"""alpha, tau and mu of the affine warp (appendix E): largest rotation in degrees, largest translation as a share of the
frame's size, and scales from U(1 - mu, 1 + mu)."""


@dataclass(frozen=True)
class ProcedureInfo:
    """The properties of a folder of procedures, from its manifest."""

    shapes: Shapes
    num_frames: int  # l + 2
    image_size: tuple[int, int]
    stores_features: bool
    tokenizer: str
    tokenizer_fingerprint: str
    vocabulary: Vocabulary
    build: dict[str, Any]  # the settings they were built with
    domain: str  # what the images are, in words

    @classmethod
    def of(cls, path: str) -> ProcedureInfo:
        """Read it; ValueError if the folder does not hold complete procedures."""
        manifest = complete_manifest(path, kind="procedures")
        extra = manifest.extra
        vocabulary = Vocabulary(extra["vocabulary"])
        shapes = Shapes(
            num_keyframes=extra["num_keyframes"],
            grid=(extra["grid"][0], extra["grid"][1]),
            feature_dim=extra["feature_dim"],
            codebook_size=extra["codebook_size"],
            vocabulary_size=len(vocabulary),
        )
        return cls(
            shapes=shapes,
            num_frames=extra["num_frames"],
            image_size=(extra["image_size"], extra["image_size"]),
            stores_features=extra["features"],
            tokenizer=manifest.inputs["tokenizer"],
            tokenizer_fingerprint=extra["tokenizer_fingerprint"],
            vocabulary=vocabulary,
            build=manifest.config | {name: path for name, path in manifest.inputs.items() if name in manifest.config},
            domain=training_domain(manifest),
        )


class _Procedures:
    """The rows of one split, and access to their frames."""

    def __init__(self, path: str, info: ProcedureInfo, split: str, columns: list[str]):
        self.info = info
        kind = "features" if info.stores_features else "frames"
        wanted = dict.fromkeys(["pair_id", "captions", "caption_ids", kind, *columns])
        self.rows = MappedRows(path, columns=list(wanted), split=split)

    def frames(self, row: Item, which: list[int]) -> np.ndarray:
        """Some frames of a row: features (len(which), P, Z), or pixels (len(which), Y, X, 3)."""
        if not self.info.stores_features:
            return self.pixels(row, which)
        shapes = self.info.shapes
        stored = np.frombuffer(row["features"], np.float16)
        return stored.reshape(self.info.num_frames, shapes.patches, shapes.feature_dim)[which]

    def pixels(self, row: Item, which: list[int]) -> np.ndarray:
        """Some frames of a row as pixels (len(which), Y, X, 3) uint8."""
        return np.stack([decode_image(row["frames"][frame]) for frame in which])


class PretrainDataset(_Procedures):
    """Stage 1 samples.

    An item has ``frames`` (F, ...), ``tokens`` (F, P), ``masked`` (F, P), ``entire`` () and ``text`` (N,), with N = 0
    without a caption condition; for the alignment loss ``other_text`` (N,); for the consistency loss the temporally
    inconsistent procedure: ``warped`` (F, ...), in which the frames listed in ``recompute_index`` are replaced by the
    pixels ``recomputed``, whose features the task computes.
    """

    def __init__(self, path: str, info: ProcedureInfo, split: str, job: PretrainJob, words: ClipWords | None = None):
        """``words`` encodes captions, if the encoder has its own text vocabulary."""
        super().__init__(path, info, split, ["confidence", "keyframes", "tokens", "frames"])
        self.job, self.words = job, words

    def __len__(self) -> int:
        return len(self.rows)

    def get(self, index: int, epoch: int) -> Item:
        """Sample ``index`` of epoch ``epoch``."""
        rng = np.random.default_rng((self.job.train.seed, epoch, index))
        shapes, info = self.info.shapes, self.info
        row = self._row(index)
        which = self._frames_of(row, rng)
        frames = self.frames(row, which)
        tokens = np.frombuffer(row["tokens"], np.int16).reshape(info.num_frames, shapes.patches)[which]
        masked, entire = draw_mask(self.job.masking, shapes, rng)
        caption = draw_caption(row, "random", rng)
        length = self.job.encoder.text_length if self.job.caption_condition else 0
        item: Item = {
            "frames": frames,
            "tokens": tokens.astype(np.int64),
            "masked": masked,
            "entire": entire,
            "text": text_slot(caption, length),
        }
        other = self._other_row(index, caption, rng) if self.job.aligns() else None
        if self.job.loss.consistency > 0:
            item["warped"], item["recompute_index"], item["recomputed"] = self._warp(index, row, frames, which, rng)
        if other is not None:
            item["other_text"] = text_slot(draw_caption(other, "random", rng), length)
        return item

    def _frames_of(self, row: Item, rng: Generator) -> list[int]:
        keyframes = row["keyframes"]
        if self.job.redraw_keyframes:
            keyframes = sample_keyframes(np.asarray(row["confidence"]), self.info.shapes.num_keyframes, rng)
        return [0, *(int(frame) for frame in keyframes), self.info.num_frames - 1]

    def _row(self, index: int) -> Item:
        row = self.rows[index]
        if self.words is not None:
            row = {**row, "caption_ids": [self.words.encode(caption) for caption in row["captions"]]}
        return row

    def _other(self, index: int, rng: Generator) -> int:
        return (index + 1 + int(rng.integers(max(1, len(self) - 1)))) % len(self)

    def _other_row(self, index: int, caption: list[int], rng: Generator) -> Item:
        """Draw another row, with other captions if ten draws find one."""
        for _ in range(10):
            other = self._row(self._other(index, rng))
            if caption not in (words[1:-1] for words in other["caption_ids"]):
                break
        return other

    def _warp(
        self, index: int, row: Item, frames: np.ndarray, which: list[int], rng: Generator
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Apply one of the four warps of appendix E, each with probability 1/4."""
        loss, warped = self.job.loss, frames.copy()
        size = self.info.image_size
        nothing = np.zeros(0, np.int64), np.zeros((0, *size, 3), np.uint8)
        kind = int(rng.integers(4))
        if kind == 0:  # batch procedure frame shuffle
            other = self.rows[self._other(index, rng)]
            source = self._frames_of(other, rng)[int(rng.integers(len(which)))]
            warped[int(rng.integers(len(which)))] = self.frames(other, [source])[0]
            return warped, *nothing
        if kind == 1:  # frame shuffle
            order = rng.permutation(len(which))
            while (order == np.arange(len(which))).all():
                order = rng.permutation(len(which))
            return warped[order], *nothing
        frame = int(rng.integers(len(which)))
        if kind == 2:
            changed = np.arange(len(which)) if loss.color_shift_all_frames else np.array([frame])
            pixels = self.pixels(row, [which[f] for f in changed])
            recomputed = shift_color(pixels, loss.color_shift_all_frames, rng)
        else:
            changed = np.array([frame])
            recomputed = affine(self.pixels(row, [which[frame]])[0], rng)[None]
        if not self.info.stores_features:
            warped[changed] = recomputed
            return warped, *nothing
        return warped, changed.astype(np.int64), recomputed


class FinetuneDataset(_Procedures, ValidatedRows):
    """Stage 2 samples: the frames to encode, ``ends`` (2, ...), before and after, or, if ``explicit``, with the key
    frames between them, ``procedure`` (k + 2, ...); ``ids`` and ``targets`` (C, T) of one caption or all
    (:attr:`FinetuneJob.captions`); for scoring ``pair_id`` and ``references``, for validation also the ``scene``. Pairs
    without a caption are skipped."""

    def __init__(
        self,
        path: str,
        info: ProcedureInfo,
        split: str,
        *,
        captions: str,
        max_length: int,
        seed: int,
        explicit: bool = False,
        validation: bool = False,
    ):
        super().__init__(path, info, split, ["keyframes"] * explicit + ["change_type", "meta"] * validation)
        self.captions, self.max_length, self.seed = captions, max_length, seed
        self.explicit, self.validation = explicit, validation
        self.order = np.flatnonzero(self.rows.list_lengths("caption_ids"))
        if split == "train" and not len(self.order):
            raise ValueError(uncaptioned(path, split))

    def __len__(self) -> int:
        return len(self.order)

    def get(self, index: int, epoch: int) -> Item:
        """Sample ``index`` of epoch ``epoch``."""
        rng = np.random.default_rng((self.seed, epoch, index))
        row = self.rows[self.order[index]]
        between = [int(frame) for frame in row["keyframes"]] if self.explicit else []
        which = [0, *between, self.info.num_frames - 1]
        captions = row["caption_ids"]
        if self.captions != "all":
            captions = [[BOS, *draw_caption(row, self.captions, rng), EOS]]
        ids, targets = (np.stack(rows) for rows in zip(*map(self._shifted, captions), strict=True))
        item: Item = {
            "procedure" if self.explicit else "ends": self.frames(row, which),
            "ids": ids,
            "targets": targets,
            "pair_id": row["pair_id"],
            "references": list(row["captions"]),
        }
        if self.validation:
            item["scene"] = scene_truth(row["change_type"], json.loads(row["meta"]) if row["meta"] else {})
        return item

    def _shifted(self, caption_ids: list[int]) -> tuple[np.ndarray, np.ndarray]:
        """Inputs and targets (T,) of a caption between its begin and end token, cut so that it still ends."""
        caption = list(caption_ids[1:-1])[: self.max_length - 2]
        ids, targets = (np.full(self.max_length - 1, PAD, np.int64) for _ in range(2))
        ids[: len(caption) + 1] = [BOS, *caption]
        targets[: len(caption) + 1] = [*caption, EOS]
        return ids, targets


def collate(items: list[Item]) -> dict[str, Any]:
    """Stack arrays to tensors; strings, references and scenes stay lists. Pixels to be encoded are concatenated in
    ``recomputed`` (M, Y, X, 3), with (sample, frame) of each in ``recompute_index`` (M, 2). Captions are padded to the
    most of a pair and the longest of the batch: ``ids`` and ``targets`` (B, C, T)."""
    batch: dict[str, Any] = {}
    for key, first in items[0].items():
        values = [item[key] for item in items]
        if key == "recomputed":
            batch[key] = torch.from_numpy(np.concatenate(values))
        elif key == "recompute_index":
            indices = [np.stack([np.full_like(at, sample), at], axis=1) for sample, at in enumerate(values)]
            batch[key] = torch.from_numpy(np.concatenate(indices))
        elif not isinstance(first, np.ndarray):
            batch[key] = values
        elif key in ("ids", "targets"):
            batch[key] = pad_sequence([torch.from_numpy(value) for value in values], True, PAD)
        else:
            batch[key] = torch.from_numpy(np.stack(values))
    if "targets" in batch:
        longest = int((batch["targets"] != PAD).sum(2).max())
        batch |= {key: batch[key][..., :longest] for key in ("ids", "targets")}
    return batch


def draw_caption(row: Item, choice: str, rng: Generator) -> list[int]:
    """Choose one reference caption: its word ids without begin and end token, empty if the pair has none."""
    captions = row["caption_ids"]
    if not captions:
        return []
    return list(captions[0 if choice == "first" else int(rng.integers(len(captions)))][1:-1])


def text_slot(caption: list[int], length: int) -> np.ndarray:
    """Truncate or pad caption ids to (N,)."""
    ids = np.full(length, PAD, np.int64)
    ids[: min(len(caption), length)] = caption[:length]
    return ids


def draw_mask(config: MaskingConfig, shapes: Shapes, rng: Generator) -> tuple[np.ndarray, np.ndarray]:
    """Draw the masked patches (F, P) bool by one of the four schemes (appendix D), and whether it was entire masking.

    At least one patch is masked, so that the sample has something to reconstruct.
    """
    frames, (height, width) = shapes.frames, shapes.grid
    scheme = rng.choice(4, p=config.probabilities())
    if scheme == 0:
        size = (frames, shapes.patches)
        share = rng.uniform(config.low, config.high, size if config.drawn_for == "patch" else None)
        masked = rng.random(size) < share
        if not masked.any():
            masked[int(rng.integers(frames)), int(rng.integers(shapes.patches))] = True
    elif scheme == 1:
        masked = np.ones((frames, shapes.patches), bool)
    else:
        block = np.zeros((height, width), bool)
        area = rng.uniform(*BLOCK_AREA) * height * width
        aspect = np.exp(rng.uniform(-np.log(BLOCK_ASPECT), np.log(BLOCK_ASPECT)))
        rows = int(np.clip(round(np.sqrt(area * aspect)), 1, height))
        columns = int(np.clip(round(np.sqrt(area / aspect)), 1, width))
        if rows == height and columns == width:
            columns -= 1  # some patch must remain outside the block
        top, left = int(rng.integers(height - rows + 1)), int(rng.integers(width - columns + 1))
        block[top : top + rows, left : left + columns] = True
        masked = np.tile((block if scheme == 2 else ~block).reshape(-1), (frames, 1))
    return masked, np.asarray(scheme == 1)


def shift_color(pixels: np.ndarray, all_frames: bool, rng: Generator) -> np.ndarray:
    """Colour shifting (eq. 18) of frames (F, Y, X, 3) uint8: one shift for all, of one channel, or (if a single frame
    is shifted, as in the official code) of one channel or, with probability 1/4, all three."""
    shift = np.zeros(3)
    channel = slice(None) if not all_frames and rng.random() < 0.25 else int(rng.integers(3))
    shift[channel] = rng.uniform(-COLOR_SHIFT, COLOR_SHIFT)
    return np.clip(pixels + np.round(255 * shift), 0, 255).astype(np.uint8)


def affine(pixels: np.ndarray, rng: Generator) -> np.ndarray:
    """Affine transformation (eq. 19, 20) of one frame (Y, X, 3) uint8 about its centre, reflected at the border."""
    height, width = pixels.shape[:2]
    angle = rng.uniform(-ROTATION, ROTATION)
    scale = rng.uniform(1 - SCALING, 1 + SCALING)
    matrix = cv2.getRotationMatrix2D((width / 2 - 0.5, height / 2 - 0.5), angle, scale)
    matrix[:, 2] += rng.uniform(-TRANSLATION, TRANSLATION, 2) * np.array([width, height])
    return cv2.warpAffine(pixels, matrix, (width, height), flags=cv2.INTER_LINEAR, borderMode=cv2.BORDER_REFLECT_101)


def as_images(pixels: Tensor) -> Tensor:
    """Convert pixels (..., Y, X, 3) uint8 to images (..., 3, Y, X) in [0, 1]."""
    return pixels.movedim(-1, -3).float() / 255
