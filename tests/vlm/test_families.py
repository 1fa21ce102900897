"""Families: images, tokens and features are those of transformers' own classes, with attention in the towers of the
Qwen families window by window."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from idc.data.schema import Turn
from idc.vlm.base import load_model, read_family
from idc.vlm.batch import Sample, collate_encoded, encode_images, model_inputs
from idc.vlm.chat import Chat
from idc.vlm.config import BaseConfig
from idc.vlm.families import windows_at_once
from tests.vlm.models import every_family, found, model, picture, tiny_folder

SIZES = ((64, 64), (48, 90), (100, 30), (33, 200))


@every_family
def test_pixels_are_those_of_the_image_processor(kind: str) -> None:
    family, images = found(kind).family, [picture(seed, *size) for seed, size in enumerate(SIZES)]
    own = family.pixels(images)
    given: Any = [images] if kind == "llava_onevision" else images
    theirs = family.images(given, return_tensors="pt", **({"crop_to_patches": False} if kind == "internvl" else {}))
    values = theirs["pixel_values"]
    torch.testing.assert_close(own["pixel_values"], values[:, 0] if values.ndim == 5 else values, rtol=0, atol=0)
    if kind.startswith("qwen"):
        assert own["image_grid_thw"].tolist() == theirs["image_grid_thw"].tolist()


@every_family
def test_a_fitted_image_is_seen_as_it_is(kind: str) -> None:
    family = found(kind).family
    for seed, size in enumerate(SIZES):
        fitted = family.fit(picture(seed, *size))
        assert fitted.shape[:2] == family.seen_size(size)
        assert np.array_equal(family.fit(fitted), fitted)
    smaller = read_family(tiny_folder(kind), tiny_folder(kind), 32 * 32).seen_size((64, 64))
    assert smaller == ((32, 32) if kind.startswith("qwen") else (64, 64))


@every_family
def test_tokens_of_an_image_are_counted_from_its_size(kind: str) -> None:
    family = found(kind).family
    pixels = family.pixels([picture(seed, *size) for seed, size in enumerate(SIZES)])
    features = family.tokens_of(family.encode(model(kind), pixels))
    assert [len(one) for one in features] == [family.num_tokens(size) for size in SIZES]
    for size in SIZES:
        rows, columns = family.grid(size)
        assert rows * columns <= family.num_tokens(size) <= rows * columns + 1


@every_family
def test_logits_are_those_of_the_model_with_pixels(kind: str) -> None:
    """Foreign features enter by the same door as the model's own."""
    base, net = found(kind), model(kind)
    family, chat = base.family, Chat(base.family)
    images = [picture(0), picture(1, 48, 90)]
    turns = [Turn("user", "<image><image> What changed?"), Turn("assistant", "the cube has moved", "caption")]
    encoded = chat.encode(turns, [image.shape[:2] for image in images])
    batch = collate_encoded([Sample(encoded.ids, encoded.learned, family.pixels(images))], family)
    inputs = model_inputs(batch, None, family)
    more = {"pixel_values": batch["pixel_values"]}
    if kind == "llava_onevision":
        more = {"pixel_values": batch["pixel_values"][:, None], "image_sizes": torch.tensor([[64, 64]] * 2),
                "batch_num_images": torch.tensor([2])}  # fmt: skip
    with torch.no_grad():
        expected = net(**inputs, **more).logits
        logits = net(**model_inputs(batch, encode_images(net, batch, family), family)).logits
    assert expected.std() > 0
    torch.testing.assert_close(logits, expected, rtol=0, atol=0)


def test_weights_that_are_missing(tmp_path: Any) -> None:
    from safetensors.torch import load_file, save_file

    for path in tiny_folder("internvl").iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    weights = load_file(tmp_path / "model.safetensors")
    del weights[next(name for name in weights if name.endswith("layers.1.mlp.up_proj.weight"))]
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match=r"1 weights are missing, first .*layers\.1\.mlp\.up_proj\.weight"):
        load_model(tmp_path, BaseConfig(source=str(tmp_path)))


def naive(query: Tensor, key: Tensor, value: Tensor, ends: list[int]) -> Tensor:
    """softmax(q k' / sqrt(d)) v for each head and window; (1, H, L, D) to (1, L, H, D)."""
    out = torch.full_like(query, math.nan).transpose(1, 2)
    for head in range(query.shape[1]):
        for start, end in itertools.pairwise(ends):
            q, k, v = (part[0, head, start:end] for part in (query, key, value))
            out[0, start:end, head] = (q @ k.T / math.sqrt(q.shape[1])).softmax(1) @ v
    return out


@pytest.mark.parametrize("ends", [[0, 4, 8, 12], [0, 12], [0, 5, 6, 11, 12], [0, 2, 6, 8, 9]])
def test_windows_at_once_are_windows_one_by_one(ends: list[int]) -> None:
    torch.manual_seed(0)
    parts = [torch.randn(1, 3, ends[-1], 8, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    mixed, _ = windows_at_once(nn.Module(), *parts, None, scaling=8**-0.5, cu_seq_lens_q=torch.tensor(ends))
    expected = naive(*parts, ends)
    torch.testing.assert_close(mixed, expected)
    weights = torch.randn_like(expected)
    gradients = [torch.autograd.grad((out * weights).sum(), parts) for out in (mixed, expected)]
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("kind", ["qwen2_5_vl", "qwen3_vl"])
def test_a_tower_gives_the_features_of_transformers_own_attention(kind: str) -> None:
    """Images of two sizes, with whole windows and parts of windows."""
    folder = tiny_folder(kind)
    towers = [
        load_model(folder, BaseConfig(source=str(folder), attention=attention)).model.visual
        for attention in ("sdpa", "eager")
    ]
    grids = torch.tensor([[1, 10, 6], [1, 4, 8]])
    patches = torch.randn(int(grids.prod(1).sum()), towers[0].patch_embed.proj.weight[0].numel())
    with torch.no_grad():
        here, there = (tower(patches, grid_thw=grids, return_dict=True).last_hidden_state for tower in towers)
    assert towers[0].config._attn_implementation != towers[1].config._attn_implementation == "eager"
    torch.testing.assert_close(here, there, atol=1e-5, rtol=1e-5)
