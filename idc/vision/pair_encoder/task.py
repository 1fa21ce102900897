"""Training of the pair encoder on the shared loop, by the symmetric contrastive loss over all pairs of a step.

Each worker computes its own vectors and the loss of its own rows and columns against the vectors of all workers; the
gradients flow back to the workers that computed them. So 2 workers are equivalent to 1, except for the order of float
sums.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, cast

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from idc.data.images import decode_image, resize_image
from idc.data.manifest import uncaptioned
from idc.data.schema import NO_CHANGE
from idc.data.store import MappedRows
from idc.data.text import Vocabulary
from idc.metrics.retrieval import retrieval
from idc.training.context import Context
from idc.training.data import sample_rng
from idc.training.system import Parts, System
from idc.training.task import Batch, Task
from idc.vision.pair_encoder.config import TrainPairEncoderJob
from idc.vision.pair_encoder.convert import load_clip
from idc.vision.pair_encoder.model import NEW, SYSTEM, BpeTokens, PairEncoder, TextTokens, WordTokens, start_comparing


class PairEncoderTask(Task):
    """The encoder, with its tokens, and its loss."""

    def __init__(self, encoder: PairEncoder, job: TrainPairEncoderJob) -> None:
        super().__init__()
        self.encoder = encoder
        self.job = job

    def param_groups(self) -> list[dict[str, Any]]:
        """Groups of CLIP's weights and of new ones (without CLIP all are new), each with and without decay."""
        groups: dict[str, dict[str, Any]] = {}
        for name, parameter in self.encoder.named_parameters():
            from_clip = self.job.clip is not None and name.removeprefix("clip.visual.") not in NEW
            plain = parameter.ndim < 2
            share = self.job.clip_lr_share if from_clip else 1.0
            settings = self.job.optim.model_dump()
            settings |= {"lr": settings["lr"] * share, "warmup_lr": settings["warmup_lr"] * share}
            if plain:
                settings["weight_decay"] = 0.0
            key = ("clip" if from_clip else "encoder") + ("_plain" if plain else "")
            groups.setdefault(key, {"name": key, "params": [], **settings})["params"].append(parameter)
        return list(groups.values())

    def training_step(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor | float]]:
        """``batch`` is one of :class:`CollatePairs` with one caption per pair."""
        pairs_BE, texts_BE, scale = self.encoder(batch["before"], batch["after"], batch["ids"], batch["ends"])
        loss, retrieved = pair_contrastive_loss(pairs_BE, texts_BE, scale)
        return loss, {"found_in_batch": retrieved, "scale": scale.detach()}

    @torch.no_grad()
    def validate(self, loader: Iterable[Batch], context: Context) -> dict[str, float]:
        """Retrieval among the held-out pairs, and its chance level; see :func:`idc.metrics.retrieval.retrieval`."""
        mine: list[tuple[list[int], np.ndarray, np.ndarray, list[int]]] = []
        for batch in loader:
            pairs_BE, texts_CE, _ = self.encoder(batch["before"], batch["after"], batch["ids"], batch["ends"])
            numbers = batch["numbers"].tolist()
            owners = [numbers[row] for row in batch["owners"].tolist()]
            mine.append((numbers, pairs_BE.float().cpu().numpy(), texts_CE.float().cpu().numpy(), owners))
        parts = [part for rank in context.all_gather_object(mine) for part in rank]
        row_of = {number: row for row, number in enumerate(number for part in parts for number in part[0])}
        pairs, texts = (np.concatenate([part[n] for part in parts]) for n in (1, 2))
        owner = np.array([row_of[number] for part in parts for number in part[3]])
        return retrieval(pairs @ texts.T, owner)


def pair_contrastive_loss(pairs_BE: Tensor, texts_BE: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """CLIP4IDC's symmetric loss: cross-entropy of the right text among all texts and of the right pair among all
    pairs, of this worker's unit vectors, row by row; and the share of texts whose own pair is the nearest of all
    workers' pairs.

    Pairs with the same caption need no special treatment: equal texts have equal logits, so the loss is the same as
    if the target were spread equally over all pairs with that caption.
    """
    (all_pairs_AE, own_B), (all_texts_AE, _) = gather_rows(pairs_BE), gather_rows(texts_BE)
    with torch.autocast(pairs_BE.device.type, enabled=False):
        to_texts_BA = scale.float() * pairs_BE @ all_texts_AE.T
        to_pairs_BA = scale.float() * texts_BE @ all_pairs_AE.T
        loss = (F.cross_entropy(to_texts_BA, own_B) + F.cross_entropy(to_pairs_BA, own_B)) / 2
    return loss, (to_pairs_BA.argmax(1) == own_B).float().mean()


def gather_rows(mine: Tensor) -> tuple[Tensor, Tensor]:
    """The rows of all workers, by rank, and which of them are mine; gradients flow back to the worker that computed a
    row. All workers call it, with as many rows each."""
    numbers = torch.arange(len(mine), device=mine.device)
    if not (dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1):
        return mine, numbers
    return cast(Tensor, _Gather.apply(mine)), numbers + dist.get_rank() * len(mine)


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, mine: Tensor) -> Tensor:
        parts = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, mine.contiguous())
        return torch.cat(parts)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        total = gradient.contiguous().clone()
        dist.all_reduce(total)
        return total.chunk(dist.get_world_size())[dist.get_rank()]


