"""ProCap's network and the losses of its two stages, against the paper's equations and sizes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from idc.data.text import BOS, EOS, PAD, Vocabulary
from idc.systems.procap.config import DecoderConfig, EncoderConfig, FinetuneJob, LossConfig, PretrainJob
from idc.systems.procap.data import collate
from idc.systems.procap.model import EncoderBlock, ProcedureEncoder, Shapes
from idc.systems.procap.task import FinetuneTask, PretrainTask
from tests.systems.procap.naive import Stage1, Stage2, shaken

SHAPES = Shapes(num_keyframes=2, grid=(2, 3), feature_dim=8, codebook_size=11, vocabulary_size=20)
PAPER = Shapes(num_keyframes=2, grid=(14, 14), feature_dim=256, codebook_size=1024, vocabulary_size=80)
SMALL = {"width": 16, "layers": 2, "heads": 2, "text_length": 5, "init": "normal"}
OFFICIAL = {"separator": True, "consistency_sees_text": False, "queries_only": False}
DECODER = {"width": 16, "layers": 1, "heads": 2, "feedforward": 32, "dropout": 0.0, "max_length": 8}
TEXT = torch.tensor([[5, 6, 7, PAD, PAD], [8, 9, PAD, PAD, PAD]])
OTHER_TEXT = torch.tensor([[10, 6, 7, PAD, PAD], [8, 11, PAD, PAD, PAD]])


def features(batch: int = 2, frames: int = 4, seed: int = 1) -> Tensor:
    return torch.randn(batch, frames, 6, 8, generator=torch.Generator().manual_seed(seed))


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
        "recompute_index": torch.zeros(0, 2, dtype=torch.long),
        "recomputed": torch.zeros(0, 8, 8, 3, dtype=torch.uint8),
    }


STEM = {"stem": (8, 8)}
ALIGN = LossConfig(msm=2.0, align=0.5, consistency=3.0)
STAGE_1: dict[str, tuple[LossConfig, dict[str, Any]]] = {
    "as in the paper": (LossConfig(), {}),
    "weights, no alignment of what is wholly masked": (ALIGN.model_copy(update={"align_skips_entire": True}), {}),
    "captions of the batch's other half": (ALIGN.model_copy(update={"align_negative": "swap_halves"}), {}),
    "a stem": (LossConfig(), STEM),
}


def images_of(frames: Tensor, seed: int) -> Tensor:
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


@pytest.mark.parametrize("official", [{}, OFFICIAL], ids=["paper", "official"])
@pytest.mark.parametrize("read", [1, 3, 5])
def test_positions_that_nobody_reads_are_not_computed_and_change_nothing(official: dict[str, Any], read: int) -> None:
    """Of 5 samples, the wanted patches of the first ones: the same values and gradients as from all positions."""
    random = torch.Generator().manual_seed(1)
    ids = torch.randint(4, 20, (5, 5), generator=random)
    masked = torch.rand(5, 4, 6, generator=random) < 0.4
    masked[0], masked[1, 1:] = True, False
    wanted, weights, results = masked[:read], torch.randn(3, generator=random), []
    for alone in (False, True):
        torch.manual_seed(0)
        encoder = ProcedureEncoder(EncoderConfig(**SMALL, **official), SHAPES)
        shaken(encoder)
        inputs = ("modeling", features(5), masked, ids, PAD)
        align, consistency, patches = encoder(*inputs, *([wanted] if alone else []))
        if not alone:
            patches = patches[:read][wanted.flatten(1)]
        parts = (align, consistency, patches)
        sum(weight * part.pow(2).sum() for weight, part in zip(weights, parts, strict=True)).backward()
        rows: list[int] = []
        last = encoder.blocks[-1]
        assert isinstance(last, EncoderBlock)
        last.widen.register_forward_pre_hook(lambda _, given, to=rows: to.append(given[0].numel() // 16))
        with torch.no_grad():
            encoder(*inputs, wanted)
        assert sum(rows) == int(wanted.sum()) + 2 * 5
        grads = {name: parameter.grad for name, parameter in encoder.named_parameters() if parameter.grad is not None}
        results.append((*parts, grads))
    whole, part = results
    for one, other in zip(whole[:3], part[:3], strict=True):
        assert one.shape == other.shape
        assert torch.allclose(one, other, atol=1e-5, rtol=1e-5)
    assert whole[3].keys() == part[3].keys()
    for name, grad in whole[3].items():
        assert torch.allclose(grad, part[3][name], atol=1e-4 * float(grad.abs().max()) + 1e-6), name


def finetune_task(**settings: Any) -> FinetuneTask:
    torch.manual_seed(0)
    encoder = EncoderConfig(**{**SMALL, **settings.pop("encoder", {})})
    decoder = DecoderConfig(**{**DECODER, **settings.pop("decoder", {})})
    job = FinetuneJob(procedures=".", decoder=decoder, **settings)
    vocabulary = Vocabulary([f"word{chr(97 + n)}" for n in range(SHAPES.vocabulary_size - 4)])
    return FinetuneTask(job, encoder, SHAPES, vocabulary, lambda images: images)


CAPTIONS: list[list[list[int]]] = [[[5, 6]], [[7, 8, 9]]]
SEVERAL: list[list[list[int]]] = [[[5, 6], [7], [8, 9, 10]], [[15, 7, 9, 4]]]


def captioned(pairs: list[list[list[int]]]) -> dict[str, Tensor]:
    return collate([
        {
            "ends": end.numpy(),
            "ids": np.array([[BOS, *words, *[PAD] * (6 - len(words))] for words in captions]),
            "targets": np.array([[*words, EOS, *[PAD] * (6 - len(words))] for words in captions]),
        }
        for captions, end in zip(pairs, features(frames=2), strict=True)
    ])  # fmt: skip


STAGE_2: dict[str, tuple[list[list[list[int]]], dict[str, Any]]] = {
    "as in the paper": (CAPTIONS, {}),
    "all captions, label smoothing, two layers": (SEVERAL, {"label_smoothing": 0.1, "decoder": {"layers": 2}}),
    "the frames themselves": (CAPTIONS, {"procedure": "frames"}),
    "nothing between the images, memory normalised over the batch": (
        CAPTIONS, {"procedure": "none", "decoder": {"memory_norm": "batch"}},
    ),
    "a stem": (SEVERAL, {"encoder": STEM}),
}  # fmt: skip


@pytest.mark.parametrize("variant", STAGE_2)
def test_the_captioning_loss_is_equation_10(variant: str) -> None:
    captions, settings = STAGE_2[variant]
    task = finetune_task(**settings)
    shaken(task)
    batch = {**captioned(captions), "procedure": features()}
    if "encoder" in settings:
        batch["ends"] = images_of(batch["ends"], 0)
    loss, logs = task.training_step(batch)
    captioner, job = task.captioner, task.job
    naive = Stage2(task, captioner.encoder.config, job.decoder, SHAPES)
    expected = naive.captioning(batch, job.procedure, job.label_smoothing)
    assert float(loss.detach()) == pytest.approx(expected["loss"], rel=1e-5)
    for name in ("loss_per_word", "word_accuracy"):
        assert float(logs[name]) == pytest.approx(expected[name], rel=1e-5), name


@pytest.mark.parametrize(("settings", "procedure"), [({}, "queries"), (OFFICIAL, "queries"), ({}, "none")])
def test_what_only_stage_1_reads_is_kept_and_not_trained_in_stage_2(settings: dict[str, Any], procedure: str) -> None:
    task = finetune_task(encoder=settings, procedure=procedure)
    task.training_step(captioned(CAPTIONS))[0].backward()
    groups = {id(parameter) for group in task.param_groups() for parameter in group["params"]}
    trained = {name for name, parameter in task.named_parameters() if id(parameter) in groups}
    without = {name for name, parameter in task.named_parameters() if parameter.grad is None}
    unread = {"align_token"} | ({"mask_embedding"} if procedure == "none" else set())
    unread |= set() if settings else {"consistency_token", "text_positions", "text_embedding.weight"}
    assert without == {f"captioner.encoder.{name}" for name in unread}
    assert trained == {name for name, _ in task.named_parameters()} - without
    assert without <= set(task.state_dict())


def test_the_papers_encoder_has_the_blocks_of_clip_vit_b_32() -> None:
    with torch.device("meta"):
        encoder = ProcedureEncoder(EncoderConfig(init="normal"), PAPER)
    published = 85_054_464
    assert sum(parameter.numel() for parameter in encoder.blocks.parameters()) == published
