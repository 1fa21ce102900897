"""NAMC's pre-training and fine-tuning as tasks of the shared training loop, and their artifacts."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from idc.data.domain import pairs_domain
from idc.data.store import iter_rows
from idc.data.text import PAD, UNK, Vocabulary
from idc.nn.captioned_rows import ImageStore, training_captions
from idc.systems.namc.config import FinetuneJob, ImageConfig, ModelConfig, PretrainJob
from idc.systems.namc.data import (
    CPU_IMAGES,
    CaptionedPairs,
    DescribedPairs,
    FeatureCache,
    Tokens,
    collate_captioned,
    collate_described,
    first_description,
    image_tokens,
    load_tokenizer,
    reconstruction_quality,
    texts_of,
)
from idc.systems.namc.model import NamcNet, PretrainHeads
from idc.systems.namc.nim import Denoised, NoiseIdentification, words_exist
from idc.training.artifact import Artifact, read_artifact
from idc.training.caption_validation import CaptioningTask
from idc.training.config import GroupConfig
from idc.training.context import Context
from idc.training.data import mixture_of
from idc.training.system import Parts, System
from idc.training.task import Batch, Task, mean_per_sample
from idc.vision.features import EfficientNetLiteGrid, Grid, ResNetGrid
from idc.vision.tokenizer.model import ImageTokenizer

CNN = "cnn"
"""Folder of the frozen CNN inside an artifact, unless its weights are in a Python package."""
PRETRAIN_CARD: dict[str, Any] = {
    "purpose": "NAMC after pre-training on descriptions. It writes no captions of changes: fine-tuning trains a "
    "captioner from it.",
    "use": "python jobs/finetune_namc.py pretrained=<this folder> pairs=<folder of pairs>",
}
"""First sentence and command of the model card of a pre-trained artifact."""
MEASURED_PAIRS = 1000
"""Validation pairs of each worker whose reconstruction is measured; the paper's table 9 has as many."""


def grid_channels(image: ImageConfig, grid: Grid | None) -> int:
    """C."""
    return image.stem_channels[-1] if grid is None else grid.channels


def frozen_grid(image: ImageConfig, device: torch.device, folder: Path | None = None) -> Grid | None:
    """The frozen CNN; None with a stem. ``folder``: where an artifact keeps it."""
    if image.cnn == "stem":
        return None
    return ResNetGrid(folder or image.resnet, device) if image.cnn == "resnet" else EfficientNetLiteGrid(device)


def standardised(grid: Grid) -> Callable[[Tensor], Tensor]:
    """The grid features with mean 0 and deviation 1 at each position: those of CNNs differ in scale by ten."""

    def compute(images: Tensor) -> Tensor:
        features = torch.cat([grid(part) for part in images.split(CPU_IMAGES)])
        return F.layer_norm(features, features.shape[-1:])

    return compute


class _Captioning(Task):
    """Parts that both stages share: features of images, and the captioner."""

    def __init__(self, model: ModelConfig, grid: Grid | None, vocabulary: Vocabulary, cache_mb: int):
        super().__init__()
        self.vocabulary = vocabulary
        self.net = NamcNet(model, grid_channels(model.image, grid), len(vocabulary))
        self._grid = None if grid is None else FeatureCache(standardised(grid), cache_mb / 2)

    def features(self, batch: Batch) -> Tensor:
        """X (N, P, C), before first."""
        if self.net.stem is not None:
            features: Tensor = self.net.stem(batch["images"])
            return features
        assert self._grid is not None
        return self._grid(batch["images"], batch["keys"])


