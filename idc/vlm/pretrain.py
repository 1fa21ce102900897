"""Pre-training of a small base model on rendered scenes: the task, the entry of its training, and the folder it makes.

One run of the training loop in stages: describe an image, choose between two, compare a pair. The result is an ordinary
folder of a transformers model, as one downloads it from the hub.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from idc.schema import IMAGE, Turn
from idc.training.caption_validation import Captioned, score_captions
from idc.training.context import Context
from idc.training.data import EvalLoader, Loader, Loaders
from idc.training.loop import fit, read_log
from idc.training.task import Batch, Task
from idc.vlm.base import find_base, load_model, read_family, save_model, save_processor
from idc.vlm.batch import Sample, collate_encoded, encode_images
from idc.vlm.chat import Chat
from idc.vlm.config import PAIR_PROMPT, BaseConfig, GenerateConfig
from idc.vlm.family import Family
from idc.vlm.generate import generate
from idc.vlm.logps import log_probabilities, repeated
from idc.vlm.pretrain_card import write_card
from idc.vlm.pretrain_config import TASKS, PretrainVlmJob
from idc.vlm.scene_samples import RenderedScenes, SceneDialogues, SceneSample, ValidationDialogues
from idc.vlm.scene_sentences import LISTED, listing_hits
from idc.vlm.start_weights import comparing_head, lively_weights
from idc.vlm.tiny import make_tiny

START = "start"
"""Folder in a run with the model before training: random weights, tokenizer, image processor."""
_DIALOGUES = 2000
"""Training samples whose sentences the tokenizer is made of, of the first and of the last stage each."""
_CAPTIONS = 2
"""Captions of each of these samples' pairs that the tokenizer is made of besides."""
_LONGEST_ANSWER = 128
"""Tokens of an answer in validation: of a list of twelve objects some 100."""


class SceneTask(Task):
    """A whole model, trained on dialogues about images of rendered scenes."""

    def __init__(self, job: PretrainVlmJob, model: Any, family: Family):
        super().__init__()
        self.job, self.model, self.family = job, model, family
        self.chat = Chat(family)
        for name, parameter in model.named_parameters():
            if family.is_unused(name):
                parameter.requires_grad_(False)

    def training_step(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor | float]]:
        losses = self._losses(batch, encode_images(self.model, batch, self.family))
        return losses.mean(), {}

    def _losses(self, batch: Batch, encoded: Any) -> Tensor:
        """Per sample the mean loss of its learned tokens, (B,)."""
        totals, counts = log_probabilities(self.model, batch, encoded, self.family)
        return -totals / counts

    def _answers(self, batch: Batch, encoded: Any) -> list[str]:
        """Greedy answers to the prompts of the samples that are scored, whose images are encoded with all others."""
        pixels = {key: batch[key] for key in self.family.pixel_keys}
        features, language = repeated(encoded, pixels, batch["scored_images"], self.family)
        prompts, settings = {**batch["prompts"], **language}, GenerateConfig(max_new_tokens=_LONGEST_ANSWER)
        answers = generate(self.model, prompts, features, self.family, settings)
        return [self.chat.decode(answer[0].ids) for answer in answers]

    @torch.no_grad()
    def validate(self, loader: Iterable[Batch], context: Context) -> dict[str, float]:
        """Of each task the loss per token with the right images (``compare``), with those of another scene
        (``compare_shuffled``), and their difference (``compare_right_minus_shuffled``): 0 for a model that is blind,
        below 0 for one that sees. Of single images also the shares of objects that it lists with all attributes right
        (``listed_object``), and with each (``listed_shape``); of pairs the measures of captions."""
        mine: list[tuple[str, float, float]] = []
        captions: list[Captioned] = []
        hits: Counter[str] = Counter()
        for batch in loader:
            encoded = encode_images(self.model, batch, self.family)
            right = self._losses(batch, encoded).tolist()
            source = swapped(batch["tasks"])
            texts = {**batch, **{key: batch[key][source] for key in ("input_ids", "attention_mask", "learned")}}
            wrong = self._losses(texts, encoded).tolist()
            for images, text in enumerate(source):
                if batch["scenes"][images] != batch["scenes"][text]:
                    mine.append((batch["tasks"][text], right[text], wrong[images]))
            if "prompts" in batch:
                for truth, answer in zip(batch["scored"], self._answers(batch, encoded), strict=True):
                    if isinstance(truth, str):
                        hits.update(listing_hits(truth, answer))
                    else:
                        captions.append((truth["pair_id"], answer, truth["references"], truth["truth"]))
        rows = [row for part in context.all_gather_object(mine) for row in part]
        counts: Counter[str] = sum(context.all_gather_object(hits), Counter())
        metrics: dict[str, float] = {}
        for task in TASKS:
            values = np.array([(right, wrong) for name, right, wrong in rows if name == task])
            if len(values):
                right_loss, wrong_loss = values.mean(axis=0).tolist()
                metrics |= {
                    task: right_loss,
                    f"{task}_shuffled": wrong_loss,
                    f"{task}_right_minus_shuffled": right_loss - wrong_loss,
                }
        listed = {f"listed_{name}": counts[name] / counts["objects"] for name in LISTED if counts["objects"]}
        return metrics | listed | score_captions(captions, context)

    def param_groups(self) -> list[dict[str, Any]]:
        """Matrices and kernels decay; vectors (norms, biases, scales) and positions do not."""
        settings = self.job.optim.model_dump()
        groups: dict[bool, list[Tensor]] = {True: [], False: []}
        for name, parameter in self.model.named_parameters():
            if parameter.requires_grad:
                groups[parameter.ndim > 1 and "position_embedding" not in name].append(parameter)
        return [
            {"name": "matrices", "params": groups[True], **settings},
            {"name": "vectors", "params": groups[False], **settings, "weight_decay": 0.0},
        ]


