"""Frames between two images; VFIformer: the official layout and forward pass, sizes, masks, files."""

from __future__ import annotations

import gzip
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from idc.vision.interpolation.middle_frames import _mean_difference, flow_middle, interpolate, linear_blend, make_middle
from idc.vision.interpolation.model import VFIformer, load_vfiformer
from idc.vision.interpolation.window_transformer import (
    VFIformerConfig,
    WindowBlock,
    relative_positions,
    shift_masks,
    to_wide_windows,
)
from tests.vision.scenes import scene

KEYS = Path(__file__).parent / "keys"
FULL = VFIformerConfig()
SMALL = VFIformerConfig(refine=False, width=136, window=4)
TINY = VFIformerConfig(
    flow_channels=(8, 6, 4), context_channels=2, width=8, window=4, depths=((1, 2), (2, 2), (1, 2), (1, 1))
)


def tiny(seed: int = 0) -> VFIformer:
    torch.manual_seed(seed)
    return VFIformer(TINY).eval()


def save_tiny(path: Path, seed: int = 0) -> str:
    """A checkpoint of the official layout."""
    torch.save(official_state(tiny(seed)), path)
    return str(path)


def official_state(model: VFIformer, crop: int = 64) -> dict[str, Tensor]:
    """With the constant tables of an official checkpoint, the masks at a crop size."""
    state = model.state_dict()
    same, wide = shift_masks(crop, crop, model.config.window)
    for name, block in model.named_modules():
        if isinstance(block, WindowBlock):
            state[f"{name}.attn.relative_position_index"] = relative_positions(model.config.window)
            masks = {"attn_mask_x": same, "attn_mask_y": wide} if block.cross else {"attn_mask": same}
            state |= {f"{name}.{kind}": mask for kind, mask in masks.items() if block.shift}
    return state


def waves(like: Tensor, number: int) -> Tensor:
    """Values in [-1, 1] that are the same with every version of every library."""
    return torch.sin(torch.arange(like.numel(), dtype=torch.float64) * 1.7 + number * 0.37).float().view(like.shape)


# -- the official layout -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "config", "parameters"), [("vfiformer", FULL, 24_166_930), ("vfiformer_small", SMALL, 17_024_426)]
)
def test_state_dict_is_the_official_one(name: str, config: VFIformerConfig, parameters: int) -> None:
    with torch.device("meta"):
        model = VFIformer(config)
    with gzip.open(KEYS / f"{name}.tsv.gz", "rt", encoding="utf-8") as file:
        official = [tuple(line.rstrip("\n").split("\t")) for line in file]
    state = official_state(model, 192)
    assert sorted((key, str(tuple(value.shape)), str(value.dtype)) for key, value in state.items()) == sorted(official)
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters


def test_the_forward_pass_is_the_official_one() -> None:
    """Frame and flow of fixed weights, as a transcription of the official forward pass computed them, to float32."""
    model = tiny()
    with torch.no_grad():
        for number, (name, parameter) in enumerate(model.named_parameters()):
            spread = 0.1 if parameter.ndim == 1 else 1.3 / math.sqrt(parameter[0].numel())
            centre = 0.6 if parameter.ndim == 1 and name.endswith("weight") else 0
            parameter.copy_(waves(parameter, number) * spread + centre)
        images = waves(torch.empty(2, 1, 3, 32, 64), 5) / 2 + 0.5
        frame, flow, estimates = model.middle_of(images[0], images[1])
    assert frame.flatten()[SAMPLED].tolist() == pytest.approx(FRAME, abs=1e-4)
    assert flow.flatten()[SAMPLED].tolist() == pytest.approx(FLOW, rel=1e-4, abs=1e-4)
    assert [float(estimate.mean()) for estimate in estimates] == pytest.approx(ESTIMATES, rel=1e-4)


SAMPLED = torch.tensor([0, 777, 1500, 2222, 3100, 4004, 5151, 6143])
FRAME = [0.34684, 0.603799, 0.780577, 0.54606, 0.561611, 0.538986, 0.453717, 0.427544]
FLOW = [1.10722, 0.506372, -0.910303, -0.855297, 1.3789, 2.18169, -0.271313, 2.18103]
ESTIMATES = [-0.00928342, 0.0138395, 0.0113082]


# -- parts ---------------------------------------------------------------------------------------------------------


