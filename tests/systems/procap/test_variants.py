"""The variants of the paper's tables 2 to 4, 7, 8, 10, 11 and 14 and figures 4 and 7, trained a few steps in small."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from idc.data.images import decode_image
from idc.data.store import iter_rows
from idc.data.text import PAD
from idc.systems.procap.captioner import PairCaptioner
from idc.systems.procap.config import SCHEMES, FinetuneJob, MaskingConfig, PretrainJob
from idc.systems.procap.data import FinetuneDataset, PretrainDataset, ProcedureInfo, collate
from idc.systems.procap.task import FinetuneTask, PretrainTask
from idc.vision.tokenizer.model import ImageTokenizer
from tests.systems.procap.world import ENCODER, World, start

PATCHES = 16
"""n_I of the world."""
WARTS = {"separator": True, "consistency_sees_text": False, "queries_only": False}
"""Of the official code."""


def train(task: PretrainTask | FinetuneTask, data: PretrainDataset | FinetuneDataset) -> dict[str, Tensor | float]:
    """Three steps on four samples; the first step's logs. Every loss is finite, and every trained part moves."""
    batch = collate([data.get(index, 0) for index in range(4)])
    optimizer = torch.optim.AdamW([p for p in task.parameters() if p.requires_grad], lr=1e-2)
    logs = []
    for _ in range(3):
        loss, values = task.training_step(batch)
        assert torch.isfinite(loss)
        optimizer.zero_grad()
        loss.backward()
        assert [name for name, p in task.named_parameters() if p.requires_grad and p.grad is None] == []
        optimizer.step()
        logs.append(values)
    return logs[0]


def stage_1(job: PretrainJob) -> tuple[PretrainTask, PretrainDataset]:
    torch.manual_seed(0)
    info = ProcedureInfo.of(job.procedures)
    task = PretrainTask(job, info.shapes, PAD, ImageTokenizer.load(info.tokenizer).features)
    return task, PretrainDataset(job.procedures, info, "train", job)


def stage_2(job: FinetuneJob) -> tuple[FinetuneTask, FinetuneDataset]:
    torch.manual_seed(0)
    info = ProcedureInfo.of(job.procedures)
    assert job.encoder is not None
    task = FinetuneTask(job, job.encoder, info.shapes, info.vocabulary, ImageTokenizer.load(info.tokenizer).features)
    explicit, length = job.procedure == "frames", job.decoder.max_length
    return task, FinetuneDataset(
        job.procedures, info, "train", captions="first", max_length=length, seed=0, explicit=explicit
    )


def lengths(task: PretrainTask | FinetuneTask) -> list[tuple[int, int]]:
    """(samples, positions) of every pass through the encoder from now on."""
    encoder = task.encoder if isinstance(task, PretrainTask) else task.captioner.encoder
    seen: list[tuple[int, int]] = []
    encoder.blocks[0].register_forward_pre_hook(lambda _, inputs: seen.append(tuple(inputs[0].shape[:2])))
    return seen


# -- tables 2, 7 and 14: what stands between the images -----------------------------------------------------------


def moving_pair(world: World) -> tuple[np.ndarray, np.ndarray, dict[str, Any]]:
    """A validation pair of which something moves, and its stored procedure."""
    stored = next(row for row in iter_rows(world.procedures, split="val") if row["change_type"] != "none")
    (row,) = (row for row in iter_rows(world.pairs, split="val") if row["pair_id"] == stored["pair_id"])
    return decode_image(row["before"]), decode_image(row["after"]), stored


def test_the_explicit_captioner_makes_the_frames_itself(world: World, tmp_path: Path) -> None:
    """From two images, by the interpolator and sampling of the folder it was trained on, without that folder."""
    settings = {"train.steps": 2, "validation_pairs": 2, "procedure": "frames"}
    captioner = PairCaptioner(start(world.finetune(settings), tmp_path / "run"))
    before, after, row = moving_pair(world)
    assert captioner.explicit is not None
    frames = captioner.explicit([before, after], [after, before])
    assert frames.shape == (2, 4, PATCHES, 16)
    stored = torch.from_numpy(np.frombuffer(row["features"], np.float16).reshape(5, PATCHES, 16).copy()).float()
    numbers = [[n for n in range(5) if torch.allclose(frame, stored[n], rtol=5e-3, atol=5e-3)] for frame in frames[0]]
    assert all(numbers), "each is a frame of the stored procedure"
    assert (numbers[0][0], numbers[-1][-1]) == (0, 4)
    alone = captioner.explicit([before], [after])
    torch.testing.assert_close(alone, frames[:1], rtol=1e-4, atol=1e-4, msg="the same draw in any company")
    described = captioner.describe([before, after], [after, before], change_map=True)
    assert captioner([before], [after]) == [described[0].best.caption]
    assert described[0].change_map is not None


