"""The guide as a task of the training loop: its samples (two images, the class of every pixel, one caption, drawn by
(seed, epoch, index) alone), its losses, the entry of its training, and its artifact."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from idc.data.change_masks import CLASSES, class_map
from idc.data.domain import pairs_domain
from idc.data.images import decode_image, resize_image
from idc.data.schema import NO_CHANGE
from idc.data.text import PAD, Vocabulary
from idc.metrics.coco import score
from idc.metrics.segmentation import confusion, segmentation_scores
from idc.nn.captioned_rows import CaptionedRows, of_validation, padded, training_captions
from idc.systems.changevg.config import GUIDE, GuideConfig, GuideJob
from idc.systems.changevg.guide import Guided, GuideNet
from idc.systems.changevg.guide_captioner import read_guide
from idc.training.artifact import Artifact
from idc.training.caption_validation import Captioned, CaptioningTask, score_captions
from idc.training.context import Context
from idc.training.data import mixture_of, sample_rng
from idc.training.system import Parts, System
from idc.training.task import Batch, mean_per_sample

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
    """The class of every pixel of a pair, int64 (side, side): of its mask, or background if nothing changed. ``size``:
    height and width of the image after. ValueError: naming the pair: it has no mask, one of another size than the
    image, or one without classes."""
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


PREPROCESS = "bicubic, antialiased"
"""How images are resized."""
LEAST = 1e-6
"""A loss below this is divided by this, with ``balance``."""
SUM = "mIoU_plus_BLEU-4"
"""The metric that MCI selects by."""


class GuideTask(CaptioningTask):
    """The network and its two losses."""

    def __init__(self, job: GuideJob, vocabulary: Vocabulary, pretrained: bool = False):
        super().__init__()
        self.job, self.vocabulary = job, vocabulary
        self.net = GuideNet(job.model, len(vocabulary), pretrained)
        if job.goal != "both":
            self.net.requires_grad_(False)
            for module in self.net.branches()[job.goal]:
                module.requires_grad_(True)

    def training_step(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor | float]]:
        guided: Guided = self.net(batch["images"])
        losses: dict[str, Tensor] = {}
        if self.job.goal != "summary":
            losses["map"] = self._map_loss(guided.classes.float(), batch["classes"])
        if self.job.goal != "map":
            logits, targets = self.net.decoder(batch["ids"], guided.memory).float(), batch["targets"]
            each = F.cross_entropy(logits.transpose(1, 2), targets, reduction="none", ignore_index=PAD)
            losses["summary"] = mean_per_sample(each, targets != PAD)
        logs: dict[str, Tensor | float] = {name: loss.detach() for name, loss in losses.items()}
        parts = list(losses.values())
        if self.job.balance and self.job.goal == "both":
            # The gradient is that of the logarithm, which drives a loss that can be learned by heart to exactly 0, and
            # 0 / 0 would end the training.
            parts = [loss / loss.detach().clamp_min(LEAST) for loss in parts]
        return torch.stack(parts).sum(), logs

    def _map_loss(self, logits_BKHW: Tensor, classes_BHW: Tensor) -> Tensor:
        if self.job.model.map == "mci":
            return F.cross_entropy(logits_BKHW, classes_BHW)
        kinds = torch.stack([classes_BHW == number for number in range(1, len(CLASSES))], dim=1)
        return F.binary_cross_entropy_with_logits(logits_BKHW[:, 1:], kinds.float())

    def _captions(self, guided: Guided) -> list[str]:
        job = self.job
        decoded = self.net.decoder.search(guided.memory, beams=job.beams, length_penalty=job.length_penalty)
        return [self.vocabulary.decode(ids) for ids in decoded.ids.tolist()]

    def metric_names(self, validation: Any) -> set[str]:
        return {"CIDEr", "distinct_captions", "BLEU-4", "mIoU", "pixel_accuracy", SUM}

    @torch.no_grad()
    def validate(self, loader: Iterable[Batch], context: Context) -> dict[str, float]:
        """The metrics of the map over all pixels, of :func:`score_captions`, and BLEU-4."""
        matrix = np.zeros((len(CLASSES),) * 2, np.int64)
        captioned: list[Captioned] = []
        for batch in loader:
            guided: Guided = self.net(batch["images"])
            predicted = guided.classes.argmax(dim=1)
            matrix += confusion(batch["classes"].cpu().numpy(), predicted.cpu().numpy(), len(CLASSES))
            texts, references = self._captions(guided), batch["references"]
            captioned += zip(batch["pair_id"], texts, references, [None] * len(texts), strict=True)
        metrics = score_captions(captioned, context)
        parts = context.all_gather_object((matrix, captioned))
        if context.rank != 0:
            return {}
        rows = [row for _, part in parts for row in part]
        references_of = {pair: references for pair, _, references, _ in rows}
        bleu = score(references_of, {pair: text for pair, text, _, _ in rows}, ("BLEU",), allow_empty=True)
        metrics |= segmentation_scores(np.sum([part for part, _ in parts], axis=0), CLASSES)
        metrics["BLEU-4"] = bleu.overall["BLEU-4"]
        metrics[SUM] = metrics["mIoU"] + metrics["BLEU-4"]
        return metrics

    def param_groups(self) -> list[dict[str, Any]]:
        trained = [parameter for parameter in self.net.parameters() if parameter.requires_grad]
        return [{"name": "guide", "params": trained, **self.job.optim.model_dump()}]


def _start(job: GuideJob) -> Artifact | None:
    if job.start is None:
        return None
    start = read_guide(job.start)
    theirs = start.settings(GuideJob).model
    if _architecture(theirs) != _architecture(job.model):
        raise ValueError(f"start: {job.start} has another model than this training; give that of its config.json")
    return start


def _architecture(model: GuideConfig) -> dict[str, Any]:
    """The settings on which names, shapes and meaning of the weights depend."""
    free: Any = {
        "dropout": True,
        "backbone": {"weights", "drop_path"},
        "decoder": {"dropout", "special_words", "max_length"},
    }
    return model.model_dump(exclude=free)


def _build(job: GuideJob, context: Context) -> Parts:
    folders = (job.pairs, *job.more_pairs)
    start = _start(job)
    if start is not None:
        assert start.vocabulary is not None  # every artifact of a guide has one
        vocabulary = start.vocabulary
    else:
        vocabulary = Vocabulary.build(training_captions(*folders), job.min_count)
    torch.manual_seed(job.train.seed)
    task = GuideTask(job, vocabulary, pretrained=start is None)
    if start is not None:
        start.load_into(task.net)
    task.to(context.device)
    parts = {
        path: GuideSamples(path, "train", job.model, vocabulary, job.train.seed + number, job.no_change_caption)
        for number, path in enumerate(folders)
    }
    training = mixture_of(parts, job.train.seed)
    validation = GuideSamples(job.pairs, "val", job.model, vocabulary, job.train.seed, training=False)
    side = job.model.image_size

    def artifact() -> dict[str, Any]:
        return {
            "config": {"part": GUIDE, "job": job.model_dump(mode="json")},
            "vocabulary": vocabulary,
            "preprocess": {"height": side, "width": side, "resize": PREPROCESS},
            "card": "The guide of ChangeVG: class map and caption of a change in two satellite images.",
            "trained_on": job.trained_on or pairs_domain(folders, (side, side), len(training)),
        }

    return Parts(task, training, validation, collate, artifact, weights="net.", limit=job.validation_pairs)


train = System("changevg", GuideJob, _build).train