class PretrainTask(_Captioning):
    """L = L_NIM + L_MIR + L_FDG (eq. 2), and by setting the loss of single tokens. For a discrete reconstruction
    ``tokens_of`` gives the image tokens (N, P), of V, of uint8 images, and validation draws images of tokens with
    ``tokenizer``."""

    steps: Tensor | None

    def __init__(
        self,
        job: PretrainJob,
        grid: Grid | None,
        vocabulary: Vocabulary,
        tokens_of: Callable[[Tensor], Tensor] | None = None,
        codebook: int = 0,
        tokenizer: ImageTokenizer | None = None,
    ):
        super().__init__(job.model, grid, vocabulary, job.cache_mb)
        self.job = job
        image = job.model.image
        self.nim = None
        if job.nim.enabled:
            self.nim = NoiseIdentification(job.nim, image, len(vocabulary), job.model.decoder.max_length)
        # Micro-batches of training so far. Only with a later start, so that other artifacts have no such buffer.
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64) if job.nim.masks_from else None)
        self.heads = None
        self._tokenizer = [] if tokenizer is None else [tokenizer]  # in a list it is no part of the artifact
        self._tokens = None if tokens_of is None else FeatureCache(tokens_of, job.cache_mb / 8)
        if self.nim is not None and job.mir.enabled:
            outputs = codebook if job.mir.target == "discrete" else grid_channels(image, grid)
            self.heads = PretrainHeads(self.nim.encoder.width, job.model.encoder.width, outputs)
        if self.nim is None:
            self.net.encoder.mask.requires_grad_(False)  # nothing is masked
        elif self.heads is None and job.nim.align_texts == "raw":
            self.nim.encoder.text_mask.requires_grad_(False)  # nothing reads denoised descriptions

    def _masking(self) -> bool:
        """Whether tokens are masked in this step, which is counted."""
        if self.steps is None:
            return True
        masking = bool(self.steps >= self.job.nim.masks_from * self.job.train.grad_accumulation)
        self.steps += self.training
        return masking

    def training_step(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor | float]]:
        texts, features, masking = texts_of(batch), self.features(batch), self._masking()
        denoised = None
        logs: dict[str, Tensor | float] = {}
        total = features.new_zeros(())
        if self.nim is not None:
            denoised = self.nim(batch["images"], texts, batch["uniform_images"], batch["uniform_texts"], masking)
            total, logs["nim"] = total + denoised.loss, denoised.loss.detach()
            if weight := self.job.nim.token_weight:
                total, logs["tokens"] = total + weight * denoised.token_loss, denoised.token_loss.detach()
            logs["masked_patches"] = denoised.images.float().mean()
            logs["masked_words"] = (denoised.words.sum() / words_exist(texts).sum()).float()
        if self.heads is not None and masking:
            assert denoised is not None
            loss, right = self._reconstruction(batch, features, denoised)
            total, logs["mir"] = total + loss, loss.detach()
            if right is not None:
                logs["mir_accuracy"] = right
        loss, right = self._generation(batch, features, denoised)
        logs |= {"fdg": loss.detach(), "word_accuracy": right}
        return total + loss, logs

    def _predicted(self, batch: Batch, features: Tensor, denoised: Denoised) -> Tensor:
        """MIR's prediction of every position: logits of its token, or its features."""
        assert self.heads is not None
        encoder = self.net.encoder
        beyond_end = torch.arange(denoised.text.shape[1], device=features.device) > batch["text"]["end"].unsqueeze(1)
        hidden = encoder.reconstruct(
            encoder.embed(features, denoised.images), self.heads.text(denoised.text), beyond_end
        )
        predicted: Tensor = self.heads.predict(hidden).float()
        return predicted

    def _reconstruction(self, batch: Batch, features: Tensor, denoised: Denoised) -> tuple[Tensor, Tensor | None]:
        """L_MIR (eq. 18): the mean over the masked positions of an image, summed over a pair's images; and the share of
        right tokens."""
        predicted, masked = self._predicted(batch, features, denoised), denoised.images
        if self._tokens is None:
            difference = predicted - features.detach()
            each = (difference.abs() if self.job.mir.target == "l1" else difference.square()).mean(dim=-1)
            return 2 * mean_per_sample(each, masked), None
        goal = self._tokens(batch["images"], batch["keys"]).long()
        each = F.cross_entropy(predicted.transpose(1, 2), goal, reduction="none")
        right = mean_per_sample((predicted.detach().argmax(-1) == goal).float(), masked)
        return 2 * mean_per_sample(each, masked), right

    def _generation(self, batch: Batch, features: Tensor, denoised: Denoised | None) -> tuple[Tensor, Tensor]:
        """L_FDG, the mean over a description's words, and the share of right words."""
        ids, targets = batch["ids"], batch["targets"]
        counted = targets != PAD
        if denoised is not None:
            mask_index = batch["place"]
            # -1, a word of the template, is clamped so that it can index, and then is not lost.
            lost = denoised.words.flatten()[mask_index.clamp(min=0)] & (mask_index >= 0)
            # The decoder's word [MASK] is the unknown word: all words of training are known.
            ids = torch.cat([ids[:, :1], torch.where(lost, UNK, targets)[:, :-1]], dim=1)
            if self.job.masked_words == "skip":
                counted = counted & ~lost
            targets = torch.where(lost, UNK, targets)
        memory = self.net.memory(features, None if denoised is None else denoised.images)
        logits = self.net.decoder(ids, memory).float()
        each = F.cross_entropy(logits.transpose(1, 2), targets, reduction="none", ignore_index=PAD)
        right = mean_per_sample((logits.detach().argmax(-1) == targets).float(), counted)
        return mean_per_sample(each, counted), right

    def param_groups(self) -> list[dict[str, Any]]:
        groups: list[tuple[str, nn.Module, GroupConfig]] = [("captioner", self.net, self.job.optim)]
        if self.heads is not None:
            groups.append(("reconstruction", self.heads, self.job.optim))
        if self.nim is not None:
            groups.append(("nim", self.nim, self.job.nim_optim))
        return [
            {"name": name, "params": [p for p in part.parameters() if p.requires_grad], **settings.model_dump()}
            for name, part, settings in groups
        ]

    @torch.no_grad()
    def validate(self, loader: Iterable[Batch], context: Context) -> dict[str, float]:
        """Mean losses; with a discrete reconstruction also PSNR and SSIM of table 9."""
        seen: list[dict[str, float]] = []

        def watched() -> Iterable[Batch]:
            for batch in loader:
                if self._tokenizer and self.heads is not None and len(seen) < 2 * MEASURED_PAIRS:
                    seen.extend(self._quality(batch, self._tokenizer[0]))
                yield batch

        metrics = super().validate(watched(), context)
        gathered = [figures for part in context.all_gather_object(seen) for figures in part]
        return {
            **metrics,
            **{name: float(np.mean([each[name] for each in gathered])) for name in next(iter(gathered), {})},
        }

    def _quality(self, batch: Batch, tokenizer: ImageTokenizer) -> list[dict[str, float]]:
        assert self.nim is not None
        texts, images = texts_of(batch), batch["images"]
        denoised = self.nim(images, texts, batch["uniform_images"], batch["uniform_texts"])
        tokens = image_tokens(tokenizer)(images).long()
        guessed = torch.where(
            denoised.images, self._predicted(batch, self.features(batch), denoised).argmax(-1), tokens
        )
        return reconstruction_quality(tokenizer, images, tokens, guessed)


