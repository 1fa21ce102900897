"""The variants of the paper's tables 2 to 4, 7, 8, 10 to 16 and figures 4 and 7, each trained a few steps in small."""

from __future__ import annotations

import itertools
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
from idc.systems.procap.config import SCHEMES, EncoderConfig, FinetuneJob, MaskingConfig, PretrainJob
from idc.systems.procap.data import FinetuneDataset, PretrainDataset, ProcedureInfo, collate, draw_mask
from idc.systems.procap.procedures.config import ProceduresConfig
from idc.systems.procap.procedures.similarity import evenly_spaced
from idc.systems.procap.task import FinetuneTask, PretrainTask
from idc.training.artifact import read_artifact
from idc.vision.tokenizer.model import ImageTokenizer
from tests.systems.procap.world import DECODER, ENCODER, World, build_procedures, start

PATCHES = 16
"""n_I of the world."""


def is_rectangle(block: np.ndarray) -> bool:
    rows, columns = np.flatnonzero(block.any(1)), np.flatnonzero(block.any(0))
    return bool(block[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1].all())


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
        without = [name for name, p in task.named_parameters() if p.requires_grad and p.grad is None]
        assert without == []
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
    frames = job.explicit_frames if job.procedure == "frames" else None
    options: dict[str, Any] = {"captions": "first", "max_length": job.decoder.max_length, "seed": 0, "frames": frames}
    return task, FinetuneDataset(job.procedures, info, "train", **options)


def lengths(task: PretrainTask | FinetuneTask) -> list[tuple[int, int]]:
    """(samples, positions) of every pass through the encoder from now on."""
    encoder = task.encoder if isinstance(task, PretrainTask) else task.captioner.encoder
    seen: list[tuple[int, int]] = []
    encoder.blocks[0].register_forward_pre_hook(lambda _, inputs: seen.append(tuple(inputs[0].shape[:2])))
    return seen


# -- tables 2, 7 and 14: what stands between the images -----------------------------------------------------------


@pytest.mark.parametrize(
    ("procedure", "official", "length", "memory"),
    [("queries", False, 4, 4), ("frames", False, 4, 4), ("none", False, 2, 2), ("frames", True, 4, 4)],
)
def test_what_stands_between_the_images(world: World, procedure: str, official: bool, length: int, memory: int) -> None:
    warts = {"separator": True, "consistency_sees_text": False, "queries_only": False} if official else {}
    control = 12 + 2 if official else 0
    task, data = stage_2(world.finetune(procedure=procedure, encoder={**ENCODER, **warts}))
    seen = lengths(task)
    train(task, data)
    assert set(seen) == {(4, control + length * PATCHES)}
    batch = collate([data.get(0, 0)])
    assert task.captioner.procedure(task._features(batch)).shape == (1, memory * PATCHES, 32)
    assert task.captioner.encoder.mask_embedding.requires_grad is (procedure == "queries")


@pytest.mark.parametrize("procedure", ["queries", "none", "frames"])
def test_only_explicit_captioning_sees_the_frames_between(world: World, procedure: str) -> None:
    """Of two procedures that differ in their inner frames alone."""
    task, data = stage_2(world.finetune(procedure=procedure))
    one, other = data.source.rows[0], dict(data.source.rows[0])
    stored = np.frombuffer(one["features"], np.float16).reshape(5, PATCHES, -1).copy()
    stored[1:-1] = stored[1:-1, :, ::-1]  # other channels; the encoder's norm would take off a constant
    other["features"] = stored.tobytes()
    logits = []
    for row in (one, other):
        data.source.rows = [row]
        data.captioned = np.zeros(1, np.int64)
        batch = collate([data.get(0, 0)])
        with torch.no_grad():
            logits.append(task.captioner(task._features(batch), batch["ids"]))
    difference = float((logits[0] - logits[1]).abs().max())
    assert difference > 1e-2 if procedure == "frames" else difference == 0.0


@torch.no_grad()
def test_before_and_after_alone_stand_at_the_ends_of_the_procedure(world: World) -> None:
    """So that an encoder that was trained on k frames knows which image is which."""
    tasks = {kind: stage_2(world.finetune(procedure=kind))[0] for kind in ("queries", "none")}
    placed: dict[str, Tensor] = {}
    ends = torch.randn(1, 2, PATCHES, 16)
    for kind, task in tasks.items():
        hook = task.captioner.encoder.blocks[0].register_forward_pre_hook(
            lambda _, inputs, to=kind: placed.__setitem__(to, inputs[0])
        )
        task.captioner.procedure(ends)
        hook.remove()
    assert torch.equal(placed["none"][:, :PATCHES], placed["queries"][:, :PATCHES])
    assert torch.equal(placed["none"][:, PATCHES:], placed["queries"][:, 3 * PATCHES :])


