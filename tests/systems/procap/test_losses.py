"""The losses of ProCap's two stages, against the paper's equations."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from idc.data.text import BOS, EOS, PAD, Vocabulary
from idc.systems.procap.config import DecoderConfig, EncoderConfig, FinetuneJob, LossConfig, PretrainJob
from idc.systems.procap.data import collate
from idc.systems.procap.task import FinetuneTask, PretrainTask, _true_or_false
from tests.systems.procap.naive import Stage1, Stage2
from tests.systems.procap.test_model import DECODER, OFFICIAL, OTHER_TEXT, SHAPES, SMALL, TEXT, features


def pretrain_task(loss: LossConfig | None = None, **settings: Any) -> PretrainTask:
    torch.manual_seed(0)
    stem = settings.pop("stem", ())
    encoder = EncoderConfig(**SMALL, stem=stem)
    job = PretrainJob(procedures=".", encoder=encoder, loss=loss or LossConfig(), **settings)
    return PretrainTask(job, SHAPES, PAD, lambda images: images)


def batch_of(count: int = 2) -> dict[str, Tensor]:
    random = torch.Generator().manual_seed(3)
    masked = torch.rand(count, 4, 6, generator=random) < 0.5
    masked[0] = True
    entire = torch.zeros(count, dtype=torch.bool)
    entire[0] = True
    return {
        "frames": features(count),
        "tokens": torch.randint(0, 11, (count, 4, 6), generator=random),
        "masked": masked,
        "entire": entire,
        "text": TEXT.repeat(count // 2, 1),
        "other_text": OTHER_TEXT.repeat(count // 2, 1),
        "warped": features(count, seed=9),
        "redone_at": torch.zeros(0, 2, dtype=torch.long),
        "redone": torch.zeros(0, 8, 8, 3, dtype=torch.uint8),
    }


STEM = {"stem": (8, 8)}
"""Of images of 8 x 12 pixels, whose patches have 4."""
ALIGN = LossConfig(msm=2.0, align=0.5, consistency=3.0)
STAGE_1: dict[str, tuple[LossConfig, dict[str, Any]]] = {
    "as in the paper": (LossConfig(), {}),
    "weights, no alignment of what is wholly masked": (ALIGN.model_copy(update={"align_skips_entire": True}), {}),
    "captions of the batch's other half": (ALIGN.model_copy(update={"align_negative": "swap_halves"}), {}),
    "a stem": (LossConfig(), STEM),
}


def shaken(task: torch.nn.Module) -> None:
    """No parameter stays at an initial value that hides its place, such as a mask embedding of 0."""
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in task.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))


def images_of(frames: Tensor, seed: int) -> Tensor:
    """Images in [0, 1] in place of features of as many frames."""
    return torch.rand(*frames.shape[:2], 3, 8, 12, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("variant", STAGE_1)
def test_the_losses_of_stage_1_are_equations_5_to_8(variant: str) -> None:
    loss, settings = STAGE_1[variant]
    task, batch = pretrain_task(loss, **settings), batch_of()
    shaken(task)
    if settings:
        batch |= {name: images_of(batch[name], seed) for seed, name in enumerate(("frames", "warped"))}
    total, logs = task.training_step(batch)
    expected = Stage1(task, task.job.encoder, SHAPES, loss).losses(batch)
    for name in ("msm", "align", "consistency"):
        assert float(logs[name]) == pytest.approx(expected[name], rel=1e-5), name
    assert float(total.detach()) == pytest.approx(expected["loss"], rel=1e-5)


@torch.no_grad()
def test_accuracies_are_the_shares_of_right_guesses_of_both_kinds() -> None:
    right = _true_or_false(torch.tensor([2.0, -1.0, 3.0]), torch.tensor([-1.0, 1.0, -4.0]), torch.ones(3))[1]
    assert float(right) == pytest.approx(4 / 6)


@torch.no_grad()
def test_without_a_caption_condition_there_is_no_alignment() -> None:
    task = pretrain_task(caption_condition=False)
    assert "align" not in task.training_step(batch_of())[1]


def test_the_pretraining_loss_does_not_depend_on_how_a_batch_is_cut() -> None:
    task, batch = pretrain_task(), batch_of(4)
    whole = task.training_step(batch)[0].detach()
    parts = [{key: value[i : i + 1] if len(value) else value for key, value in batch.items()} for i in range(4)]
    mean = sum(float(task.training_step(part)[0].detach()) for part in parts) / 4
    assert float(whole) == pytest.approx(mean, rel=1e-5)


def test_every_part_of_stage_1_learns_but_unused_words() -> None:
    task = pretrain_task()
    task.encoder.mask_embedding.data.normal_()
    loss, _ = task.training_step(batch_of())
    loss.backward()
    without = [name for name, p in task.named_parameters() if p.grad is None or not p.grad.any()]
    assert without == []
    assert task.encoder.text_embedding.weight.grad[15].abs().sum() == 0  # a word that no caption has


def finetune_task(**settings: Any) -> FinetuneTask:
    torch.manual_seed(0)
    encoder = EncoderConfig(**{**SMALL, **settings.pop("encoder", {})})
    decoder = DecoderConfig(**{**DECODER, **settings.pop("decoder", {})})
    job = FinetuneJob(procedures=".", decoder=decoder, **settings)
    vocabulary = Vocabulary([f"word{chr(97 + n)}" for n in range(SHAPES.vocabulary_size - 4)])
    return FinetuneTask(job, encoder, SHAPES, vocabulary, lambda images: images)


CAPTIONS = {
    "ends": features(frames=2),
    "ids": torch.tensor([[BOS, 5, 6, PAD], [BOS, 7, 8, 9]]),
    "targets": torch.tensor([[5, 6, EOS, PAD], [7, 8, 9, EOS]]),
}


STAGE_2: dict[str, dict[str, Any]] = {
    "as in the paper": {},
    "label smoothing": {"label_smoothing": 0.1},
    "the frames themselves": {"procedure": "frames"},
    "nothing between the images": {"procedure": "none"},
    "memory normalised over the batch, a stem": {"decoder": {"memory_norm": "batch"}, "encoder": STEM},
}


@pytest.mark.parametrize("variant", STAGE_2)
def test_the_captioning_loss_is_equation_10(variant: str) -> None:
    """From the procedure of eq. 9."""
    settings = STAGE_2[variant]
    task = finetune_task(**settings)
    shaken(task)
    batch: dict[str, Tensor] = {**CAPTIONS, "procedure": features()}
    if "encoder" in settings:
        batch["ends"] = images_of(CAPTIONS["ends"], 0)
    loss, logs = task.training_step(batch)
    captioner, job = task.captioner, task.job
    naive = Stage2(task, captioner.encoder.config, job.decoder, SHAPES)
    expected = naive.captioning(batch, job.procedure, job.label_smoothing)
    assert float(loss.detach()) == pytest.approx(expected["loss"], rel=1e-5)
    for name in ("loss_per_word", "word_accuracy"):
        assert float(logs[name]) == pytest.approx(expected[name], rel=1e-5), name


@pytest.mark.parametrize("settings", [{}, OFFICIAL], ids=["paper", "official"])
def test_what_only_stage_1_reads_is_not_trained_in_stage_2(settings: dict[str, Any]) -> None:
    task = finetune_task(encoder=settings)
    loss, _ = task.training_step(CAPTIONS)
    loss.backward()
    trained = {name for group in task.param_groups() for name in _names(task, group["params"])}
    without = {name for name, p in task.named_parameters() if p.grad is None}
    assert trained.isdisjoint(without)
    assert trained | without == {name for name, _ in task.named_parameters()}
    stage_1_only = {"align_token", "consistency_token", "text_positions", "text_embedding.weight"}
    expected = {"align_token"} if settings else stage_1_only
    assert without == {f"captioner.encoder.{name}" for name in expected}
    state = set(task.state_dict())
    assert without <= state  # kept in the artifact


def _names(task: torch.nn.Module, parameters: list[torch.nn.Parameter]) -> list[str]:
    wanted = {id(parameter) for parameter in parameters}
    return [name for name, parameter in task.named_parameters() if id(parameter) in wanted]


SEVERAL: list[list[list[int]]] = [[[5, 6], [7], [8, 9, 10]], [[11, 12, 13, 14]], [[15], [5, 16, 17]]]
"""The captions of three pairs, as word ids."""


def several(pairs: list[list[list[int]]], ends: torch.Tensor) -> dict[str, Tensor]:
    """The batch that ``collate`` makes of them."""
    items = [
        {
            "ends": end.numpy(),
            "ids": np.array([[BOS, *words, *[PAD] * (6 - len(words))] for words in captions]),
            "targets": np.array([[*words, EOS, *[PAD] * (6 - len(words))] for words in captions]),
        }
        for captions, end in zip(pairs, ends, strict=True)
    ]
    return collate(items)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("norm", ["layer", "batch"])
def test_all_captions_in_one_step_are_the_mean_over_passes_with_one_each(norm: str, smoothing: float) -> None:
    """The loss, its logs and its gradients; the naive pass gives every pair of the batch the same caption and takes the
    row of its own pair."""
    ends = features(3, frames=2)
    decoder = {"layers": 2, "memory_norm": norm}

    def fresh() -> FinetuneTask:
        task = finetune_task(decoder=decoder, label_smoothing=smoothing)
        with torch.no_grad():
            for parameter in task.parameters():
                parameter.add_(0.2 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(7)))
        return task

    naive, words, hits = fresh(), 0.0, 0.0
    total = torch.zeros(())
    for pair, captions in enumerate(SEVERAL):
        losses, correct = [], []
        for caption in captions:
            log_p = naive.captioner(ends, torch.tensor([[BOS, *caption]]).expand(3, -1)).log_softmax(-1)[pair]
            for position, word in enumerate([*caption, EOS]):
                target = torch.full((20,), smoothing / 19)
                target[word] = 1 - smoothing
                losses.append(-(target * log_p[position]).sum())
                correct.append(float(int(log_p[position].argmax()) == word))
        total = total + torch.stack(losses).sum() / len(captions) / 3
        words += float(torch.stack(losses).detach().mean()) / 3
        hits += sum(correct) / len(correct) / 3
    total.backward()

    task = fresh()
    batch = several(SEVERAL, ends)
    assert batch["ids"].shape == (3, 3, 5)
    loss, logs = task.training_step(batch)
    loss.backward()
    assert float(loss) == pytest.approx(float(total), rel=1e-5)
    assert float(logs["loss_per_word"]) == pytest.approx(words, rel=1e-5)
    assert float(logs["word_accuracy"]) == pytest.approx(hits, rel=1e-5)
    for (name, one), (_, other) in zip(task.named_parameters(), naive.named_parameters(), strict=True):
        assert (one.grad is None) == (other.grad is None), name
        if one.grad is not None:
            torch.testing.assert_close(one.grad, other.grad, rtol=1e-4, atol=1e-5, msg=name)


@torch.no_grad()
def test_the_loss_of_all_captions_does_not_depend_on_how_a_batch_is_cut() -> None:
    task, ends = finetune_task(), features(3, frames=2)
    whole = float(task.training_step(several(SEVERAL, ends))[0])
    parts = [float(task.training_step(several([SEVERAL[n]], ends[n : n + 1]))[0]) for n in range(3)]
    assert whole == pytest.approx(sum(parts) / 3, rel=1e-5)


def test_the_procedure_is_encoded_and_projected_once_for_all_captions_of_a_pair() -> None:
    task = finetune_task()
    seen: list[tuple[int, ...]] = []
    task.captioner.decoder.project.register_forward_hook(lambda _, inputs, __: seen.append(tuple(inputs[0].shape)))
    task.training_step(several(SEVERAL, features(3, frames=2)))
    assert seen == [(3, 24, 16)]
