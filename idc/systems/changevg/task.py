"""The guide as a task of the training loop, the entry of its training, and its artifact."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from idc.changeimti.class_masks import CLASSES
from idc.data.domain import pairs_domain
from idc.data.text import PAD, Vocabulary
from idc.metrics.coco import score
from idc.metrics.segmentation import confusion, segmentation_scores
from idc.nn.captioned_rows import training_captions
from idc.systems.changevg.config import GUIDE, GuideConfig, GuideJob
from idc.systems.changevg.data import GuideSamples, collate
from idc.systems.changevg.guide import Guided, GuideNet
from idc.systems.changevg.guide_captioner import read_guide
from idc.training.artifact import Artifact
from idc.training.caption_validation import Captioned, CaptioningTask, score_captions
from idc.training.context import Context
from idc.training.data import mixture_of
from idc.training.system import Parts, System
from idc.training.task import Batch, mean_per_sample

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
