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
from idc.systems.procap.task import FinetuneTask, PretrainTask
from tests.systems.procap.test_model import DECODER, OFFICIAL, OTHER_TEXT, SHAPES, SMALL, TEXT, features


class Fake(torch.nn.Module):
    """Replaces the encoder: returns given hidden states, of the patches that are read, and keeps its inputs."""

    def __init__(self, align: Tensor, consistency: Tensor, frames: Tensor):
        super().__init__()
        self.out = align, consistency, frames
        self.asked: tuple[Any, ...] = ()

    def forward(self, stage: str, *inputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        assert stage == "modeling"
        self.asked = inputs
        align, consistency, frames = self.out
        read = inputs[4].flatten(1)
        return align, consistency, frames[: len(read)][read]


def pretrain_task(loss: LossConfig | None = None, **settings: Any) -> PretrainTask:
    torch.manual_seed(0)
    job = PretrainJob(procedures=".", encoder=EncoderConfig(**SMALL), loss=loss or LossConfig(), **settings)
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


def faked(loss: LossConfig) -> tuple[PretrainTask, Fake, dict[str, Tensor], Tensor, Tensor, Tensor]:
    """A task on given hidden states of 2 samples, 2 with wrong captions, 2 with warped frames."""
    task = pretrain_task(loss)
    random = torch.Generator().manual_seed(5)
    align, consistency = (torch.randn(6, 16, generator=random) for _ in range(2))
    frames = torch.randn(6, 24, 16, generator=random)
    encoder = Fake(align, consistency, frames)
    task.encoder = encoder  # type: ignore[assignment]
    return task, encoder, batch_of(), align, consistency, frames


@torch.no_grad()
def test_masked_sequence_modeling_is_the_cross_entropy_of_masked_patches() -> None:
    """Eq. 6, written out: the mean over a sample's masked patches, then over the samples."""
    task, _, batch, _, _, frames = faked(LossConfig(align=0.0, consistency=0.0, msm=2.0))
    loss, logs = task.training_step(batch)
    probability = task.heads.msm(frames[:2]).softmax(-1)
    samples = []
    for b in range(2):
        values = [
            -probability[b, 6 * f + p, batch["tokens"][b, f, p]].log()
            for f in range(4)
            for p in range(6)
            if batch["masked"][b, f, p]
        ]
        samples.append(sum(values) / len(values))
    assert float(logs["msm"]) == pytest.approx(float(sum(samples)) / 2, rel=1e-5)
    assert float(loss) == pytest.approx(float(sum(samples)), rel=1e-5)
    assert "align" not in logs
    assert "consistency" not in logs


@torch.no_grad()
@pytest.mark.parametrize("skips", [False, True])
def test_alignment_and_consistency_are_equations_7_and_8(skips: bool) -> None:
    config = LossConfig(msm=0.0, align=0.5, consistency=3.0, align_skips_entire=skips)
    task, _, batch, align, consistency, _ = faked(config)
    loss, logs = task.training_step(batch)
    aligned = task.heads.align(align)[:, 0].sigmoid()
    terms = [float(-aligned[b].log() - (1 - aligned[2 + b]).log()) for b in range(2)]
    # Sample 0 is entirely masked; the official mean is over the samples that count.
    expected = terms[1] if skips else (terms[0] + terms[1]) / 2
    assert float(logs["align"]) == pytest.approx(expected, rel=1e-5)
    order = task.heads.consistency(consistency)[:, 0].sigmoid()
    in_time = sum(float(-order[b].log() - (1 - order[4 + b]).log()) for b in range(2)) / 2
    assert float(logs["consistency"]) == pytest.approx(in_time, rel=1e-5)
    assert float(loss) == pytest.approx(0.5 * expected + 3 * in_time, rel=1e-5)
    right = (aligned[:2] > 0.5).sum() + (aligned[2:4] < 0.5).sum()
    assert float(logs["align_accuracy"]) == pytest.approx(float(right) / 4)


@torch.no_grad()
@pytest.mark.parametrize("negative", ["other_caption", "swap_halves"])
def test_what_the_encoder_is_asked_for_the_negatives(negative: str) -> None:
    task, encoder, batch, *_ = faked(LossConfig(align_negative=negative))  # type: ignore[arg-type]
    task.training_step(batch)
    frames, masked, ids, pad, read = encoder.asked
    assert pad == PAD
    assert torch.equal(read, batch["masked"])
    assert torch.equal(frames, torch.cat([batch["frames"], batch["frames"], batch["warped"]]))
    assert torch.equal(masked, batch["masked"].repeat(3, 1, 1))  # the warped frames have the sample's own mask
    wrong = OTHER_TEXT if negative == "other_caption" else TEXT.flip(0)
    assert torch.equal(ids, torch.cat([TEXT, wrong, TEXT]))


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


@torch.no_grad()
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_captioning_loss_is_equation_10(smoothing: float) -> None:
    """The sum over a caption's words, the mean over captions; label smoothing gives its share to the other words."""
    task = finetune_task(label_smoothing=smoothing)
    loss, logs = task.training_step(CAPTIONS)
    log_p = task.captioner(CAPTIONS["ends"], CAPTIONS["ids"]).log_softmax(-1)
    total = words = right = 0.0
    per_word = []
    for b, length in enumerate((3, 4)):
        terms, hits = [], []
        for t in range(length):
            goal = int(CAPTIONS["targets"][b, t])
            target = torch.full((20,), smoothing / 19)
            target[goal] = 1 - smoothing
            terms.append(float(-(target * log_p[b, t]).sum()))
            hits.append(float(int(log_p[b, t].argmax()) == goal))
        total += sum(terms) / 2
        words += length
        per_word.append(sum(terms) / length)
        right += sum(hits) / length / 2
    assert float(loss) == pytest.approx(total, rel=1e-5)
    assert float(logs["loss_per_word"]) == pytest.approx(sum(per_word) / 2, rel=1e-5)
    assert float(logs["word_accuracy"]) == pytest.approx(right, rel=1e-5)


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