def test_a_wide_window_is_twice_as_wide_around_its_window() -> None:
    maps = torch.randn(1, 32, 24, 2)
    half = maps.view(1, 16, 2, 12, 2, 2).mean((2, 4))
    wide = to_wide_windows(maps, 8)[0].view(4, 3, 8, 8, 2)
    assert torch.allclose(wide[1, 1], half[0, 2:10, 2:10], atol=1e-6)  # pixels 4 to 20, the window has 8 to 16
    mirrored = torch.stack([half[0, :, n] for n in (2, 1, 0, 1, 2, 3, 4, 5)], dim=1)
    assert torch.allclose(wide[1, 0], mirrored[2:10], atol=1e-6)


def test_masks_keep_apart_what_was_not_together() -> None:
    height, width, window = 16, 24, 8
    own, wide = shift_masks(height, width, window)

    def region(y: float, x: float) -> tuple[int, int]:
        """Before the last window, in its first half, or come round from the other side."""
        return tuple(0 if at < size - 8 else 1 if at < size - 4 else 2 for at, size in ((y, height), (x, width)))  # type: ignore[return-value]

    def mirrored(at: int, size: int) -> int:
        return -at if at < 0 else 2 * size - 2 - at if at >= size else at

    for n in (0, 2, 4, 5):
        top, left = 8 * (n // 3), 8 * (n % 3)
        for query in (0, 3, 29, 36, 63):
            here = region(top + query // 8, left + query % 8)
            for key in range(64):
                there = region(top + key // 8, left + key % 8)
                assert (own[n, query, key] == 0) == (here == there)
                y = mirrored(top // 2 - 2 + key // 8, height // 2)
                x = mirrored(left // 2 - 2 + key % 8, width // 2)
                assert (wide[n, query, key] == 0) == (here == region(2 * y, 2 * x)), (n, query, key)
    assert {float(value) for value in torch.cat([own, wide]).unique()} == {0.0, -100.0}


# -- sizes and colours ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [(1, 1), (7, 45), (32, 64)])
def test_any_size(size: tuple[int, int]) -> None:
    first, last = torch.rand(2, 2, 3, *size)
    with torch.no_grad():
        frame = tiny()(first, last)
    assert frame.shape == (2, 3, *size)
    assert 0 <= float(frame.min()) <= float(frame.max()) <= 1


def test_the_network_sees_bgr_padded_evenly_with_zeros() -> None:
    model = tiny()
    first, last = torch.rand(2, 1, 3, 30, 59)
    with torch.no_grad():
        frame = model(first, last)
        padded = torch.zeros(2, 1, 3, 64, 64)
        padded[0, ..., 17:47, 2:61], padded[1, ..., 17:47, 2:61] = first.flip(1), last.flip(1)
        expected = model.middle_of(padded[0], padded[1])[0][..., 17:47, 2:61].flip(1)
    assert torch.equal(frame, expected)


# -- files ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("config", [TINY, SMALL])
def test_an_official_checkpoint_loads_strictly(config: VFIformerConfig, tmp_path: Path) -> None:
    """Random, as DataParallel saves it, built at crop size 64."""
    torch.manual_seed(0)
    official = {f"module.{name}": value for name, value in official_state(VFIformer(config)).items()}
    torch.save(official, tmp_path / "net_220.pth")
    model = load_vfiformer(tmp_path / "net_220.pth")
    assert (model.config, model.training) == (config, False)
    assert set(model.state_dict()) == {name for name, _ in model.named_parameters()}, "without constant tables"
    assert all(torch.equal(value, official[f"module.{name}"]) for name, value in model.state_dict().items())

    mask = "transformer.layers0.1.residual_group.blocks.1.attn_mask_x"
    for name, value, reason in (
        ("fuse_block.0.bias", None, "has no fuse_block.0.bias"),
        ("extra", torch.zeros(1), "tensors that this format does not have: extra"),
        ("fuse_block.2.bias", torch.zeros(3), r"fuse_block.2.bias is \(3,\)"),
        (mask, official[f"module.{mask}"] + 1, f"has other values in the constant table {mask}"),
    ):
        bad = {**official, f"module.{name}": value}
        torch.save({key: tensor for key, tensor in bad.items() if tensor is not None}, tmp_path / "bad.pth")
        with pytest.raises(ValueError, match=rf"bad\.pth.* {reason}"):
            load_vfiformer(tmp_path / "bad.pth")


def test_as_a_middle(tmp_path: Path) -> None:
    middle = make_middle("vfiformer", save_tiny(tmp_path / "net.pth"))
    rng = np.random.default_rng(0)
    first, last = rng.integers(0, 256, (2, 21, 37, 3), dtype=np.uint8)
    frames = interpolate(first, last, 2, middle)
    assert frames.shape == (5, 21, 37, 3)
    assert frames.dtype == np.uint8
    images = torch.from_numpy(np.stack([first, last])).permute(0, 3, 1, 2) / 255
    with torch.no_grad():
        expected = (255 * tiny()(images[:1], images[1:])[0].permute(1, 2, 0)).round().numpy()
    assert np.abs(frames[2].astype(float) - expected).max() <= 1
    assert (middle(first, first) == first).all()
    with pytest.raises(ValueError, match="vfiformer needs weights"):
        make_middle("vfiformer")


def textured(height: int, width: int, shift: float = 0.0) -> np.ndarray:
    """A smooth texture moved to the right by ``shift`` pixels."""
    rows, columns = np.mgrid[0:height, 0:width].astype(np.float64)
    columns = columns - shift
    waves = [np.sin(columns / 5 + rows / 9 + p) + np.cos(columns / 11 - rows / 6 + 2 * p) for p in (0, 1, 2)]
    return np.clip(127 + 50 * np.stack(waves, axis=2), 0, 255).round().astype(np.uint8)


def error(first: np.ndarray, second: np.ndarray) -> float:
    return float(np.abs(first.astype(float) - second).mean())


def test_order_and_number_of_frames() -> None:
    before, after = np.zeros((4, 5, 3), np.uint8), np.full((4, 5, 3), 160, np.uint8)
    frames = interpolate(before, after, 3, linear_blend)
    assert frames.shape == (9, 4, 5, 3)
    assert frames.dtype == np.uint8
    assert frames[:, 0, 0, 0].tolist() == [0, 20, 40, 60, 80, 100, 120, 140, 160]


def test_other_sizes_and_unknown_interpolations_are_refused() -> None:
    with pytest.raises(ValueError, match=r"before is \(4, 5, 3\), after is \(4, 6, 3\)"):
        interpolate(np.zeros((4, 5, 3), np.uint8), np.zeros((4, 6, 3), np.uint8), 1, linear_blend)
    with pytest.raises(ValueError, match="no interpolation is called 'film'; there are: dis, blend, vfiformer"):
        make_middle("film")


def test_the_mean_over_the_channels_is_numpys_to_the_bit() -> None:
    for seed in range(5):
        first, second = np.random.default_rng(seed).normal(100, 60, (2, 37, 64, 3)).astype(np.float32)
        assert np.array_equal(_mean_difference(first, second), np.abs(first - second).mean(2))


def test_flow_finds_the_middle_of_a_motion_and_its_recursion_moves_evenly() -> None:
    first, half, second = textured(96, 128), textured(96, 128, 3), textured(96, 128, 6)
    inner = np.s_[8:-8, 16:-16]
    middle = flow_middle(first, second)
    assert error(middle[inner], half[inner]) < 2.0
    assert error(linear_blend(first, second)[inner], half[inner]) > 5 * error(middle[inner], half[inner])
    assert np.array_equal(flow_middle(first, second), middle)
    for n, frame in enumerate(interpolate(first, textured(96, 128, 8), 3, flow_middle)):
        assert error(frame[inner], textured(96, 128, n)[inner]) < 4.0, n


@pytest.mark.parametrize(("first", "second"), [("red", "blue"), (None, "yellow"), ("green", None)])
def test_colour_change_and_appearance_fade(first: str | None, second: str | None) -> None:
    before, after = scene(first), scene(second)
    assert error(flow_middle(before, after), linear_blend(before, after)) < 3.0


@pytest.mark.parametrize("size", [(1, 1), (7, 5), (16, 300), (240, 320)])
def test_any_size_and_equal_images_stay_as_they_are(size: tuple[int, int]) -> None:
    first, second = textured(*size), textured(*size, shift=1.5)
    frames = interpolate(first, second, 1, flow_middle)
    assert frames.shape == (3, *size, 3)
    assert error(frames[1], linear_blend(first, second)) < 12
    assert (interpolate(first, first, 1, flow_middle) == first).all()
