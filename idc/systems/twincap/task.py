"""TwinCap as a task of the training loop, the entry of its training, and its artifact."""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.optim.swa_utils import get_ema_multi_avg_fn

from idc.data.augmentation import mirror_caption
from idc.data.domain import pairs_domain
from idc.data.schema import NO_CHANGE
from idc.data.text import PAD, Vocabulary
from idc.nn.captioned_rows import training_captions
from idc.systems.twincap.config import TwinCapJob
from idc.systems.twincap.data import PairSamples, collate
from idc.systems.twincap.model import Encoded, TwinNet, heat
from idc.systems.twincap.truth import PARTS, UNKNOWN
from idc.training.artifact import Artifact, read_artifact
from idc.training.caption_validation import CaptioningTask
from idc.training.context import Context
from idc.training.data import mixture_of
from idc.training.system import Parts, System
from idc.training.task import Batch, mean_per_sample

OBJECTS, CHANGED_OBJECT = 8.0, 16.0
"""Weights of the heat maps of all objects and of the changed ones, relative to the attributes at an object's position.
Most cells of a map are easy, and the mean over its cells is small."""

PEAK_REACH = 1.5
"""Cells between a peak and the centre of an object that it is taken for."""


class TwinCapTask(CaptioningTask):
    """The network, its losses and the moving average of its weights."""

    updates: Tensor

    def __init__(self, job: TwinCapJob, vocabulary: Vocabulary):
        super().__init__()
        self.job, self.vocabulary = job, vocabulary
        self.net = TwinNet(job.model, job.supervision, len(vocabulary))
        self.average = copy.deepcopy(self.net).requires_grad_(False) if job.ema else None
        self.register_buffer("updates", torch.zeros((), dtype=torch.int64))

    def training_step(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor | float]]:
        if self.training:
            self._update_average()
        encoded = self.net(batch["images"])
        targets, logits = batch["targets"], self.net.decoder(batch["ids"], encoded.memory).float()
        each = F.cross_entropy(logits.transpose(1, 2), targets, reduction="none", ignore_index=PAD)
        loss = mean_per_sample(each, targets != PAD)
        logs: dict[str, Tensor | float] = {"caption": loss.detach()}
        if self.net.kind is not None:
            heads = self._heads(encoded, batch)
            loss, logs["heads"] = loss + self.job.supervision.heads * heads, heads.detach()
        if self.net.objects is not None:
            dense = self._dense(encoded, batch)
            loss, logs["dense"] = loss + self.job.supervision.dense * dense, dense.detach()
        return loss, logs

    def _heads(self, encoded: Encoded, batch: Batch) -> Tensor:
        """The type of the change, and the changed object's attributes: the mean of before and after, summed."""
        assert self.net.kind is not None
        assert self.net.changed is not None
        total = _cross_entropy(self.net.kind(encoded.pooled), batch["kind"])
        for image, head in enumerate(self.net.changed):
            for column, logits in enumerate(head(encoded.pooled)):
                total = total + _cross_entropy(logits, batch["changed"][:, image, column]) / 2
        return total

    def _dense(self, encoded: Encoded, batch: Batch) -> Tensor:
        """Heat maps of all objects and of the changed ones, the attributes at each object's position, and the parts of
        the peaks in the change."""
        circles, labels, has_scene = batch["places"], batch["labels"], batch["has_scene"]
        inside = ((circles[..., :2] > 0) & (circles[..., :2] < 1)).all(dim=-1)
        maps = self.net.object_maps(encoded.features).float()
        height, width = maps.shape[-2:]
        shown = torch.where(inside, labels[..., 0], UNKNOWN)
        total = OBJECTS * _heat_loss(maps, heat(circles, shown, height, width), has_scene)
        changed = torch.where(batch["differs"], shown, UNKNOWN)
        total = total + CHANGED_OBJECT * _heat_loss(
            encoded.change.float(), heat(circles, changed, height, width), has_scene
        )
        for column, logits in enumerate(self.net.object_looks(encoded.features, circles)):
            total = total + _cross_entropy(logits.movedim(-1, 1), torch.where(inside, labels[..., column], UNKNOWN))
        if encoded.parts is not None:
            parts = peak_parts(encoded.cells, circles, torch.where(inside, batch["parts"], UNKNOWN), height, width)
            parts = torch.where(has_scene.unsqueeze(1), parts, UNKNOWN)
            total = total + _cross_entropy(encoded.parts.movedim(-1, 1), parts)
        return total

    @torch.no_grad()
    def _update_average(self) -> None:
        """Before the first micro-batch of a step the weights are those after the step before. Every micro-batch takes
        its share, so that the average does not depend on the accumulation."""
        if self.average is None:
            return
        parts = self.job.train.grad_accumulation
        steps = int(self.updates) // parts
        # A short memory at first: otherwise the average would hold the initial weights for long.
        decay = min(self.job.ema, (1 + steps) / (10 + steps)) ** (1 / parts)
        averages: list[Tensor] = list(self.average.parameters())
        weights = [weight.detach() for weight in self.net.parameters()]
        get_ema_multi_avg_fn(decay)(averages, weights, self.updates)  # one operation for all tensors
        self.updates += 1

    @property
    def used(self) -> TwinNet:
        """The network that captions: of the averaged weights, if there are any."""
        return self.net if self.average is None else self.average

    def caption(self, batch: Batch) -> list[str]:
        memory = self.used(batch["images"]).memory
        decoded = self.used.decoder.search(memory, beams=self.job.beams, length_penalty=self.job.length_penalty)
        return [self.vocabulary.decode(ids) for ids in decoded.ids.tolist()]

    def param_groups(self) -> list[dict[str, Any]]:
        """Matrices and kernels decay, vectors (norms, biases, positions) do not."""
        settings = self.job.optim.model_dump()
        groups: dict[bool, list[Tensor]] = {True: [], False: []}
        for name, parameter in self.net.named_parameters():
            own_name = name.rpartition(".")[2]
            groups[parameter.ndim > 1 and own_name not in ("rows", "columns", "sides", "positions")].append(parameter)
        return [
            {"name": "matrices", "params": groups[True], **settings},
            {"name": "vectors", "params": groups[False], **settings, "weight_decay": 0.0},
        ]


