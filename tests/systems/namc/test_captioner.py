"""NAMC as a captioner: candidates, given captions, samples, change maps, evidence; its network's parts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from idc.systems import load_captioner
from idc.systems.namc.captioner import MISMATCH, NamcCaptioner, mismatch
from idc.systems.namc.config import EncoderConfig
from idc.systems.namc.model import MaskedImageEncoder
from tests.systems.namc.tiny import finetune_job, pretrain_job, start
from tests.systems.procap.world import Images, World


@pytest.fixture(scope="module")
def runs(world: World, described: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("namc")
    start(pretrain_job(world, described, {"train.steps": 10}), folder / "pretrain")
    settings = {"pretrained": str(folder / "pretrain" / "artifact"), "train.steps": 40, "beams": 3}
    start(finetune_job(world, settings), folder / "finetune")
    return folder


@pytest.fixture(scope="module")
def captioner(runs: Path) -> NamcCaptioner:
    return NamcCaptioner(runs / "finetune" / "artifact")


def test_the_artifact_is_a_captioner_and_that_of_the_pretraining_is_not(
    runs: Path, captioner: NamcCaptioner, images: Images
) -> None:
    loaded = load_captioner(str(captioner.path))
    assert loaded(*images) == [one.best.caption for one in captioner.describe(*images)]
    assert captioner.capabilities == {"map", "score", "sample"}
    with pytest.raises(ValueError, match=r"is pre-trained only and writes no captions; train it with jobs/finetune"):
        load_captioner(str(runs / "pretrain" / "artifact"))


def test_a_batch_gives_what_single_pairs_give(captioner: NamcCaptioner, images: Images) -> None:
    for before, after, one in zip(*images, captioner.describe(*images, change_map=True), strict=True):
        (alone,) = captioner.describe([before], [after], change_map=True)
        assert alone.best.caption == one.best.caption
        assert one.change_map is not None
        assert one.change_map.shape == (4, 4)
        assert alone.change_map == pytest.approx(one.change_map, abs=1e-5)
        assert one.evidence == {MISMATCH: pytest.approx(float(np.log(one.change_map.max())), abs=1e-4)}
    assert all(one.change_map is None for one in captioner.describe(*images))


def test_the_map_is_what_the_other_image_does_not_hold() -> None:
    before = torch.randn(1, 16, 8)
    moved = torch.randperm(16)
    after = before[:, moved]
    to_before, to_after = torch.eye(16)[moved][None], torch.eye(16)[moved].T[None]
    attention = torch.stack([to_before, to_after])
    assert torch.allclose(mismatch(attention, torch.cat([before, after])), torch.zeros(1, 16), atol=1e-6)
    after[0, 5] += 1  # a new thing, and what was there is gone from where before looks for it
    found = mismatch(attention, torch.cat([before, after]))
    assert set((found[0] > 1e-6).nonzero().flatten().tolist()) == {5, int(moved[5])}
    assert found[0, 5] == pytest.approx(1 - np.exp(-1), abs=1e-5)


@torch.no_grad()
def test_co_attention_is_that_of_after_to_before_and_of_before_to_after() -> None:
    torch.manual_seed(0)
    encoder = MaskedImageEncoder(EncoderConfig(width=16, layers=1, heads=1), 8, 4).eval()
    (layer,) = encoder.layers
    embedded = encoder.embed(torch.randn(6, 4, 8))
    before, after = embedded.chunk(2)
    looks = encoder.co_attention(embedded)
    assert torch.allclose(looks.sum(dim=-1), torch.ones(2, 3, 4))
    for look, x, other in zip(looks, (after, before), (before, after), strict=True):
        queries, memory = layer.norm_cross(layer.within(x, None)), layer.norm_memory(other)
        values = layer.attend_other.kv(memory).chunk(2, dim=-1)[1]
        expected = layer.attend_other(queries, memory, None)
        assert torch.allclose(layer.attend_other.out(look @ values), expected, atol=1e-5)