class FinetuneTask(_Captioning, CaptioningTask):
    """Fine-tuning on captions: the captioner without masks."""

    def __init__(self, job: FinetuneJob, model: ModelConfig, grid: Grid | None, vocabulary: Vocabulary):
        super().__init__(model, grid, vocabulary, job.cache_mb)
        self.job = job
        self.net.encoder.mask.requires_grad_(False)

    def training_step(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor | float]]:
        logits = self.net.decoder(batch["ids"], self.net.memory(self.features(batch))).float()
        targets, pairs = batch["targets"], len(batch["images"]) // 2
        each = F.cross_entropy(logits.transpose(1, 2), targets, reduction="none", ignore_index=PAD)
        right = (logits.detach().argmax(-1) == targets).float()
        return mean_of_captions(each, targets, pairs), {"word_accuracy": mean_of_captions(right, targets, pairs)}

    def caption(self, batch: Batch) -> list[str]:
        decoded = self.net.decoder.search(
            self.net.memory(self.features(batch)), beams=self.job.beams, length_penalty=self.job.length_penalty,
            max_length=self.job.max_length - 1,
        )  # fmt: skip
        return [self.vocabulary.decode(ids) for ids in decoded.ids.tolist()]

    def param_groups(self) -> list[dict[str, Any]]:
        params = [parameter for parameter in self.net.parameters() if parameter.requires_grad]
        return [{"name": "all", "params": params, **self.job.optim.model_dump()}]


def mean_of_captions(values_RT: Tensor, targets_RT: Tensor, pairs: int) -> Tensor:
    """The mean over a caption's words, then over a pair's captions, then over the pairs. R rows, of each pair as many,
    one after another; a row without words is no caption."""
    words = targets_RT != PAD
    of_captions = (values_RT * words).sum(dim=1) / words.sum(dim=1).clamp(min=1)
    return mean_per_sample(of_captions.view(pairs, -1), words.any(dim=1).view(pairs, -1))


def _pretraining(job: PretrainJob, context: Context) -> Parts:
    image = job.model.image
    folders = (job.pairs, *job.more_pairs)
    vocabulary = _description_vocabulary(folders, job.caption_pairs, free=not job.nim.enabled)
    grid = frozen_grid(image, context.device)
    tokenizer, tokens_of, codebook = None, None, 0
    if job.tokenizer is not None:
        tokenizer = load_tokenizer(job.tokenizer, image, context.device)
        tokens_of, codebook = image_tokens(tokenizer), tokenizer.config.codebook_size
    torch.manual_seed(job.train.seed)
    task = PretrainTask(job, grid, vocabulary, tokens_of, codebook, tokenizer).to(context.device)

    store = ImageStore(image.size, job.cache_mb / 4)
    tokens = text_tokens(task)

    def described(path: str, split: str, number: int, share: float) -> DescribedPairs:
        return DescribedPairs(
            path, split, images=store, vocabulary=vocabulary, tokens=tokens, positions=image.grid**2,
            length=job.model.decoder.max_length, seed=job.train.seed + number,
            free=not job.nim.enabled, exchange=job.exchange and split == "train", share=share,
        )  # fmt: skip

    training = mixture_of(
        {path: described(path, "train", number, job.share) for number, path in enumerate(folders)}, job.train.seed
    )

    def artifact() -> dict[str, Any]:
        config = {"stage": "pretrain", "job": job.model_dump(mode="json")}
        return {"config": config, "vocabulary": vocabulary, **_image_files(image, grid, context), **PRETRAIN_CARD}

    return Parts(task, training, described(job.pairs, "val", 0, 1.0), collate_described, artifact)