# -- table 4: losses; table 10: without the caption ---------------------------------------------------------------


@pytest.mark.parametrize("on", [{"msm"}, {"align"}, {"consistency"}, {"msm", "align", "consistency"}])
def test_a_loss_that_is_off_costs_nothing(world: World, on: set[str]) -> None:
    """No pass through the encoder, no sample made for it, no head trained."""
    weights = {f"loss.{name}": float(name in on) for name in ("msm", "align", "consistency")}
    task, data = stage_1(world.pretrain(weights))
    before = {name: tensor.clone() for name, tensor in task.heads.state_dict().items()}
    seen = lengths(task)
    logs = train(task, data)
    assert on == {name for name in logs if "accuracy" not in name}
    assert set(seen) == {(4 * (1 + len(on - {"msm"})), 1 + 12 + 1 + 4 * PATCHES)}
    assert ("other_text" in data.get(0, 0), "warped" in data.get(0, 0)) == ("align" in on, "consistency" in on)
    moved = {name.split(".")[0] for name, old in before.items() if not torch.equal(old, task.heads.state_dict()[name])}
    assert moved == on


@pytest.mark.parametrize("warts", [{}, WARTS], ids=["paper", "official"])
def test_without_the_caption_the_sequence_has_no_text(world: World, warts: dict[str, bool], tmp_path: Path) -> None:
    job = world.pretrain({"train.steps": 2}, caption_condition=False, encoder={**ENCODER, **warts})
    task, data = stage_1(job)
    seen = lengths(task)
    masks: list[Tensor] = []
    task.encoder.blocks[0].register_forward_pre_hook(lambda _, inputs: masks.append(inputs[1]))
    assert "align" not in train(task, data)
    assert set(seen) == {(2 * 4, 1 + 1 + bool(warts) + 4 * PATCHES)}  # the sample and its warped frames
    if warts:  # align, separator, consistency, frames
        assert masks[0].isinf().nonzero().tolist() == [[1, 0], [2, 0], [2, 1]]
    assert data.get(0, 0)["text"].shape == (0,)
    artifact = start(job, tmp_path / "stage1")
    finetune = world.finetune({"train.steps": 2, "validation_pairs": 2}, pretrained=str(artifact))
    PairCaptioner(start(finetune, tmp_path / "stage2"))


# -- table 11 and figure 7: masking schemes -----------------------------------------------------------------------


def test_a_scheme_is_removed_or_varied_by_one_key() -> None:
    """Table 11: the others in proportion. Figure 7: one at p, the others at (1 - p) / 3."""
    own = {"random": 0.7, "entire": 0.1, "in_block": 0.1, "out_of_block": 0.1}
    for removed in SCHEMES:
        shares = dict(zip(SCHEMES, MaskingConfig(varied=removed).probabilities(), strict=True))
        expected = {scheme: share / (1 - own[removed]) for scheme, share in own.items()} | {removed: 0.0}
        assert shares == pytest.approx(expected)
    assert MaskingConfig(varied="in_block", varied_to=0.4).probabilities() == pytest.approx((0.2, 0.2, 0.4, 0.2))
    assert MaskingConfig(varied="random", varied_to=0.7).probabilities() == pytest.approx(tuple(own.values()))
    only: dict[str, Any] = {"random": 1.0, "entire": 0.0, "in_block": 0.0, "out_of_block": 0.0, "varied": "random"}
    for fault, settings in {
        "varied_to: 0.3 needs the scheme that it is for; set varied too": {"varied_to": 0.3},
        "varied: without random no scheme is left, as the others have probability 0": only,
    }.items():
        with pytest.raises(ValueError, match=fault):
            MaskingConfig.model_validate(settings)
