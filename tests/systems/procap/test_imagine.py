"""The imagined procedure: iterative decoding, both ways of imagining, the pictures and the job."""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from idc.data.images import decode_image
from idc.data.store import iter_rows
from idc.data.text import PAD
from idc.systems.procap.captioner import PairCaptioner
from idc.systems.procap.data import PretrainDataset, ProcedureInfo, collate
from idc.systems.procap.imagine import Imaginer, Modeler, filmstrip, mask_predict
from idc.systems.procap.task import PretrainTask, part_of
from idc.training.artifact import read_artifact
from idc.vision.tokenizer.model import ImageTokenizer
from tests.conftest import Command
from tests.systems.procap.world import World, start

BETWEEN, PATCHES = 2, 16
OPEN = BETWEEN * PATCHES
SCHEDULE = [32, 29, 22, 12]
"""Open patches before each of four rounds: baseline(32 cos(pi r / 8)) of them after round r."""


@pytest.fixture(scope="module")
def artifacts(world: World, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Stage 1 of two steps, and stage 2 of two from it."""
    folder = tmp_path_factory.mktemp("imagine")
    first = start(world.pretrain({"train.steps": 2}), folder / "stage1")
    job = world.finetune({"train.steps": 2, "validation_pairs": 2}, pretrained=str(first))
    return first, start(job, folder / "stage2")


@pytest.fixture(scope="module")
def pair(world: World) -> tuple[np.ndarray, np.ndarray]:
    row = next(iter(iter_rows(world.pairs, split="val")))
    return decode_image(row["before"]), decode_image(row["after"])


class Parts:
    """An encoder and a head of random weights far from their small initial values, and a pair's features."""

    def __init__(self, world: World):
        torch.manual_seed(0)
        self.info = ProcedureInfo.of(world.procedures)
        self.tokenizer = ImageTokenizer.load(world.tokenizer)
        self.task = PretrainTask(world.pretrain(), self.info.shapes, PAD, self.tokenizer.features).eval()
        self.data = PretrainDataset(world.procedures, self.info, "train", world.pretrain())
        self.batch = collate([self.data.get(index, 0) for index in range(3)])
        self.ends = self.batch["frames"][:, [0, -1]].float()
        self.masks: list[Tensor] = []
        self.task.encoder.register_forward_pre_hook(lambda _, inputs: self.masks.append(inputs[2].clone()))

    def predict(self, rounds: int, ends: Tensor | None = None, text: Tensor | None = None) -> Tensor:
        ends = self.ends if ends is None else ends
        text = self.batch["text"] if text is None else text
        return mask_predict(self.task.encoder, self.task.heads.msm, self.tokenizer, ends, text, rounds)


@pytest.fixture
def parts(world: World) -> Parts:
    made = Parts(world)
    with torch.no_grad():
        for parameter in made.task.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return made


def test_every_round_keeps_the_surest_patches_and_never_changes_them(parts: Parts) -> None:
    rounds = [parts.predict(number) for number in (1,)]
    assert rounds[0].shape == (3, BETWEEN, PATCHES)
    parts.masks.clear()
    parts.predict(4)
    masks = [mask[:, 1:-1].flatten(1) for mask in parts.masks]
    assert [mask.sum(1).tolist() for mask in masks] == [[count] * 3 for count in SCHEDULE]
    assert not any(mask[:, [0, -1]].any() for mask in parts.masks)  # the two images are given
    for one, next_one in itertools.pairwise(masks):
        assert not (next_one & ~one).any()  # nothing that was kept is masked again
    features = torch.zeros(3, 4, PATCHES, 16)
    features[:, [0, -1]] = parts.ends
    with torch.no_grad():
        hidden = parts.task.encoder("modeling", features, parts.masks[0], parts.batch["text"], PAD)[2]
        sure, best = parts.task.heads.msm(hidden[:, PATCHES:-PATCHES]).softmax(-1).max(-1)
    kept = ~masks[1]
    assert (sure[kept].view(3, -1).amin(1) >= sure.masked_fill(kept, 0).amax(1)).all()
    assert torch.equal(rounds[0].flatten(1), best)  # one round takes everything at once
    assert torch.equal(parts.predict(4).flatten(1)[kept], best[kept])


def test_what_is_imagined_depends_on_both_images_and_the_caption(parts: Parts) -> None:
    plain = parts.predict(3)
    assert torch.equal(plain, parts.predict(3))
    for end in (0, 1):
        changed = parts.ends.clone()
        changed[:, end] = changed[:, end].flip(-1)
        assert (parts.predict(3, ends=changed) != plain).any()
    assert (parts.predict(3, text=parts.batch["text"].flip(0)) != plain).any()


def test_a_model_that_knows_a_pair_imagines_its_key_frames(world: World) -> None:
    """Trained to fill in hidden patches of three procedures, it gives back their codes."""
    parts = Parts(world)
    parts.task.train()
    job = world.pretrain({"loss.align": 0.0, "loss.consistency": 0.0})
    parts.task.job = job
    optimizer = torch.optim.AdamW([p for p in parts.task.parameters() if p.requires_grad], lr=4e-3)
    random = torch.Generator().manual_seed(0)
    for _ in range(100):
        masked = torch.rand(3, 4, PATCHES, generator=random) < 0.2 + 0.8 * torch.rand(3, 1, 1, generator=random)
        masked[:, [0, -1]] = False
        masked[:, 1, 0] = True
        loss, _ = parts.task.training_step({**parts.batch, "masked": masked})
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    parts.task.eval()
    right = parts.predict(8) == parts.batch["tokens"][:, 1:-1]
    assert right.float().mean() > 0.9


def test_stage_2_keeps_the_head_of_stage_1_untrained(artifacts: tuple[Path, Path]) -> None:
    first, second = (read_artifact(path).state_dict() for path in artifacts)
    head, kept = part_of(first, "heads.msm."), part_of(second, "token_head.")
    assert head.keys() == kept.keys() == {"0.weight", "0.bias", "1.weight", "1.bias"}
    assert all(torch.equal(head[name], kept[name]) for name in head)


def test_both_ways_of_one_pair(artifacts: tuple[Path, Path], pair: Any, world: World) -> None:
    imaginer = Imaginer(artifacts[1])
    caption, implicit = imaginer(*pair, rounds=2)
    for found in (caption, implicit):
        assert found.frames.shape == (BETWEEN + 2, 32, 32, 3)
        assert found.frames.dtype == np.uint8
        assert np.array_equal(found.frames[[0, -1]], caption.frames[[0, -1]])
    tokenizer = ImageTokenizer.load(world.tokenizer)
    with torch.no_grad():  # the ends are the images as their codes show them
        image = torch.from_numpy(pair[0].copy()).permute(2, 0, 1).unsqueeze(0) / 255
        back = tokenizer.decode(tokenizer.encode(image))[0].permute(1, 2, 0).mul(255).round().numpy()
    assert np.abs(caption.frames[0] - back).max() <= 1
    captioner = PairCaptioner(artifacts[1])
    assert imaginer.caption(*pair) == captioner(pair[:1], pair[1:])[0]
    with torch.no_grad():  # the second way is the procedure that the decoder reads
        hidden = captioner.captioner.procedure(captioner._ends(pair[:1], pair[1:]))
        head = captioner.captioner.token_head
        assert head is not None
        codes = head(hidden[:, PATCHES:-PATCHES]).argmax(-1).view(BETWEEN, PATCHES)
        expected = tokenizer.decode(codes).permute(0, 2, 3, 1).mul(255).round().numpy()
    assert np.abs(implicit.frames[1:-1] - expected).max() <= 1
    strip = filmstrip(*pair, [caption, implicit], ["a caption"])
    assert strip.dtype == np.uint8
    assert strip.shape[1] > 6 * 128


def test_stage_1_alone_needs_a_caption(artifacts: tuple[Path, Path], pair: Any) -> None:
    imaginer = Imaginer(artifacts[0])
    assert len(imaginer(*pair, "the small red cube moved")) == 1
    with pytest.raises(ValueError, match="an artifact of stage 1 makes no captions"):
        imaginer(*pair)
    with pytest.raises(ValueError, match="is an artifact of ProCap's stage 2"):
        Modeler(artifacts[1])
    assert Modeler(artifacts[0]).unknown("the zeppelin moved") == ["zeppelin"]


def test_where_stage_1_is_gone(artifacts: tuple[Path, Path], pair: Any, world: World, tmp_path: Path) -> None:
    first, second = artifacts
    away = shutil.copytree(second.parent, tmp_path / "stage2") / "artifact"
    (away / "hashes.json").unlink()  # as of an earlier version, which is read without a comparison
    text = (away / "config.json").read_text()
    (away / "config.json").write_text(text.replace(str(first), str(tmp_path / "gone")))
    assert [found.way for found in Imaginer(away)(*pair)] == ["stage 2, the procedure queries"]
    assert len(Imaginer(away, pretrained=first)(*pair)) == 2
    scratch = start(world.finetune({"train.steps": 1, "validation_pairs": 2}), tmp_path / "scratch")
    with pytest.raises(ValueError, match=r"no head from patches to codebook entries.*with --pretrained"):
        Imaginer(scratch)
    other = start(world.pretrain({"train.steps": 1}, procedures=world.keyframes), tmp_path / "other")
    assert len(Imaginer(scratch, pretrained=other)(*pair)) == 2  # the same shapes, the same tokenizer


def test_the_job(artifacts: tuple[Path, Path], pair: Any, world: World, tmp_path: Path, command: Command) -> None:
    for name, image in zip(("one", "two"), pair, strict=True):
        Image.fromarray(image).resize((48, 40)).save(tmp_path / f"{name}.png")
    out, images = tmp_path / "out", (tmp_path / "one.png", tmp_path / "two.png")
    caption = ("--caption", "the red cube moved")
    assert command("imagine", *images, "--artifact", artifacts[1], "--out", out, *caption).returncode == 0
    ids = [row["pair_id"] for row in iter_rows(world.pairs, split="val")][:2]
    of_pairs = ("--pairs", world.pairs, "--out", out, "--artifact", artifacts[1])
    assert command("imagine", *of_pairs, "--ids", ",".join(ids)).returncode == 0
    names = {"one", *(name.replace("/", "_") for name in ids)}
    assert {path.name for path in out.iterdir()} == {f"{name}.{end}" for name in names for end in ("png", "gif")}
    with Image.open(out / "one.gif") as film:
        assert film.n_frames == BETWEEN + 2
    for arguments, message in (
        ((*of_pairs, "--ids", "nobody"), "has no pair nobody"),
        ((*images, "--artifact", artifacts[0], "--out", out), "makes no captions"),
    ):
        refused = command("imagine", *arguments)
        assert refused.returncode == 2
        assert message in refused.stderr
    assert command("imagine", images[0], "--artifact", artifacts[0]).returncode == 2
