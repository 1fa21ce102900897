"""ProCap with a convolutional stem in place of the tokenizer's features: both stages as runs, and their captioner."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from idc.captioning.contract import Speed
from idc.data.images import decode_image
from idc.data.store import iter_rows
from idc.data.text import PAD
from idc.systems.procap.captioner import PairCaptioner, frame_reader
from idc.systems.procap.config import EncoderConfig
from idc.systems.procap.data import FinetuneDataset, PretrainDataset, ProcedureInfo, collate
from idc.systems.procap.model import ProcedureEncoder, Stem
from idc.systems.procap.task import FinetuneTask, PretrainTask, frames_for
from idc.training.artifact import read_artifact
from idc.training.loop import read_log
from idc.vision.tokenizer.model import ImageTokenizer
from tests.systems.procap.world import ENCODER, World, start
from tests.training.toy import check_resume

SIDE, PATCHES = 8, 16
STEM: dict[str, Any] = {**ENCODER, "stem": [8, 16, 16]}
"""Three levels: the patches of 8 pixels of the world's tokenizer."""


@pytest.fixture(scope="module")
def artifacts(world: World, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Stage 1 of 30 steps, and stage 2 of 30 from it."""
    folder = tmp_path_factory.mktemp("stem")
    first = start(world.pretrain({"train.steps": 30, "optim.lr": 3e-3}, encoder=STEM), folder / "stage1")
    job = world.finetune({"train.steps": 30, "beams": 2}, pretrained=str(first))
    return first, start(job, folder / "stage2")


@pytest.fixture
def encoder(world: World) -> ProcedureEncoder:
    torch.manual_seed(0)
    return ProcedureEncoder(EncoderConfig.model_validate(STEM), ProcedureInfo.of(world.procedures).shapes).eval()


def some_images(count: int, frames: int) -> torch.Tensor:
    return torch.rand(count, frames, 3, 32, 32, generator=torch.Generator().manual_seed(1))


def test_a_patch_of_the_stem_reads_its_own_place(encoder: ProcedureEncoder) -> None:
    """Other pixels in one patch of a key frame change the feature at that patch most, on average over images, and none
    of another frame."""
    images = some_images(24, 4)
    with torch.no_grad():
        features = encoder.features(images)
        assert features.shape == (24, 4, PATCHES, 16)
        assert torch.equal(encoder.features(features), features)
        for patch in range(PATCHES):
            top, left = SIDE * (patch // 4), SIDE * (patch % 4)
            other = images.clone()
            other[:, 1, :, top : top + SIDE, left : left + SIDE] = images[:, 2, :, :SIDE, :SIDE]
            moved = (encoder.features(other) - features).norm(dim=-1).mean(0)
            assert moved[1].argmax() == patch
            assert moved[[0, 2, 3]].max() == 0


def test_the_stem_reads_the_difference_of_the_images(encoder: ProcedureEncoder) -> None:
    """A change shows in the features of both images and of every frame between them."""
    images = some_images(1, 1).expand(2, 4, -1, -1, -1).clone()
    images[1, -1, :, 8:16, 8:16] = 1 - images[1, -1, :, 8:16, 8:16]
    with torch.no_grad():
        same, other = encoder.features(images)
    assert torch.equal(same[0], same[-1])
    assert (other - same).norm(dim=-1)[:, 5].min() > 0.01


def test_a_masked_patch_is_hidden_in_the_pixels_too(encoder: ProcedureEncoder) -> None:
    """Its neighbours, whose convolutions overlap with it, must not betray what is to be predicted."""
    images, text = some_images(2, 4), torch.full((2, 12), PAD)
    masked = torch.zeros(2, 4, PATCHES, dtype=torch.bool)
    masked[:, 1, 5] = True
    other = images.clone()
    other[:, 1, :, 8:16, 8:16] = 1 - other[:, 1, :, 8:16, 8:16]
    with torch.no_grad():
        hidden = [encoder("modeling", frames, masked, text, PAD)[2] for frames in (images, other)]
        shown = [encoder("modeling", frames, masked & False, text, PAD)[2] for frames in (images, other)]
    assert torch.equal(*hidden)
    assert not torch.allclose(*shown)


def test_both_stages_train_the_stem_and_learn(artifacts: tuple[Path, Path], world: World) -> None:
    log = read_log(artifacts[0].parent / "log.jsonl")
    assert log[-1]["msm"] < 0.95 * log[0]["msm"]
    log = read_log(artifacts[1].parent / "log.jsonl")
    assert log[-1]["loss_per_word"] < 0.8 * log[0]["loss_per_word"]
    torch.manual_seed(world.pretrain().train.seed)
    first, second = (read_artifact(path).state_dict() for path in artifacts)
    names = [name for name in first if name.startswith("encoder.stem.")]
    assert len(names) == 12
    assert all(not torch.equal(first[name], second[name]) for name in names)
    assert "encoder.feature_in.weight" in second


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
    loss, _ = task.training_step(one)
    loss.backward()
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


def test_what_the_captioner_can_do(artifacts: tuple[Path, Path], world: World) -> None:
    captioner = PairCaptioner(artifacts[1])
    assert captioner.capabilities == {"map", "score", "sample"}
    row = next(iter(iter_rows(world.pairs, split="val")))
    before, after = decode_image(row["before"]), decode_image(row["after"])
    same, other = captioner.describe([before, before], [before, 255 - before], change_map=True)
    assert same.change_map is not None
    assert other.change_map is not None
    assert same.change_map.shape == (4, 4)
    assert float(same.change_map.max()) == 0.0
    assert float(other.change_map.max()) > 0.01
    assert captioner.score([before], [after], [["no change"]])[0][0].total < 0


@pytest.mark.parametrize(
    ("stem", "message"),
    [
        ([8, 16], r"encoder.stem: 2 levels make patches of 4 pixels, .* tokenizer have 8; the number of widths must"),
        ([8, 16, 16, 16], r"encoder.stem: 4 levels make patches of 16 pixels"),
    ],
)
def test_a_stem_of_other_patches_is_refused(world: World, tmp_path: Path, stem: list[int], message: str) -> None:
    encoder = {**ENCODER, "stem": stem}
    with pytest.raises(ValueError, match=message):
        start(world.pretrain(encoder=encoder), tmp_path / "one")
    with pytest.raises(ValueError, match=message):
        start(world.finetune(encoder=encoder), tmp_path / "two")


def test_settings_that_do_not_go_with_a_stem(world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match=r"procedure: frames are features of the tokenizer; take an encoder without"):
        start(world.finetune(encoder=STEM, procedure="frames"), tmp_path / "frames")
    with pytest.raises(ValueError, match=r"stem: 12 is not a multiple of 8"):
        world.finetune(encoder={**ENCODER, "stem": [8, 12, 16]})


def test_a_killed_run_with_a_stem_resumes_as_if_undisturbed(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = world.finetune({"train.steps": 6, "train.checkpoint_every": 2}, encoder=STEM)
    check_resume(FinetuneTask, partial(start, job), tmp_path, monkeypatch)


def test_the_stem_is_a_function_of_single_images() -> None:
    """No statistics over the batch: a pair alone has the features it has in a batch."""
    torch.manual_seed(0)
    stem, images = Stem((8, 16)).eval(), some_images(3, 2)
    np.testing.assert_allclose(stem(images)[1:2].detach(), stem(images[1:2]).detach(), rtol=1e-4, atol=1e-5)
