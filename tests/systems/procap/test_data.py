"""ProCap's samples: masks, warps, negatives, and that a sample depends on (seed, epoch, index) alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch

from idc.data.text import BOS, EOS, PAD
from idc.systems.procap.config import MaskingConfig
from idc.systems.procap.data import (
    FinetuneDataset,
    PretrainDataset,
    ProcedureInfo,
    affine,
    as_images,
    collate,
    draw_mask,
    shift_color,
)
from idc.systems.procap.model import Shapes
from idc.systems.procap.task import PretrainTask, frame_features
from idc.vision.tokenizer.model import ImageTokenizer
from tests.systems.procap.naive import masked_patches
from tests.systems.procap.world import World, build_procedures
from tests.vision.scenes import pair_row, write_pairs

PAPER = Shapes(num_keyframes=2, grid=(14, 14), feature_dim=256, codebook_size=1024, vocabulary_size=80)
FRAME_SHUFFLE, OTHERS_FRAME, COLOUR, AFFINE = 1, 0, 2, 3


def dataset(world: World, path: str | None = None, split: str = "train", **settings: Any) -> PretrainDataset:
    path = path or world.procedures
    return PretrainDataset(path, ProcedureInfo.of(path), split, world.pretrain(settings))


def generator_of(warp: int, start: int = 0) -> np.random.Generator:
    seed = next(seed for seed in range(start, start + 1000) if np.random.default_rng(seed).integers(4) == warp)
    return np.random.default_rng(seed)


def warped(data: PretrainDataset, index: int, warp: int, seed: int = 0) -> tuple[np.ndarray, Any, Any, Any]:
    row = data.rows[index]
    which = [0, *row["keyframes"], 4]
    frames = data.frames(row, which)
    return frames, *data._warp(index, row, frames, which, generator_of(warp, seed))


@pytest.mark.parametrize("drawn_for", ["patch", "sample"])
@pytest.mark.parametrize("grid", [(14, 14), (1, 2)])
def test_masks_are_those_of_equations_13_to_17(grid: tuple[int, int], drawn_for: Literal["patch", "sample"]) -> None:
    shapes, config, entirely, alike = replace(PAPER, grid=grid), MaskingConfig(drawn_for=drawn_for), 0, 0
    for seed in range(600):
        masked, entire = draw_mask(config, shapes, np.random.default_rng(seed))
        frames = masked.reshape(shapes.frames, *grid)
        patches = {(int(k), int(m), int(n)) for k, m, n in zip(*frames.nonzero(), strict=True)}
        assert patches == masked_patches(config, shapes, np.random.default_rng(seed)), seed
        assert bool(entire) <= bool(masked.all())
        entirely += bool(entire)
        alike += bool((masked == masked[0]).all()) and not masked.all()
    assert entirely / 600 == pytest.approx(0.1, abs=0.04)
    assert grid != (14, 14) or alike / 600 == pytest.approx(0.2, abs=0.05)


def test_each_frame_of_a_sample_has_its_own_mask(world: World) -> None:
    settings = {
        f"masking.{scheme}": float(scheme == "random") for scheme in ("random", "entire", "in_block", "out_of_block")
    }
    data = dataset(world, **settings)
    for index in range(len(data)):
        assert len({frame.tobytes() for frame in data.get(index, 0)["masked"]}) > 1


def test_a_sample_depends_on_seed_epoch_and_index_alone(world: World) -> None:
    data = dataset(world)
    first, later = data.get(7, 3), data.get(7, 4)
    same, other_seed = dataset(world).get(7, 3), dataset(world, **{"train.seed": 6}).get(7, 3)
    assert all(np.array_equal(first[key], same[key]) for key in first)
    assert any(not np.array_equal(first[key], later[key]) for key in ("masked", "text", "warped"))
    assert any(not np.array_equal(first[key], other_seed[key]) for key in ("masked", "text"))
    assert np.array_equal(first["frames"], later["frames"])  # the stored draw of the key frames


def test_the_parts_of_a_sample_belong_to_the_same_frames(world: World) -> None:
    data = dataset(world)
    row, item = data.rows[2], data.get(2, 0)
    pixels = torch.from_numpy(data.pixels(row, [0, *row["keyframes"], 4]))
    with torch.no_grad():
        assert (ImageTokenizer.load(world.tokenizer).encode(as_images(pixels)).numpy() == item["tokens"]).all()
    captions = [caption[1:-1][:12] for caption in row["caption_ids"]]
    text = item["text"].tolist()
    assert text[: len(text) - text.count(PAD)] in captions


def test_key_frames_are_redrawn_each_epoch_where_asked_for(world: World) -> None:
    data = dataset(world, redraw_keyframes=True)
    drawn = [{data.get(i, epoch)["tokens"].tobytes() for epoch in range(12)} for i in range(len(data))]
    assert max(map(len, drawn)) == 3  # two of three frames
    assert {len({dataset(world).get(i, epoch)["tokens"].tobytes() for epoch in range(4)}) for i in range(3)} == {1}


def test_a_random_caption_and_an_unaligned_one_that_is_another(world: World) -> None:
    random = dataset(world, **{"encoder.text_length": 24})
    assert len({random.get(0, epoch)["text"].tobytes() for epoch in range(8)}) > 2
    for index in range(len(random)):
        for epoch in range(6):
            item = random.get(index, epoch)
            assert item["text"].tolist() != item["other_text"].tolist(), (index, epoch)


def test_a_frame_of_another_procedure_is_put_in(world: World) -> None:
    two = dataset(world, world.pixels, "val")
    two.rows = [two.rows[0], two.rows[2]]  # of different scenes
    others = two.pixels(two.rows[1], range(5))
    for seed in range(0, 40, 4):
        frames, after, recompute_index, recomputed = warped(two, 0, OTHERS_FRAME, seed)
        assert len(recompute_index) == len(recomputed) == 0
        (changed,) = [f for f in range(4) if not np.array_equal(frames[f], after[f])]
        assert any(np.array_equal(after[changed], frame) for frame in others)


def test_frame_shuffle_is_never_the_identity(world: World) -> None:
    data = dataset(world)
    marks = np.arange(4).reshape(4, 1, 1) * np.ones((1, 16, 16), np.float16)
    for seed in range(0, 60, 4):
        row = data.rows[0]
        after, *_ = data._warp(0, row, marks, [0, 1, 2, 4], generator_of(FRAME_SHUFFLE, seed))
        order = after[:, 0, 0].astype(int).tolist()
        assert sorted(order) == [0, 1, 2, 3]
        assert order != [0, 1, 2, 3]


@pytest.mark.parametrize("all_frames", [True, False], ids=["paper", "official"])
def test_colour_shift_moves_a_channel_of_all_frames_or_officially_any_of_one(world: World, all_frames: bool) -> None:
    channels, shifts = [0, 0, 0, 0], [0]
    for seed in range(60):
        after = shift_color(np.full((4, 8, 8, 3), 128, np.uint8), all_frames, np.random.default_rng(seed)).astype(int)
        moved = [c for c in range(3) if (after[..., c] != 128).any()]
        channels[len(moved)] += 1
        if moved:
            (level,) = np.unique(after[..., moved])  # one amount for all
            shifts.append(level - 128)
    assert min(shifts) < -20 < 20 < max(shifts)
    assert channels[0] <= 2  # a shift below half a level is none
    assert channels[2:] == [0, 0] if all_frames else channels[2] == 0 and 5 <= channels[3] <= 25  # one in four
    data = dataset(world, **{"loss.color_shift_all_frames": all_frames})
    frames, after, recompute_index, recomputed = warped(data, 0, COLOUR)
    assert np.array_equal(frames, after)  # their features are computed later, of ``recomputed``
    assert recomputed.shape == ((4 if all_frames else 1), 32, 32, 3)
    assert len(set(recompute_index.tolist())) == len(recomputed)


def test_the_affine_warp_changes_one_frame_and_has_no_black_corners(world: World) -> None:
    frames, after, recompute_index, _ = warped(dataset(world, world.pixels), 0, AFFINE)
    assert after.shape == frames.shape
    assert len(recompute_index) == 0  # already in ``after``, as pixels
    assert sum(not np.array_equal(a, b) for a, b in zip(frames, after, strict=True)) == 1
    for seed in range(5):
        assert (affine(np.full((20, 30, 3), 200, np.uint8), np.random.default_rng(seed)) == 200).all()


def test_stored_features_and_pixels_give_the_same_samples(world: World) -> None:
    tokenizer = ImageTokenizer.load(world.tokenizer)
    stored, pixels = dataset(world), dataset(world, world.pixels)
    wanted = [(index, epoch) for index in range(6) for epoch in range(3)]
    one, two = (collate([data.get(*place) for place in wanted]) for data in (stored, pixels))
    for key in ("tokens", "masked", "entire", "text", "other_text"):
        assert torch.equal(one[key], two[key]), key
    assert (one["frames"].dtype, two["frames"].dtype) == (torch.float16, torch.uint8)
    assert len(one["recomputed"]) > 4
    task = PretrainTask(world.pretrain(), stored.info.shapes, PAD, tokenizer.features)
    a, b = (frame_features(batch["frames"], tokenizer.features) for batch in (one, two))
    torch.testing.assert_close(a, b, rtol=2e-3, atol=2e-3)
    a, b = (task._warped_features(batch) for batch in (one, two))
    torch.testing.assert_close(a, b, rtol=2e-3, atol=2e-3)
    assert float((a - frame_features(one["frames"], tokenizer.features)).abs().max()) > 0.05


def captioning(world: World, captions: str, max_length: int) -> FinetuneDataset:
    info = ProcedureInfo.of(world.procedures)
    return FinetuneDataset(world.procedures, info, "train", captions=captions, max_length=max_length, seed=0)


@pytest.mark.parametrize("max_length", [40, 5])
def test_a_stage_2_sample_is_a_shifted_caption_that_ends_and_both_images(world: World, max_length: int) -> None:
    data = captioning(world, "random", max_length)
    item, row = data.get(3, 1), data.rows[3]
    assert item["ids"].shape == item["targets"].shape == (1, max_length - 1)
    targets = [word for word in item["targets"][0].tolist() if word != PAD]
    assert [word for word in item["ids"][0].tolist() if word != PAD] == [BOS, *targets[:-1]]
    assert targets[-1] == EOS
    assert targets[:-1] in [caption[1:-1][: max_length - 2] for caption in row["caption_ids"]]
    assert np.array_equal(item["ends"], data.frames(row, [0, 4]))
    assert item["references"] == row["captions"]


def test_a_sample_with_all_captions_has_each_once_and_a_batch_pads_them(world: World) -> None:
    data = captioning(world, "all", 40)
    items = [data.get(index, 0) for index in range(4)]
    for index, item in enumerate(items):
        captions = data.rows[index]["caption_ids"]
        assert item["ids"].shape == item["targets"].shape == (len(captions), 39)
        for targets, caption in zip(item["targets"], captions, strict=True):
            assert [BOS, *(word for word in targets.tolist() if word != PAD)] == caption
    batch = collate([{**items[0], "ids": items[0]["ids"][:2], "targets": items[0]["targets"][:2]}, *items[1:]])
    longest = int((batch["targets"] != PAD).sum(2).max())
    assert batch["ids"].shape == batch["targets"].shape == (4, max(len(item["ids"]) for item in items[1:]), longest)
    assert (batch["targets"][0, 2:] == PAD).all()
    assert np.array_equal(batch["targets"][1, : len(items[1]["targets"])], items[1]["targets"][:, :longest])


def test_pairs_without_captions_are_not_trained_on(world: World, tmp_path: Path) -> None:
    rows = [pair_row(i, "train", **({"captions": []} if i % 3 == 0 else {})) for i in range(9)]
    pairs = write_pairs(tmp_path / "pairs", rows)
    settings = {"pairs": pairs, "tokenizer": world.tokenizer, "depth": 2, "store_features": True}
    path = build_procedures(tmp_path / "procedures", settings)
    data = FinetuneDataset(path, ProcedureInfo.of(path), "train", captions="random", max_length=20, seed=0)
    assert [data.get(i, 0)["pair_id"] for i in range(len(data))] == [f"p{i:03d}" for i in (1, 2, 4, 5, 7, 8)]