@pytest.fixture(scope="module")
def pretrained(world: World, tmp_path_factory: pytest.TempPathFactory) -> str:
    """An artifact of stage 1, of two steps."""
    return str(start(world.pretrain({"train.steps": 2}), tmp_path_factory.mktemp("stage1") / "run"))


@pytest.fixture(scope="module")
def pair(world: World) -> tuple[np.ndarray, np.ndarray, dict[str, Any]]:
    """A validation pair of which something moves, and its stored procedure."""
    rows = {row["pair_id"]: row for row in iter_rows(world.pairs, split="val")}
    stored = next(row for row in iter_rows(world.procedures, split="val") if row["change_type"] != "none")
    row = rows[stored["pair_id"]]
    return decode_image(row["before"]), decode_image(row["after"]), stored


@pytest.mark.parametrize("which", ["keyframes", "even"])
def test_the_explicit_captioner_makes_the_frames_itself(
    world: World, pretrained: str, pair: Any, tmp_path: Path, which: str
) -> None:
    """From two images, by the interpolator and sampling of the folder it was trained on, without that folder."""
    settings = {"train.steps": 2, "validation_pairs": 2, "procedure": "frames", "explicit_frames": which}
    artifact = start(world.finetune(settings, pretrained=pretrained), tmp_path / "run")
    captioner = PairCaptioner(artifact)
    before, after, row = pair
    assert captioner.explicit is not None
    made = captioner.explicit([before, after], [after, before])
    assert made.shape == (2, 4, PATCHES, 16)
    stored = torch.from_numpy(np.frombuffer(row["features"], np.float16).reshape(5, PATCHES, 16).copy()).float()
    which_frames = [
        [n for n in range(5) if torch.allclose(frame, stored[n], rtol=5e-3, atol=5e-3)] for frame in made[0]
    ]
    assert all(which_frames)  # each is a frame of the stored procedure
    assert (which_frames[0][0], which_frames[-1][-1]) == (0, 4)
    if which == "even":
        assert [found[0] for found in which_frames] == [0, *evenly_spaced(3, 2), 4] == [0, 1, 3, 4]
    alone = captioner.explicit([before], [after])
    torch.testing.assert_close(alone, made[:1], rtol=1e-4, atol=1e-4)  # the same draw in any company
    assert captioner([before], [after]) == captioner([before, after], [after, before])[:1]
    [told] = captioner.describe([before], [after], change_map=True)
    assert told.change_map is not None
    assert told.change_map.shape == (4, 4)


def test_the_captioner_without_a_procedure(world: World, pretrained: str, pair: Any, tmp_path: Path) -> None:
    settings = {"train.steps": 2, "validation_pairs": 2, "procedure": "none", "decoder.memory_norm": "batch"}
    artifact = start(world.finetune(settings, pretrained=pretrained), tmp_path / "run")
    state = read_artifact(artifact).state_dict()
    assert state["decoder.project.3.norm.weight"].shape == (2 * PATCHES * 32,)
    before, after, _ = pair
    captioner = PairCaptioner(artifact)
    [told] = captioner.describe([before], [after], change_map=True)
    assert [told.best.caption] == captioner([before], [after])
    assert told.change_map is not None
    assert told.change_map.shape == (4, 4)


def test_evenly_spaced_frames_need_all_frames(world: World) -> None:
    job = world.finetune(procedure="frames", explicit_frames="even", procedures=world.keyframes)
    with pytest.raises(ValueError, match=r"explicit_frames=even needs all frames.*stored_frames=all"):
        stage_2(job)
    with pytest.raises(ValueError, match="explicit_frames: procedure = queries uses no frames"):
        world.finetune(explicit_frames="even")
    task, data = stage_2(world.finetune(procedure="frames", procedures=world.keyframes))
    train(task, data)


# -- table 4: losses ----------------------------------------------------------------------------------------------

LOSSES = [
    dict(zip(("msm", "align", "consistency"), map(float, on), strict=True))
    for on in itertools.product((0, 1), repeat=3)
    if any(on)
]


