"""ProCap with a convolutional stem in place of the tokenizer's features: both stages as runs, and their captioner. What
the stem computes is in ``naive.py``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from idc.captioning.contract import Speed
from idc.data.images import decode_image
from idc.data.store import iter_rows
from idc.data.text import PAD
from idc.systems.procap.captioner import PairCaptioner, frame_reader
from idc.systems.procap.config import EncoderConfig
from idc.systems.procap.data import FinetuneDataset, PretrainDataset, ProcedureInfo, collate
from idc.systems.procap.task import FinetuneTask, PretrainTask, frames_for
from idc.training.artifact import read_artifact
from idc.training.loop import read_log
from idc.vision.tokenizer.model import ImageTokenizer
from tests.systems.procap.world import ENCODER, World, start

STEM: dict[str, Any] = {**ENCODER, "stem": [8, 16, 16]}
"""Three levels: the patches of 8 pixels of the world's tokenizer."""


@pytest.fixture(scope="module")
def artifacts(world: World, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Stage 1 of 30 steps, and stage 2 of 30 from it."""
    folder = tmp_path_factory.mktemp("stem")
    first = start(world.pretrain({"train.steps": 30, "optim.lr": 3e-3}, encoder=STEM), folder / "stage1")
    job = world.finetune({"train.steps": 30, "beams": 2}, pretrained=str(first))
    return first, start(job, folder / "stage2")


def test_both_stages_train_the_stem_and_learn(artifacts: tuple[Path, Path]) -> None:
    log = read_log(artifacts[0].parent / "log.jsonl")
    assert log[-1]["msm"] < 0.95 * log[0]["msm"]
    log = read_log(artifacts[1].parent / "log.jsonl")
    assert log[-1]["loss_per_word"] < 0.8 * log[0]["loss_per_word"]
    first, second = (read_artifact(path).state_dict() for path in artifacts)
    names = [name for name in first if name.startswith("encoder.stem.")]
    assert len(names) == 12
    assert all(not torch.equal(first[name], second[name]) for name in names)


def test_stored_features_are_not_read(world: World) -> None:
    """Procedures with and without features give an encoder with a stem the same samples, pixels."""
    job = world.pretrain(encoder=STEM)
    infos = [frames_for(job.encoder, ProcedureInfo.of(path)) for path in (world.procedures, world.pixels)]
    one, two = (
        collate([PretrainDataset(path, info, "train", job).get(index, 0) for index in range(6)])
        for path, info in zip((world.procedures, world.pixels), infos, strict=True)
    )
    assert one["frames"].dtype == torch.uint8
    assert one.keys() == two.keys()
    assert all(torch.equal(one[name], two[name]) for name in one)
    tokenizer = ImageTokenizer.load(world.tokenizer)
    task = PretrainTask(job, infos[0].shapes, PAD, frame_reader(job.encoder, tokenizer))
    task.training_step(one)[0].backward()
    lost = [name for name, parameter in task.named_parameters() if parameter.requires_grad and parameter.grad is None]
    assert lost == []


@pytest.mark.parametrize("speed", ["exact", "fast"])
def test_the_captioner_says_what_validation_says(artifacts: tuple[Path, Path], world: World, speed: Speed) -> None:
    captioner = PairCaptioner(artifacts[1], speed=speed)
    info = frames_for(captioner.captioner.encoder.config, ProcedureInfo.of(world.procedures))
    data = FinetuneDataset(world.procedures, info, "val", captions="first", max_length=20, seed=0)
    job = world.finetune({"beams": 2}, encoder=STEM)
    task = FinetuneTask(job, EncoderConfig.model_validate(STEM), info.shapes, info.vocabulary, lambda images: images)
    task.captioner.load_state_dict(captioner.captioner.state_dict())
    batch = collate([data.get(index, 0) for index in range(len(data))])
    befores, afters = zip(*batch["ends"].numpy(), strict=True)
    assert captioner(befores, afters) == task.eval().caption(batch)


def test_a_changed_picture_has_a_map_and_an_equal_one_a_dark_one(artifacts: tuple[Path, Path], world: World) -> None:
    before = decode_image(next(iter(iter_rows(world.pairs, split="val")))["before"])
    described = PairCaptioner(artifacts[1]).describe([before] * 2, [before, 255 - before], change_map=True)
    same, other = (one.change_map for one in described)
    assert same is not None
    assert other is not None
    assert same.shape == (4, 4)
    assert float(same.max()) == 0.0
    assert float(other.max()) > 0.01


def test_a_stem_that_does_not_fit_is_refused(world: World, tmp_path: Path) -> None:
    fewer = r"encoder.stem: 2 levels make patches of 4 pixels, .* tokenizer have 8; the number of widths must"
    for stem, settings, message in (
        ([8, 16], {}, fewer),
        ([8, 16, 16, 16], {}, r"encoder.stem: 4 levels make patches of 16 pixels"),
        ([8, 12, 16], {}, r"stem: 12 is not a multiple of 8"),
        ([8, 16, 16], {"procedure": "frames"}, r"procedure: frames are features of the tokenizer; take an encoder"),
    ):
        with pytest.raises(ValueError, match=message):
            start(world.finetune(encoder={**ENCODER, "stem": stem}, **settings), tmp_path / "stage2")
    with pytest.raises(ValueError, match=fewer):
        start(world.pretrain(encoder={**ENCODER, "stem": [8, 16]}), tmp_path / "stage1")