def peak_parts(cells: Tensor, circles: Tensor, parts: Tensor, height: int, width: int) -> Tensor:
    """Labels of peaks, (B, P): the part of the object of either image whose centre is nearest to the middle of the
    peak's cell, if that is at most :data:`PEAK_REACH` cells away, else that of the ground, no change.

    Args:
        cells: (B, P), row * width + column.
        circles, parts: (B, 2, N, 3) and (B, 2, N), a batch's ``places`` and ``parts``; negative parts are of no object.
    """
    nothing = torch.full_like(cells, PARTS.index(NO_CHANGE))
    if not circles.shape[2]:
        return nothing
    x, y = (circles[..., 0] * width).flatten(1), (circles[..., 1] * height).flatten(1)
    column, row = (cells % width + 0.5).unsqueeze(2), (cells // width + 0.5).unsqueeze(2)
    away = ((column - x.unsqueeze(1)) ** 2 + (row - y.unsqueeze(1)) ** 2).sqrt()
    nearest = away.masked_fill((parts.flatten(1) < 0).unsqueeze(1), torch.inf).min(dim=2)
    return torch.where(nearest.values <= PEAK_REACH, parts.flatten(1).gather(1, nearest.indices), nothing)


def _cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean over the samples of each sample's mean over its known labels: logits (B, K, ...), labels (B, ...)."""
    each = F.cross_entropy(logits.float(), labels, reduction="none", ignore_index=UNKNOWN)
    if each.ndim == 1:
        return each.mean()
    return mean_per_sample(each, labels != UNKNOWN)


def _heat_loss(logits: Tensor, targets: Tensor, has_scene: Tensor) -> Tensor:
    """Binary cross-entropy of heat maps (B, 2, h, w), mean over their cells; 0 for samples without a known scene. The
    targets are soft, so that of a perfect prediction is above 0."""
    each = F.binary_cross_entropy_with_logits(logits, targets, reduction="none").mean(dim=(1, 2, 3))
    return (each * has_scene).mean()


def _start(job: TwinCapJob) -> Artifact | None:
    if job.start is None:
        return None
    start = read_artifact(job.start, system="twincap")
    for name, ours in (("model", job.model), ("supervision", job.supervision)):
        if type(ours).model_validate(start.config["job"][name]) != ours:
            raise ValueError(f"start: {job.start} has another {name} than this training; give that of its config.json")
    return start


def _build(job: TwinCapJob, context: Context) -> Parts:
    folders = (job.pairs, *job.more_pairs)
    start = _start(job)
    if start is not None:
        assert start.vocabulary is not None  # every TwinCap artifact has one
        vocabulary = start.vocabulary
    else:
        captions = training_captions(*folders)
        if job.data.mirror:
            captions += [mirror_caption(text) for text in set(captions)]
        vocabulary = Vocabulary.build(captions)
    torch.manual_seed(job.train.seed)
    task = TwinCapTask(job, vocabulary)
    if start is not None:
        for net in (task.net, task.used):
            start.load_into(net)
    if job.train.engine == "torch":  # DeepSpeed sends weights as flat bytes, which needs the usual layout
        task.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch's stub lacks it
    task.to(context.device)

    parts = {
        path: PairSamples(path, "train", job.model, vocabulary, job.train.seed + number, job.data)
        for number, path in enumerate(folders)
    }
    training = mixture_of(parts, job.train.seed)
    epochs = job.train.total_steps(len(training)) * job.train.batch_size / len(training)
    for part in parts.values():
        part.augment_from = job.data.augment_from * epochs
    validation = PairSamples(job.pairs, "val", job.model, vocabulary, job.train.seed)
    height, width = job.model.height, job.model.width

    def artifact() -> dict[str, Any]:
        return {
            "config": {"job": job.model_dump(mode="json")},
            "vocabulary": vocabulary,
            "preprocess": {"height": height, "width": width, "resize": "bicubic, antialiased"},
            "card": "TwinCap, a small difference captioner of this project (no paper).",
            "trained_on": job.trained_on or pairs_domain(folders, (height, width), len(training)),
        }

    weights = "average." if job.ema else "net."
    return Parts(task, training, validation, collate, artifact, weights, job.validation_pairs)


train = System("twincap", TwinCapJob, _build).train