@pytest.mark.parametrize("weights", LOSSES, ids=lambda weights: "+".join(name for name in weights if weights[name]))
def test_a_loss_that_is_off_costs_nothing(world: World, weights: dict[str, float]) -> None:
    """No pass through the encoder, no sample made for it, no head trained."""
    task, data = stage_1(world.pretrain({f"loss.{name}": weight for name, weight in weights.items()}))
    before = {name: tensor.clone() for name, tensor in task.heads.state_dict().items()}
    seen = lengths(task)
    logs = train(task, data)
    on = {name for name, weight in weights.items() if weight}
    assert on == {name for name in logs if "accuracy" not in name}
    passes = 1 + ("align" in on) + ("consistency" in on)
    assert set(seen) == {(4 * passes, 1 + 12 + 1 + 4 * PATCHES)}
    assert ("other_text" in data.get(0, 0), "warped" in data.get(0, 0)) == ("align" in on, "consistency" in on)
    moved = {name.split(".")[0] for name, old in before.items() if not torch.equal(old, task.heads.state_dict()[name])}
    assert moved == on


# -- table 10: without the caption --------------------------------------------------------------------------------


@pytest.mark.parametrize("official", [False, True])
def test_without_the_caption_the_sequence_has_no_text(world: World, official: bool, tmp_path: Path) -> None:
    warts = {"separator": True, "consistency_sees_text": False, "queries_only": False} if official else {}
    job = world.pretrain({"train.steps": 2}, caption_condition=False, encoder={**ENCODER, **warts})
    task, data = stage_1(job)
    seen = lengths(task)
    logs = train(task, data)
    assert set(seen) == {(2 * 4, 1 + 1 + official + 4 * PATCHES)}  # the sample and its warped frames
    assert "align" not in logs
    assert data.get(0, 0)["text"].shape == (0,)
    artifact = start(job, tmp_path / "stage1")
    finetune = world.finetune({"train.steps": 2, "validation_pairs": 2}, pretrained=str(artifact))
    PairCaptioner(start(finetune, tmp_path / "stage2"))


@torch.no_grad()
def test_without_the_caption_the_official_mask_still_hits_separator_and_consistency(world: World) -> None:
    encoder = {**ENCODER, "separator": True, "consistency_sees_text": False}
    task, data = stage_1(world.pretrain(caption_condition=False, encoder=encoder))
    masks: list[Tensor] = []
    task.encoder.blocks[0].register_forward_pre_hook(lambda _, inputs: masks.append(inputs[1]))
    task.training_step(collate([data.get(0, 0)]))
    blind = {(int(row), int(column)) for row, column in masks[0].isinf().nonzero()}
    assert blind == {(1, 0), (2, 0), (2, 1)}  # align, separator, consistency, frames


# -- table 11 and figure 7: masking schemes -----------------------------------------------------------------------


@pytest.mark.parametrize("removed", SCHEMES)
def test_a_scheme_is_removed_by_one_key(world: World, removed: str) -> None:
    job = world.pretrain({"masking.varied": removed})
    own = {"random": 0.7, "entire": 0.1, "in_block": 0.1, "out_of_block": 0.1}
    shares = dict(zip(SCHEMES, job.masking.probabilities(), strict=True))
    expected = {scheme: share / (1 - own[removed]) for scheme, share in own.items()} | {removed: 0.0}
    assert shares == pytest.approx(expected)
    assert sum(shares.values()) == pytest.approx(1.0)
    shapes = ProcedureInfo.of(world.procedures).shapes
    wide = type(shapes)(**{**shapes.__dict__, "grid": (14, 14)})
    drawn = [draw_mask(job.masking, wide, np.random.default_rng(seed)) for seed in range(300)]
    entire = float(np.mean([bool(flag) for _, flag in drawn]))
    frames_differ = float(np.mean([(mask != mask[0]).any() for mask, _ in drawn]))
    assert entire == pytest.approx(shares["entire"], abs=0.09)
    assert frames_differ == pytest.approx(shares["random"], abs=0.09)
    assert (entire > 0, frames_differ > 0) == (removed != "entire", removed != "random")
    blocks = [mask[0].reshape(14, 14) for mask, flag in drawn if not flag and (mask == mask[0]).all()]
    large = [block for block in blocks if not is_rectangle(block)]
    assert bool(large) is (removed != "out_of_block")  # a block at an edge leaves a rectangle outside, too
    task, data = stage_1(job)
    train(task, data)