def _finetuning(job: FinetuneJob, context: Context) -> Parts:
    start = None if job.pretrained is None else read_artifact(job.pretrained, system="namc")
    if start is not None and start.config["stage"] != "pretrain":
        raise ValueError(f"pretrained: {start.path} is a fine-tuned NAMC; give the artifact of jobs/pretrain_namc.py")
    model = job.model if start is None else PretrainJob.model_validate(start.config["job"]).model
    assert model is not None
    if job.max_length > model.decoder.max_length:
        raise ValueError(f"max_length: {job.max_length}, but the decoder has {model.decoder.max_length} positions")
    vocabulary = Vocabulary.build(training_captions(job.pairs))
    if start is not None:
        assert start.vocabulary is not None
        pretrained_words = set(start.vocabulary.words)
        vocabulary = Vocabulary(
            [*start.vocabulary.words, *(word for word in vocabulary.words if word not in pretrained_words)]
        )
    folder = None if start is None or model.image.cnn != "resnet" else start.extra(CNN)
    grid = frozen_grid(model.image, context.device, folder)
    torch.manual_seed(job.train.seed)
    task = FinetuneTask(job, model, grid, vocabulary)
    if start is not None:
        _load_pretrained(task, start)
    task.to(context.device)

    store = ImageStore(model.image.size, job.cache_mb / 4)

    def captioned(split: str) -> CaptionedPairs:
        return CaptionedPairs(
            job.pairs, split, images=store, vocabulary=vocabulary, length=job.max_length, seed=job.train.seed,
            training=split == "train", references=job.references,
        )  # fmt: skip

    training, side = captioned("train"), model.image.size
    config = {"stage": "finetune", "job": job.model_dump(mode="json"), "model": model.model_dump(mode="json")}

    def artifact() -> dict[str, Any]:
        return {
            "config": config,
            "vocabulary": vocabulary,
            "card": "NAMC, fine-tuned on captions of changes.",
            "trained_on": job.trained_on or pairs_domain((job.pairs,), (side, side), len(training)),
            **_image_files(model.image, grid, context),
        }

    limit = job.validation_pairs
    return Parts(task, training, captioned("val"), collate_captioned, artifact, weights="net.", limit=limit)


pretrain = System("namc", PretrainJob, _pretraining).train
finetune = System("namc", FinetuneJob, _finetuning).train


def _image_files(image: ImageConfig, grid: Grid | None, context: Context) -> dict[str, Any]:
    extras: dict[str, Path] = {}
    if isinstance(grid, ResNetGrid):
        extras[CNN] = context.run_dir / CNN
        grid.save(extras[CNN])
    size = {"height": image.size, "width": image.size, "resize": "bicubic, antialiased"}
    return {"preprocess": size, "extras": extras}


def _description_vocabulary(folders: Iterable[str], caption_pairs: str | None, free: bool) -> Vocabulary:
    """The words of the training descriptions (``free``: whatever their form), and of the captions to come."""
    texts = []
    for path in folders:
        for row in iter_rows(path, ["captions"], "train"):
            if (description := first_description(row["captions"])) is not None:
                texts.append(description.sentence())
            elif free:
                texts += row["captions"][:1]
    if caption_pairs is not None:
        texts += training_captions(caption_pairs)
    return Vocabulary.build(texts)


def text_tokens(task: PretrainTask) -> Tokens:
    """How the task's dual encoder reads descriptions."""
    clip = task.job.nim.clip
    if clip is None or task.nim is None:
        return Tokens(task.vocabulary, task.job.model.decoder.max_length)
    from idc.vision.pair_encoder.model import clip_tokenizer

    return Tokens(task.vocabulary, task.nim.encoder.max_tokens, clip_tokenizer(clip))


@torch.no_grad()
def _load_pretrained(task: FinetuneTask, start: Artifact) -> None:
    """Weights of encoder and decoder; the rows of words that only the captions have stay as they were drawn."""
    state = {name: tensor for name, tensor in start.state_dict().items() if name.startswith("net.")}
    initial = task.state_dict()
    for name in ("net.decoder.words", "net.decoder.word_bias"):
        rows = initial[name].clone()
        rows[: len(state[name])] = state[name]
        state[name] = rows
    task.load_state_dict(state)