def swapped(tasks: Sequence[str]) -> list[int]:
    """For the images of each sample of a batch, the sample of the same task whose text they get: half of the task's
    samples on, so that neighbours, which may be of one scene, do not meet."""
    rows: dict[str, list[int]] = {}
    for row, task in enumerate(tasks):
        rows.setdefault(task, []).append(row)
    source = list(range(len(tasks)))
    for group in rows.values():
        for number, row in enumerate(group):
            source[row] = group[(number + len(group) // 2) % len(group)]
    return source


class SceneCollate:
    """Makes batches of scene samples: those of :func:`idc.vlm.batch.collate_encoded`, ``tasks`` and ``scenes`` of the
    samples. Where samples are scored also ``scored``, the true list of an image or the ``scored`` of a pair, and for
    these samples ``prompts``, a batch for generation without pixels, and ``scored_images``, the numbers of their images
    in the batch."""

    def __init__(self, family: Family):
        self.family, self.chat = family, Chat(family)

    def __call__(self, samples: Sequence[SceneSample]) -> dict[str, Any]:
        texts = []
        for sample in samples:
            encoded = self.chat.encode(sample.turns, [image.shape[:2] for image in sample.images])
            texts.append(Sample(encoded.ids, encoded.learned, {}))
        pixels = self.family.pixels([image for sample in samples for image in sample.images])
        batch = collate_encoded(texts, self.family) | pixels
        batch |= {"tasks": [sample.task for sample in samples], "scenes": [sample.scene for sample in samples]}
        prompts, scored, first = [], [], 0
        images: list[int] = []
        for sample in samples:
            truth = sample.scored if sample.listing is None else sample.listing
            if truth is not None:
                ids = self.chat.prompt(sample.turns[:1], [image.shape[:2] for image in sample.images])
                prompts.append(Sample(ids, [False] * len(ids), {}))
                scored.append(truth)
                images += range(first, first + len(sample.images))
            first += len(sample.images)
        if scored:
            batch["prompts"] = collate_encoded(prompts, self.family, side="left")
            batch |= {"scored": scored, "scored_images": images}
        return batch


def train(payload: dict[str, Any], context: Context) -> dict[str, Any]:
    """Train on this rank; ``payload`` is a resolved :class:`PretrainVlmJob`. Returns what ``fit`` returns."""
    job = PretrainVlmJob.model_validate(payload)
    scenes, validation = RenderedScenes(job.pairs, "train"), RenderedScenes(job.pairs, "val")
    epochs = job.train.total_steps(len(scenes)) * job.train.batch_size / len(scenes)
    training = SceneDialogues(scenes, job, epochs)
    start = context.run_dir / START
    if context.rank == 0 and not start.is_dir():
        _make_start(job, training, start)
    context.barrier()
    family = read_family(start, start, None)
    task = SceneTask(job, load_model(start, BaseConfig(source=str(start), dtype="float32")), family)
    task.to(context.device)
    gather = SceneCollate(family)
    size = max(2, job.train.micro_batch_size // context.world_size)
    loaders = Loaders(
        Loader.from_config(training, gather, job.train, context.rank, context.world_size),
        EvalLoader(ValidationDialogues(validation, job), size, context.rank, context.world_size, gather),
    )

    def export(state: dict[str, Tensor], metrics: dict[str, float]) -> None:
        task.load_state_dict(state)
        folder = context.run_dir / "artifact"
        shutil.rmtree(folder, ignore_errors=True)
        save_base(task.model, family, folder)
        write_card(job, task.model, metrics, folder)
        write_base_page(job, context.run_dir, metrics)

    return fit(task, loaders, context, job.train, export=export)


def _make_start(job: PretrainVlmJob, training: SceneDialogues, folder: Path) -> None:
    """Write the model before training, whole or not at all: a run that is resumed reads it again."""
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    if job.start is not None:
        config = BaseConfig(source=job.start, dtype="float32")
        earlier = find_base(config)
        save_base(load_model(earlier.folder, config), earlier.family, partial)
        partial.rename(folder)
        return
    make_tiny(job.model, _texts(training), partial, job.train.seed)
    base = BaseConfig(source=str(partial), dtype="float32")
    model = load_model(partial, base)
    family, generator = read_family(partial, partial, None), torch.Generator().manual_seed(job.train.seed)
    lively_weights(model, generator)
    if not family.language_keys:  # else its positions have two dimensions
        image = training.get(0, 0).images[0]
        comparing_head(model, image_distance(family, image.shape[:2]), generator)
    save_model(model, partial)
    partial.rename(folder)


def image_distance(family: Family, size: tuple[int, int]) -> int:
    """Number of tokens from a position in the first image to the same one in the second, in the prompt for pairs."""
    ids = np.array(Chat(family).prompt([Turn("user", PAIR_PROMPT)], [size, size]))
    positions = np.flatnonzero(ids == family.image_id)
    return int(positions[len(positions) // 2] - positions[0])


def _texts(training: SceneDialogues) -> Iterator[str]:
    """The texts that the tokenizer is trained on: the sentences of training samples, the roles of a chat, and captions,
    whose words a tuning needs whole also where no stage compares."""
    count = len(training)
    for number in range(_DIALOGUES):
        yield from (f" {caption}" for caption in training.scenes.rows[number % count]["captions"][:_CAPTIONS])
        for done in (0.0, 0.99):  # samples of the first and of the last stage
            sample = training.get(number % count, int(done * training.epochs) + number // count)
            for turn in sample.turns:
                yield f"{turn.role}\n"
                yield turn.text.replace(IMAGE, "")


def save_base(model: Any, family: Family, folder: Path) -> None:
    """Write a model as an ordinary hub folder: config, weights, tokenizer with chat template, image processor."""
    save_model(model, folder)
    save_processor(family, folder)


def write_base_page(job: PretrainVlmJob, run_dir: Path, metrics: Mapping[str, float]) -> None:
    """The page of the run: every curve of its log, and the settings."""
    from idc.report.run import RunReport, write_run_page

    facts = ", ".join(f"{name} {metrics[name]:.3f}" for name in metrics if name.endswith("_right_minus_shuffled"))
    write_run_page(
        run_dir / "report.html",
        RunReport(
            title=f"{job.name}: a small base model",
            subtitle=f"Loss with the right images minus loss with those of another scene, per token: {facts}",
            logs={"pre-training": read_log(run_dir / "log.jsonl")},
            configs={"job": job.model_dump(mode="json")},
        ),
    )