def test_the_schemes_of_figure_7() -> None:
    """One at p, the others at (1 - p) / 3; the paper's own setting is one of them."""
    varied = MaskingConfig(varied="in_block", varied_to=0.4)
    assert varied.probabilities() == pytest.approx((0.2, 0.2, 0.4, 0.2))
    assert MaskingConfig(varied="random", varied_to=0.7).probabilities() == pytest.approx(
        MaskingConfig().probabilities()
    )
    assert MaskingConfig(varied="entire", varied_to=0.0).probabilities() == pytest.approx((1 / 3, 0, 1 / 3, 1 / 3))
    only = {"random": 1.0, "entire": 0.0, "in_block": 0.0, "out_of_block": 0.0}
    faults = {
        "varied_to: 0.3 needs the scheme that it is for; set varied too": {"varied_to": 0.3},
        "varied: without random no scheme is left, as the others have probability 0": {**only, "varied": "random"},
    }
    for fault, settings in faults.items():
        with pytest.raises(ValueError, match=fault):
            MaskingConfig.model_validate(settings)


# -- tables 12, 13, 15, 16: depths --------------------------------------------------------------------------------


@pytest.mark.parametrize(("encoder_layers", "decoder_layers"), [(1, 1), (3, 1), (1, 3)])
def test_depths(world: World, encoder_layers: int, decoder_layers: int) -> None:
    encoder = {**ENCODER, "layers": encoder_layers}
    one, data = stage_1(world.pretrain(encoder=encoder))
    train(one, data)
    two, pairs = stage_2(world.finetune(encoder=encoder, decoder={**DECODER, "layers": decoder_layers}))
    two.captioner.encoder.load_state_dict(one.encoder.state_dict())
    train(two, pairs)
    assert (len(two.captioner.encoder.blocks), len(two.captioner.decoder.layers)) == (encoder_layers, decoder_layers)


# -- tables 3 and 8, figure 4, the interpolator -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "between", "keyframes"),
    [
        ({"depth": 3, "num_keyframes": 1}, 7, 1),
        ({"depth": 3, "num_keyframes": 4}, 7, 4),
        ({"depth": 3, "num_keyframes": 7}, 7, 7),
        ({"depth": 4, "num_keyframes": 2}, 15, 2),
        ({"depth": 2, "num_keyframes": 2, "interpolation": "blend"}, 3, 2),
    ],
    ids=["k=1", "k=4", "k=7", "l=15", "blend"],
)
def test_procedures_of_other_sizes_and_other_interpolators(
    world: World, tmp_path: Path, settings: dict[str, Any], between: int, keyframes: int
) -> None:
    common = {"pairs": world.pairs, "tokenizer": world.tokenizer, "store_features": True, "max_pairs": 8}
    path = build_procedures(tmp_path / "procedures", {**common, **settings})
    info = ProcedureInfo.of(path)
    assert info.num_frames == between + 2
    job = world.pretrain(procedures=path)
    task, data = stage_1(job)
    train(task, data)
    row = data.source.rows[0]
    assert len(set(row["keyframes"])) == keyframes
    assert set(row["keyframes"]) <= set(range(1, between + 1))
    for kind, length in (("queries", keyframes + 2), ("frames", keyframes + 2), ("none", 2)):
        captioning, pairs = stage_2(world.finetune(procedures=path, procedure=kind))
        seen = lengths(captioning)
        train(captioning, pairs)
        assert set(seen) == {(4, length * PATCHES)}
    if settings.get("interpolation") == "blend":
        ends = [decode_image(row["frames"][n]).astype(int) for n in (0, -1)]
        middle = decode_image(row["frames"][2]).astype(int)
        assert np.abs(middle - (ends[0] + ends[1] + 1) // 2).max() == 0
        assert ProceduresConfig.model_validate(info.build).interpolation == "blend"


def test_without_procedure_modeling_the_encoder_starts_from_scratch(world: World, pretrained: str) -> None:
    """Tables 2 and 7, EPM not ticked: the start is that of stage 1, not its end."""
    task, _ = stage_2(world.finetune())
    fresh = PretrainTask(
        world.pretrain(), ProcedureInfo.of(world.procedures).shapes, PAD, lambda images: images
    ).encoder
    assert task.captioner.encoder.state_dict().keys() == fresh.state_dict().keys()
    assert EncoderConfig.model_validate(ENCODER) == task.captioner.encoder.config
    learned = read_artifact(pretrained).state_dict()["encoder.blocks.0.attention.qkv.weight"]
    assert not torch.equal(learned, task.captioner.encoder.blocks[0].attention.qkv.weight)