# -- data --------------------------------------------------------------------------------------------------------


class PairCaptions:
    """Dataset of pairs with captions, resized. A sample is (number, before, after, captions): with ``draw`` one
    caption, drawn by (seed, epoch, index), else all; ``changed_only`` skips pairs in which nothing changed."""

    def __init__(
        self,
        rows: MappedRows,
        size: int,
        *,
        changed_only: bool,
        draw: bool,
        seed: int = 0,
        limit: int | None = None,
    ) -> None:
        self.rows = rows
        self.size = size
        self.draw = draw
        self.seed = seed
        kinds, counts = rows.column("change_type"), rows.list_lengths("captions")
        kept = [n for n, kind in enumerate(kinds) if counts[n] and not (changed_only and kind == NO_CHANGE)]
        self.kept = kept[:limit]

    def __len__(self) -> int:
        return len(self.kept)

    def strata(self) -> list[str | None]:
        """The change type of each pair."""
        kinds = self.rows.column("change_type")
        return [kinds[row] for row in self.kept]

    def get(self, index: int, epoch: int) -> tuple[int, np.ndarray, np.ndarray, list[str]]:
        row = self.rows[self.kept[index]]
        captions = row["captions"]
        if self.draw:
            captions = [captions[sample_rng(self.seed, epoch, index).integers(len(captions))]]
        before, after = (resize_image(decode_image(row[name]), self.size) for name in ("before", "after"))
        return index, before, after, captions


class CollatePairs:
    """Makes a batch: before, after uint8 (B, 3, H, W); ids (C, T), ends (C,) of all captions; owners (C,), the row of
    each caption's pair; numbers (B,), the pairs' indices in their split."""

    def __init__(self, tokens: TextTokens) -> None:
        self.tokens = tokens

    def __call__(self, samples: Sequence[tuple[int, np.ndarray, np.ndarray, list[str]]]) -> dict[str, Tensor]:
        numbers, befores, afters, captions = zip(*samples, strict=True)
        texts = [text for of_pair in captions for text in of_pair]
        ids, ends = self.tokens(texts)
        return {
            "before": torch.from_numpy(np.stack(befores)).permute(0, 3, 1, 2),
            "after": torch.from_numpy(np.stack(afters)).permute(0, 3, 1, 2),
            "ids": ids,
            "ends": ends,
            "owners": torch.tensor([row for row, of_pair in enumerate(captions) for _ in of_pair]),
            "numbers": torch.tensor(numbers),
        }


# -- the run -----------------------------------------------------------------------------------------------------


def _build(job: TrainPairEncoderJob, context: Context) -> Parts:
    columns = ["before", "after", "captions", "change_type"]

    def pairs(split: str) -> PairCaptions:
        training, rows = split == "train", MappedRows(job.pairs, columns=columns, split=split)
        return PairCaptions(
            rows, job.encoder.image_size, changed_only=job.changed_only, draw=training, seed=job.train.seed,
            limit=job.max_pairs if training else None,
        )  # fmt: skip

    training, validation = pairs("train"), pairs("val")
    if not len(training):
        raise ValueError(uncaptioned(job.pairs, "train") + "; changed_only=true leaves others out" * job.changed_only)
    encoder = make_encoder(job, training)
    assert encoder.tokens is not None

    def artifact() -> dict[str, Any]:
        settings = encoder.artifact_settings(context.run_dir)
        card = (
            f"Trained on {len(training)} pairs of {job.pairs}. R1, R5, R10: share of captions whose own pair, and of "
            "pairs whose own captions, are among the 1, 5, 10 best of the validation split, with the chance level."
        )
        return {**settings, "config": {**settings["config"], "training": job.model_dump(mode="json")}, "card": card}

    return Parts(
        PairEncoderTask(encoder, job),
        training,
        validation if len(validation) else None,
        CollatePairs(encoder.tokens),
        artifact,
        weights="encoder.",
        limit=job.validation_pairs,
    )


train = System(SYSTEM, TrainPairEncoderJob, _build).train


def make_encoder(job: TrainPairEncoderJob, training: PairCaptions) -> PairEncoder:
    """The initial encoder: CLIP's weights and tokenizer, or random weights and the words of the captions."""
    if job.clip is not None:
        tokens: TextTokens = BpeTokens(job.clip, job.max_words)
        encoder = PairEncoder(job.encoder, len(tokens), tokens)
        load_clip(encoder, job.clip)
        return encoder
    captions = training.rows.column("captions")
    vocabulary = Vocabulary.build((text for n in training.kept for text in captions[n]), job.min_word_count)
    tokens = WordTokens(vocabulary, job.max_words)
    encoder = PairEncoder(job.encoder, len(tokens), tokens)
    if job.init == "comparing":
        start_comparing(encoder)
    return encoder
