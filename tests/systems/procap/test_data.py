"""ProCap's samples: masks, warps, negatives, and that a sample depends on (seed, epoch, index) alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pytest
import torch

from idc.data.text import BOS, EOS, PAD
from idc.systems.procap import data as procap_data
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
from idc.systems.procap.task import frame_features
from idc.vision.tokenizer.model import ImageTokenizer
from tests.systems.procap.naive import masked_patches
from tests.systems.procap.world import World, build_procedures

PAPER = Shapes(num_keyframes=2, grid=(14, 14), feature_dim=256, codebook_size=1024, vocabulary_size=80)
NONE = {"random": 0.0, "entire": 0.0, "in_block": 0.0, "out_of_block": 0.0}
FRAME_SHUFFLE, OTHERS_FRAME, COLOUR, AFFINE = 1, 0, 2, 3
"""Which warp the first draw of ``PretrainDataset._warp`` chooses."""


def masks(count: int, **settings: Any) -> list[np.ndarray]:
    config = MaskingConfig(**settings)
    return [draw_mask(config, PAPER, np.random.default_rng(seed))[0] for seed in range(count)]


def dataset(world: World, path: str | None = None, split: str = "train", **settings: Any) -> PretrainDataset:
    path = path or world.procedures
    return PretrainDataset(path, ProcedureInfo.of(path), split, world.pretrain(settings))


def generator_of(warp: int, start: int = 0) -> np.random.Generator:
    """A generator whose first ``integers(4)`` is ``warp``."""
    seed = next(seed for seed in range(start, start + 1000) if np.random.default_rng(seed).integers(4) == warp)
    return np.random.default_rng(seed)


def warped(data: PretrainDataset, index: int, warp: int, seed: int = 0) -> tuple[np.ndarray, Any, Any, Any]:
    """The frames of a row, and what ``_warp`` makes of them."""
    row = data.source.rows[index]
    which = [0, *row["keyframes"], 4]
    frames = data.source.frames(row, which)
    return frames, *data._warp(index, row, frames, which, generator_of(warp, seed))


# -- masks --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("drawn_for", ["patch", "sample"])
@pytest.mark.parametrize("grid", [(14, 14), (2, 3), (1, 2)])
def test_masks_are_those_of_equations_13_to_17(grid: tuple[int, int], drawn_for: Literal["patch", "sample"]) -> None:
    """The same draws give the same patches; over many draws the schemes have their probabilities."""
    shapes, config = replace(PAPER, grid=grid), MaskingConfig(drawn_for=drawn_for)
    number = dict.fromkeys(("entire", "all frames alike", "few"), 0)
    for seed in range(600):
        masked, entire = draw_mask(config, shapes, np.random.default_rng(seed))
        frames = masked.reshape(shapes.frames, *grid)
        patches = {(int(k), int(m), int(n)) for k, m, n in zip(*frames.nonzero(), strict=True)}
        assert patches == masked_patches(config, shapes, np.random.default_rng(seed)), seed
        assert bool(entire) <= bool(masked.all())
        number["entire"] += bool(entire)
        number["all frames alike"] += bool((masked == masked[0]).all()) and not masked.all()
        number["few"] += bool(masked.mean() < 0.6)
    assert number["entire"] / 600 == pytest.approx(0.1, abs=0.04)
    if grid == (14, 14):
        assert number["all frames alike"] / 600 == pytest.approx(0.2, abs=0.05)
        assert number["few"] / 600 > 0.7


def test_equation_14_draws_a_probability_for_each_index() -> None:
    """So that every sample of 784 patches has a share near the mean of U(0.2, 0.5), as a sum of independent patches."""
    shares = [mask.mean() for mask in masks(200, **{**NONE, "random": 1.0})]
    assert np.mean(shares) == pytest.approx(0.35, abs=0.01)
    assert np.std(shares) < 0.03  # sqrt(0.35 * 0.65 / 784) = 0.017; of one draw for a sample 0.3 / sqrt(12) = 0.087


def test_random_masking_masks_at_least_one_patch() -> None:
    none_but_one = masks(20, **{**NONE, "random": 1.0}, low=0.0, high=0.0)
    assert [mask.sum() for mask in none_but_one] == [1] * 20
    assert len({int(mask.argmax()) for mask in none_but_one}) > 10


def test_entire_masking_masks_all_and_says_so() -> None:
    config = MaskingConfig(**{**NONE, "entire": 1.0})
    masked, entire = draw_mask(config, PAPER, np.random.default_rng(0))
    assert masked.shape == (4, 196)
    assert masked.all()
    assert bool(entire)
    for scheme in ("random", "in_block", "out_of_block"):
        assert not draw_mask(MaskingConfig(**{**NONE, scheme: 1.0}), PAPER, np.random.default_rng(0))[1]


# -- samples ------------------------------------------------------------------------------------------------------


def test_a_sample_depends_on_seed_epoch_and_index_alone(world: World) -> None:
    data, again = dataset(world), dataset(world)
    other_seed = dataset(world, **{"train.seed": 6})
    for index in (0, 7):
        first = data.get(index, 3)
        data.get(index + 1, 0)  # what was asked before does not matter
        for one in (data.get(index, 3), again.get(index, 3)):
            assert all(np.array_equal(first[key], one[key]) for key in first)
        assert any(not np.array_equal(first[key], data.get(index, 4)[key]) for key in ("masked", "text", "warped"))
        assert any(not np.array_equal(first[key], other_seed.get(index, 3)[key]) for key in ("masked", "text"))
        assert np.array_equal(first["frames"], data.get(index, 4)["frames"])  # the stored draw of the key frames


def test_the_parts_of_a_sample_belong_to_the_same_frames(world: World) -> None:
    data = dataset(world)
    row, item = data.source.rows[2], data.get(2, 0)
    which = [0, *row["keyframes"], 4]
    tokens = np.frombuffer(row["tokens"], np.int16).reshape(5, 16)
    assert (item["tokens"] == tokens[which]).all()
    pixels = torch.from_numpy(data.source.pixels(row, which))
    tokenizer = ImageTokenizer.load(world.tokenizer)
    with torch.no_grad():
        assert (tokenizer.encode(as_images(pixels)).numpy() == item["tokens"]).all()
    captions = [caption[1:-1][:12] for caption in row["caption_ids"]]
    text = item["text"].tolist()
    assert text[: len(text) - text.count(PAD)] in captions


def test_key_frames_are_redrawn_each_epoch_where_asked_for(world: World) -> None:
    data = dataset(world, redraw_keyframes=True)
    drawn = [{data.get(i, epoch)["tokens"].tobytes() for epoch in range(12)} for i in range(len(data))]
    assert max(map(len, drawn)) == 3  # two of three frames
    assert {len({dataset(world).get(i, epoch)["tokens"].tobytes() for epoch in range(4)}) for i in range(3)} == {1}
    with pytest.raises(ValueError, match=r"redraw_keyframes needs all frames.*build.stored_frames=all"):
        dataset(world, world.keyframes, redraw_keyframes=True)
    stored = dataset(world, world.keyframes)
    for index in range(3):  # key frames only, or all frames with the stored draw: the same sample
        a, b = stored.get(index, 0), dataset(world).get(index, 0)
        assert (a["tokens"] == b["tokens"]).all()
        assert np.array_equal(a["frames"], b["frames"])


def test_the_first_caption_is_always_shown_where_asked_for(world: World) -> None:
    first, random = dataset(world, captions="first"), dataset(world)
    assert len({first.get(0, epoch)["text"].tobytes() for epoch in range(8)}) == 1
    assert len({random.get(0, epoch)["text"].tobytes() for epoch in range(8)}) > 2
    blind = dataset(world, caption_condition=False)
    assert (blind.get(0, 0)["text"] == PAD).all()


def test_the_unaligned_caption_is_no_caption_of_the_pair(world: World) -> None:
    """Half of the pairs are unchanged and share their captions, so a draw among all rows would often fail."""
    data = dataset(world, **{"captions": "random", "encoder.text_length": 24})
    for index in range(len(data)):
        for epoch in range(6):
            item = data.get(index, epoch)
            assert item["text"].tolist() != item["other_text"].tolist(), (index, epoch)


# -- warps --------------------------------------------------------------------------------------------------------


def test_a_frame_of_another_procedure_is_put_in(world: World) -> None:
    data = dataset(world, world.pixels)
    for seed in range(0, 40, 4):
        frames, after, places, redone = warped(data, 1, OTHERS_FRAME, seed)
        changed = [f for f in range(4) if not np.array_equal(frames[f], after[f])]
        assert len(places) == len(redone) == 0
        assert len(changed) <= 1
        for place in changed:
            rows = [row for i, row in enumerate(data.source.rows) if i != 1]
            others = [frame for row in rows for frame in data.source.pixels(row, range(5))]
            assert any(np.array_equal(after[place], frame) for frame in others)


def test_a_procedures_own_frame_is_not_another_procedures(world: World) -> None:
    """Of two procedures the other one is taken, every time."""
    data = dataset(world, world.pixels, "val")
    data.source.rows = [data.source.rows[0], data.source.rows[2]]  # of different scenes
    for seed in range(0, 40, 4):
        frames, after, *_ = warped(data, 0, OTHERS_FRAME, seed)
        assert sum(not np.array_equal(frames[f], after[f]) for f in range(4)) == 1


def test_frame_shuffle_is_never_the_identity(world: World) -> None:
    data = dataset(world)
    marks = np.arange(4).reshape(4, 1, 1) * np.ones((1, 16, 16), np.float16)
    for seed in range(0, 60, 4):
        row = data.source.rows[0]
        after, *_ = data._warp(0, row, marks, [0, 1, 2, 4], generator_of(FRAME_SHUFFLE, seed))
        order = after[:, 0, 0].astype(int).tolist()
        assert sorted(order) == [0, 1, 2, 3]
        assert order != [0, 1, 2, 3]


def test_colour_shift_moves_one_channel_of_all_frames_by_one_amount(world: World) -> None:
    pixels = np.full((4, 8, 8, 3), 128, np.uint8)
    shifts = [[], [], []]
    for seed in range(60):
        after = shift_color(pixels, True, np.random.default_rng(seed)).astype(int)
        moved = [c for c in range(3) if (after[..., c] != 128).any()]
        assert len(moved) <= 1  # a shift below half a level is none
        for channel in moved:
            (value,) = np.unique(after[..., channel])
            shifts[channel].append(value - 128)
    assert all(len(values) > 8 and min(values) < -20 and max(values) > 20 for values in shifts)
    assert max(abs(value) for values in shifts for value in values) <= 128
    data = dataset(world)
    frames, after, places, redone = warped(data, 0, COLOUR)
    assert places.tolist() == [0, 1, 2, 3]
    assert redone.shape == (4, 32, 32, 3)
    assert np.array_equal(frames, after)  # their features are computed later, of ``redone``


def test_the_official_colour_shift_is_of_one_frame_and_one_or_all_channels(world: World) -> None:
    grey = np.full((1, 4, 4, 3), 128, np.uint8)
    counts = [
        int((shift_color(grey, False, np.random.default_rng(seed)) != 128).any((0, 1, 2)).sum()) for seed in range(60)
    ]
    assert 5 <= counts.count(3) <= 25  # one in four
    assert counts.count(1) + counts.count(3) >= 58  # a shift below half a level is none
    data = dataset(world, **{"loss.color_shift_all_frames": False})
    *_, places, redone = warped(data, 0, COLOUR)
    assert len(places) == len(redone) == 1


def test_the_affine_warp_keeps_the_shape_and_changes_one_frame(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    data = dataset(world, world.pixels)
    frames, after, places, _ = warped(data, 0, AFFINE)
    assert after.shape == frames.shape
    assert len(places) == 0  # already in ``after``, as pixels
    assert sum(not np.array_equal(a, b) for a, b in zip(frames, after, strict=True)) == 1
    for seed in range(5):  # reflected at the border: no black corners
        plain = np.full((20, 30, 3), 200, np.uint8)
        assert (affine(plain, np.random.default_rng(seed)) == 200).all()
    for name in ("ROTATION", "TRANSLATION", "SCALING"):
        monkeypatch.setattr(procap_data, name, 0.0)
    assert np.array_equal(affine(frames[1], np.random.default_rng(0)), frames[1])


# -- features and pixels ------------------------------------------------------------------------------------------


def test_stored_features_and_pixels_give_the_same_samples(world: World) -> None:
    """Warped frames, too: the same draws, and features equal to the rounding of float16."""
    from idc.systems.procap.task import PretrainTask

    tokenizer = ImageTokenizer.load(world.tokenizer)
    stored, pixels = dataset(world), dataset(world, world.pixels)
    wanted = [(index, epoch) for index in range(6) for epoch in range(3)]
    one, two = (collate([data.get(*place) for place in wanted]) for data in (stored, pixels))
    for key in ("tokens", "masked", "entire", "text", "other_text"):
        assert torch.equal(one[key], two[key]), key
    assert one["frames"].dtype == torch.float16
    assert two["frames"].dtype == torch.uint8
    assert len(one["redone"]) > 4
    assert len(two["redone"]) == 0
    task = PretrainTask(world.pretrain(), stored.info.shapes, PAD, tokenizer.features)
    a, b = (frame_features(batch["frames"], tokenizer.features) for batch in (one, two))
    torch.testing.assert_close(a, b, rtol=2e-3, atol=2e-3)
    a, b = (task._warped_features(batch) for batch in (one, two))
    torch.testing.assert_close(a, b, rtol=2e-3, atol=2e-3)
    assert float((a - frame_features(one["frames"], tokenizer.features)).abs().max()) > 0.05


# -- stage 2 ------------------------------------------------------------------------------------------------------


def test_a_stage_2_sample_is_a_shifted_caption_and_both_ends(world: World) -> None:
    info = ProcedureInfo.of(world.procedures)
    data = FinetuneDataset(world.procedures, info, "train", captions="random", max_length=20, seed=0)
    item, row = data.get(3, 1), data.source.rows[3]
    assert item["ids"].shape == item["targets"].shape == (19,)
    assert item["ids"][0] == BOS
    length = int((item["targets"] != PAD).sum())
    assert item["targets"][length - 1] == EOS
    assert (item["ids"][1:length] == item["targets"][: length - 1]).all()
    assert (item["ids"][length:] == PAD).all()
    assert [BOS, *item["targets"][:length].tolist()] in row["caption_ids"]
    assert np.array_equal(item["ends"], data.source.frames(row, [0, 4]))
    assert item["references"] == row["captions"]


def test_a_sample_with_all_captions_has_each_once_and_a_batch_pads_them(world: World) -> None:
    info = ProcedureInfo.of(world.procedures)
    data = FinetuneDataset(world.procedures, info, "train", captions="all", max_length=40, seed=0)
    items = [data.get(index, 0) for index in range(4)]
    for index, item in enumerate(items):
        captions = data.source.rows[index]["caption_ids"]
        assert item["ids"].shape == item["targets"].shape == (len(captions), 39)
        for ids, targets, caption in zip(item["ids"], item["targets"], captions, strict=True):
            assert [BOS, *(word for word in targets.tolist() if word != PAD)] == caption
            assert [*(word for word in ids.tolist() if word != PAD), EOS] == caption
    fewer = {**items[0], "ids": items[0]["ids"][:2], "targets": items[0]["targets"][:2]}
    batch = collate([fewer, *items[1:]])
    longest = max(int((item["targets"] != PAD).sum(1).max()) for item in (fewer, *items[1:]))
    most = max(len(item["ids"]) for item in items[1:])
    assert batch["ids"].shape == batch["targets"].shape == (4, most, longest)
    assert (batch["targets"][0, 2:] == PAD).all()
    assert np.array_equal(batch["targets"][1, : len(items[1]["targets"])], items[1]["targets"][:, :longest])


@pytest.mark.parametrize("max_length", [2, 5])
def test_a_long_caption_is_cut_and_still_ends(world: World, max_length: int) -> None:
    info = ProcedureInfo.of(world.procedures)
    data = FinetuneDataset(world.procedures, info, "train", captions="first", max_length=max_length, seed=0)
    item = data.get(0, 0)
    assert len(item["ids"]) == max_length - 1
    assert item["ids"][0] == BOS
    assert PAD not in item["ids"].tolist()
    assert item["targets"][-1] == EOS


def test_pairs_without_captions_are_not_trained_on(world: World, tmp_path: Any) -> None:
    from idc.data.store import read_table
    from tests.vision.scenes import pair_row, write_pairs

    rows = [pair_row(i, "train", **({"captions": []} if i % 3 == 0 else {})) for i in range(9)]
    pairs = write_pairs(tmp_path / "pairs", rows)
    settings = {"pairs": pairs, "tokenizer": world.tokenizer, "depth": 2, "store_features": True}
    path = build_procedures(tmp_path / "procedures", settings)
    assert read_table(path, columns=["pair_id"]).num_rows == 9
    data = FinetuneDataset(path, ProcedureInfo.of(path), "train", captions="random", max_length=20, seed=0)
    assert [data.get(i, 0)["pair_id"] for i in range(len(data))] == [f"p{i:03d}" for i in (1, 2, 4, 5, 7, 8)]


def test_a_folder_that_holds_no_procedures_is_refused(world: World) -> None:
    with pytest.raises(ValueError, match="holds pairs, not procedures"):
        ProcedureInfo.of(world.pairs)
