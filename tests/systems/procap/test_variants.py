"""The variants of the paper's tables 4, 10, 11 and 14 and figure 7, trained a few steps in small."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from idc.data.images import decode_image
from idc.data.store import iter_rows
from idc.data.text import PAD
from idc.systems.procap.captioner import PairCaptioner
from idc.systems.procap.config import SCHEMES, MaskingConfig
from idc.systems.procap.data import PretrainDataset, ProcedureInfo, collate
from idc.systems.procap.task import PretrainTask
from idc.vision.tokenizer.model import ImageTokenizer
from tests.systems.procap.world import World, start

PATCHES = 16
"""n_I of the world."""


def test_the_explicit_captioner_makes_the_frames_itself(world: World, tmp_path: Path) -> None:
    settings = {"train.steps": 2, "validation_pairs": 2, "procedure": "frames"}
    captioner = PairCaptioner(start(world.finetune(settings), tmp_path / "run"))
    row = next(row for row in iter_rows(world.procedures, split="val") if row["change_type"] != "none")
    pairs = {pair["pair_id"]: pair for pair in iter_rows(world.pairs, split="val")}
    before, after = (decode_image(pairs[row["pair_id"]][side]) for side in ("before", "after"))
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


@pytest.mark.parametrize(("on", "caption"), [
    ({"msm"}, True), ({"align"}, True), ({"consistency"}, True), ({"msm", "align", "consistency"}, True),
    ({"msm", "consistency"}, False),
])  # fmt: skip
def test_a_loss_that_is_off_costs_nothing(world: World, on: set[str], caption: bool) -> None:
    weights = {f"loss.{name}": float(name in on) for name in ("msm", "align", "consistency")}
    job, info = world.pretrain(weights, caption_condition=caption), ProcedureInfo.of(world.procedures)
    task = PretrainTask(job, info.shapes, PAD, ImageTokenizer.load(info.tokenizer).features)
    data = PretrainDataset(job.procedures, info, "train", job)
    seen: list[tuple[int, int]] = []
    task.encoder.blocks[0].register_forward_pre_hook(lambda _, inputs: seen.append(tuple(inputs[0].shape[:2])))
    loss, logs = task.training_step(collate([data.get(index, 0) for index in range(4)]))
    loss.backward()
    assert on == {name for name in logs if "accuracy" not in name}
    assert seen == [(4 * (1 + len(on - {"msm"})), 1 + 12 * caption + 1 + 4 * PATCHES)]
    assert ("other_text" in data.get(0, 0), "warped" in data.get(0, 0)) == ("align" in on, "consistency" in on)
    assert all((parameter.grad is not None) == parameter.requires_grad for parameter in task.parameters())
    heads = {name.split(".")[0] for name, parameter in task.heads.named_parameters() if parameter.requires_grad}
    assert heads == on


def test_a_scheme_is_removed_or_varied_by_one_key() -> None:
    """Table 11: the others in proportion. Figure 7: one at p, the others at (1 - p) / 3."""
    own = {"random": 0.7, "entire": 0.1, "in_block": 0.1, "out_of_block": 0.1}
    for removed in SCHEMES:
        shares = dict(zip(SCHEMES, MaskingConfig(varied=removed).probabilities(), strict=True))
        expected = {scheme: share / (1 - own[removed]) for scheme, share in own.items()} | {removed: 0.0}
        assert shares == pytest.approx(expected)
    assert MaskingConfig(varied="in_block", varied_to=0.4).probabilities() == pytest.approx((0.2, 0.2, 0.4, 0.2))
    only: dict[str, Any] = {"random": 1.0, "entire": 0.0, "in_block": 0.0, "out_of_block": 0.0, "varied": "random"}
    for fault, settings in {
        "varied_to: 0.3 needs the scheme that it is for; set varied too": {"varied_to": 0.3},
        "varied: without random no scheme is left, as the others have probability 0": only,
    }.items():
        with pytest.raises(ValueError, match=fault):
            MaskingConfig.model_validate(settings)
