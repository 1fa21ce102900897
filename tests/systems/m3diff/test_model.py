"""The module: equations (1) to (8), its start, its gradients, and the door between tower and projector."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from benchmarks.tiny_vlm import TinyConfig, make_tiny
from idc.config import load
from idc.systems.m3diff.config import MdpConfig
from idc.systems.m3diff.model import Mdp, Perceived, default_levels, encode_pairs, levels_of, new_mdp
from idc.vlm.base import read_family
from idc.vlm.batch import encode_images, model_inputs
from idc.vlm.config import GenerateConfig
from idc.vlm.generate import generate
from tests.systems.m3diff.naive import Naive
from tests.systems.m3diff.small import SQUARE, WIDE, batch_of, task_of
from tests.vlm.models import TEXTS, every_family, found, model

VARIANTS: dict[str, dict[str, Any]] = {
    "default": {"start": "random"}, "near base": {"start": "near_base"}, "one stack": {"stacks": 1, "start": "random"},
}  # fmt: skip


class LastLevel(nn.Module):
    def __init__(self, layers: tuple[int, ...]):
        super().__init__()
        self.layers = layers

    def forward(self, levels: list[Tensor], mask: Tensor | None) -> Perceived:
        return Perceived(levels[-1], levels[-1].new_zeros(len(levels[-1]) // 2, levels[-1].shape[1]))


def randomised(mdp: Mdp, std: float = 0.4) -> Mdp:
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in mdp.parameters():
            parameter.normal_(std=std)
    return mdp


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_equations_are_those_of_a_second_implementation(variant: str) -> None:
    config = load(MdpConfig, None, {"heads": 2, **VARIANTS[variant]})
    width, counts = 10, (5, 4, 3)
    mdp = Mdp(width, (3, 5, 7), config)
    if variant != "near base":
        randomised(mdp)
    torch.manual_seed(2)
    levels = [torch.randn(6, 5, width) for _ in range(3)]
    mask = torch.tensor([[n < count for n in range(5)] for count in counts]).repeat_interleave(2, 0)
    with torch.no_grad():
        made = mdp(levels, mask).features
        alone = mdp([level[:2] for level in levels], None).features
    naive = Naive(mdp.state_dict(), config)
    for pair, count in enumerate(counts):
        images = [(level[2 * pair, :count], level[2 * pair + 1, :count]) for level in levels]
        expected = naive(images)
        assert expected.std() > 0.1
        torch.testing.assert_close(made[2 * pair : 2 * pair + 2, :count], expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(alone, made[:2], rtol=1e-5, atol=1e-6)


def test_the_map_is_the_distance_of_the_gated_features_of_the_first_stack_at_the_last_level() -> None:
    config, width = load(MdpConfig, None, {"heads": 2, "start": "random", "stacks": 3}), 10
    mdp = randomised(Mdp(width, (3, 5), config))
    torch.manual_seed(2)
    levels = [torch.randn(4, 6, width) for _ in range(2)]
    with torch.no_grad():
        distances = mdp(levels, None).apart
    assert distances.shape == (2, 6)
    naive = Naive(mdp.state_dict(), config)
    for pair in range(2):
        for token in range(6):
            first, second = (levels[-1][2 * pair + image, token].double() for image in (0, 1))
            hat_1, hat_2 = naive.gated("stacks.0", first, second)
            expected = (hat_1 - hat_2).norm() / (hat_1.norm() + hat_2.norm())
            assert distances[pair, token].item() == pytest.approx(expected.item(), abs=1e-5)


@pytest.mark.parametrize("layers", [(7,), (3, 5, 7)])
def test_the_start_near_the_base_is_the_level_that_the_projector_reads(layers: tuple[int, ...]) -> None:
    torch.manual_seed(3)
    mdp = Mdp(10, layers, load(MdpConfig, None, {"heads": 2}))
    levels = [torch.randn(4, 6, 10) for _ in layers]
    with torch.no_grad():
        features = mdp(levels, None).features
    assert (features - levels[-1]).abs().max() < 0.1 * levels[-1].abs().max()


def test_compared_with_itself_an_image_does_not_know_the_other() -> None:
    torch.manual_seed(0)
    levels, changed = torch.randn(2, 4, 5, 16), torch.randn(2, 4, 5, 16)
    changed[:, 0::2] = levels[:, 0::2]  # the images after are others
    mask = torch.tensor([[True] * 5, [True] * 3 + [False] * 2]).repeat_interleave(2, 0)
    features, sizes = {}, set()
    for compares in ("pair", "itself"):
        mdp = randomised(Mdp(16, (1, 2), load(MdpConfig, None, {"heads": 4, "compares": compares, "stacks": 1})))
        sizes.add(sum(parameter.numel() for parameter in mdp.parameters()))
        with torch.no_grad():
            before, other = (mdp(list(images), mask) for images in (levels, changed))
        assert before.features.shape == levels[0].shape
        assert before.apart.shape == (2, 5)
        features[compares] = (before.features[0::2] - other.features[0::2]).abs().max()
    assert len(sizes) == 1
    assert features["pair"] > 1e-2
    assert features["itself"] == 0


@pytest.mark.parametrize(("last", "levels"), [(1, (1,)), (2, (1, 2)), (3, (1, 2, 3)), (4, (1, 2, 3, 4)),
                                              (12, (6, 8, 10, 12)), (27, (18, 21, 24, 27))])  # fmt: skip
def test_default_levels_of_small_towers(last: int, levels: tuple[int, ...]) -> None:
    assert default_levels(last) == levels


@every_family
def test_tokens_of_the_tower_lie_where_their_coordinates_say(kind: str) -> None:
    family, net = found(kind).family, model(kind)
    side = family.config.vision_config.patch_size
    side = side if isinstance(side, int) else side[0]
    dark = torch.zeros(64, 64, 3, dtype=torch.uint8)
    for row, column in ((0, 0), (1, 2), (3, 1)):
        bright = dark.clone()
        bright[row * side : (row + 1) * side, column * side : (column + 1) * side] = 255
        levels = family.levels(net, family.pixels([dark.numpy(), bright.numpy()]), [0])
        differs = (levels.features[0][0] != levels.features[0][1]).any(-1)
        assert levels.patch_coordinates[0][differs].tolist() == [[row, column]]
        assert len({tuple(place) for place in levels.patch_coordinates[0].tolist()}) == 16


@pytest.mark.parametrize(
    ("depth", "width", "levels", "millions"),
    [
        (26, 1152, (17, 20, 23, 26), 71.7),  # LLaVA-OneVision-7B
        (32, 1280, (20, 24, 28, 32), 88.5),  # Qwen2.5-VL-7B
        (24, 1024, (15, 18, 21, 24), 56.7),  # InternVL3-8B
    ],
)
def test_levels_and_parameters_of_the_published_models(
    depth: int, width: int, levels: tuple[int, ...], millions: float
) -> None:
    assert default_levels(depth) == levels
    with torch.device("meta"):
        mdp = Mdp(width, levels, MdpConfig())
    assert round(sum(parameter.numel() for parameter in mdp.parameters()) / 1e6, 1) == millions


@every_family
def test_with_the_last_level_in_place_of_the_module_nothing_changes(kind: str) -> None:
    family, net = found(kind).family, model(kind)
    last = LastLevel(levels_of(MdpConfig(), family))
    batch, prompts = batch_of(family, [SQUARE, WIDE, SQUARE]), batch_of(family, [SQUARE, WIDE], "left")
    with torch.no_grad():
        expected = net(**model_inputs(batch, encode_images(net, batch, family), family)).logits
        logits = net(**model_inputs(batch, encode_pairs(net, family, last, batch)[0], family)).logits  # type: ignore[arg-type]
        settings = GenerateConfig(max_new_tokens=8, beams=3)
        encodings = encode_images(net, prompts, family), encode_pairs(net, family, last, prompts)[0]  # type: ignore[arg-type]
        theirs, ours = (generate(net, prompts, one, family, settings, hypotheses=3) for one in encodings)
    assert expected.std() > 0
    assert (logits - expected).abs().max() == 0
    assert ours == theirs


def test_every_weight_of_the_module_gets_a_gradient_by_the_second_step() -> None:
    task = task_of("internvl").train()
    batch = batch_of(task.family, [SQUARE, WIDE])
    optimizer = torch.optim.AdamW(task.param_groups(), lr=1e-3)
    for _ in range(2):
        optimizer.zero_grad()
        task.training_step(batch)[0].backward()
        optimizer.step()
    for name, parameter in task.mdp.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"levels": (17, 20, 23, 26)}, "the base model's vision tower has 2 layers and no level 17"),
        ({"levels": (2, 1)}, "in ascending order, none twice"),
        ({"levels": ()}, "give one or more"),
        ({"levels": (0, 1)}, "reads level 2; with mdp.start=near_base it must be the last one"),
        ({"heads": 5}, "mdp.heads=5 does not divide the width of the base model's vision tower, 32"),
    ],
)
def test_a_base_without_the_levels_asked_for(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        new_mdp(load(MdpConfig, None, settings), found("internvl").family)


def test_levels_end_where_the_projector_reads(tmp_path: Path) -> None:
    """LLaVA's setting vision_feature_layer."""
    folder = make_tiny(TinyConfig(family="llava_onevision", tower_layers=3), TEXTS * 4, tmp_path)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "vision_feature_layer": -2}))
    assert levels_of(MdpConfig(), read_family(folder, folder, None)) == (1, 2)
    (folder / "config.json").write_text(json.dumps({**config, "vision_feature_layer": [-2, -1]}))
    with pytest.raises(ValueError, match=r"projector reads the levels \[-2, -1\] together; take one that reads one"):
        levels_of(MdpConfig(), read_family(folder, folder, None))
