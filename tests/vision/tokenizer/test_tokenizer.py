"""The image tokenizer around diffusers' VQModel."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from idc.vision.pretrained import network_fingerprint
from idc.vision.tokenizer.model import (
    ImageTokenizer,
    prepare_frame,
    prepare_images,
    to_frames,
    to_images,
)
from tests.vision.scenes import TINY, scene


@pytest.fixture(scope="module")
def tokenizer() -> ImageTokenizer:
    torch.manual_seed(0)
    made = ImageTokenizer(TINY).eval()
    made.codebook.copy_(torch.randn(made.codebook.shape))
    return made


@pytest.fixture(scope="module")
def images() -> torch.Tensor:
    return to_images(np.stack([scene(colour, left) for left, colour in enumerate(("red", "green", "blue", None))]))


def test_tokens_and_features_agree_with_diffusers(tokenizer: ImageTokenizer, images: torch.Tensor) -> None:
    with torch.no_grad():
        latents = tokenizer.model.encode(torch.nn.functional.pixel_unshuffle(2 * images - 1, 4)).latents
        _, _, (_, _, expected) = tokenizer.model.quantize(latents)
        tokens, features = tokenizer.tokens_and_features(images)
    assert tokens.shape == (4, 16)
    assert tokens.dtype == torch.int64
    assert features.shape == (4, 16, 16)
    assert tokens.flatten().tolist() == expected.tolist()
    assert torch.equal(tokens, tokenizer.encode(images))
    torch.testing.assert_close(features, tokenizer.features(images))


def test_patches_are_row_by_row(tokenizer: ImageTokenizer, images: torch.Tensor) -> None:
    with torch.no_grad():
        maps, features = tokenizer.encoder_features(images), tokenizer.features(images)
        torch.testing.assert_close(features[:, 4 * 1 + 2], maps[:, :, 1, 2])
        rows = tokenizer.project(maps)
        made = tokenizer.reconstruct(rows)
        expected = tokenizer.model.decoder(tokenizer.model.post_quant_conv(rows.transpose(1, 2).reshape(-1, 16, 4, 4)))
        torch.testing.assert_close(made, torch.nn.functional.pixel_shuffle(expected, 4))


def test_official_features_are_of_unit_images(tokenizer: ImageTokenizer, images: torch.Tensor) -> None:
    official = ImageTokenizer(TINY.model_copy(update={"feature_range": "unit"})).eval()
    official.load_state_dict(tokenizer.state_dict())
    with torch.no_grad():
        tokens, features = official.tokens_and_features(images)
        assert torch.equal(tokens, tokenizer.encode(images))
        torch.testing.assert_close(features, tokenizer.features((images + 1) / 2))


def test_codes_become_images_and_wrong_shapes_are_refused(tokenizer: ImageTokenizer) -> None:
    with torch.no_grad():
        made = tokenizer.decode(torch.arange(32).view(2, 16))
    assert made.shape == (2, 3, 32, 32)
    assert 0 <= float(made.min()) <= float(made.max()) <= 1
    with pytest.raises(ValueError, match=r"\(2, 15\), expected \(B, 16\)"):
        tokenizer.decode(torch.zeros(2, 15, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"\(1, 3, 32, 40\), expected \(B, 3, 32, 32\)"):
        tokenizer.encode(torch.zeros(1, 3, 32, 40))


def test_save_and_load(tokenizer: ImageTokenizer, images: torch.Tensor, tmp_path: Path) -> None:
    tokenizer.save(tmp_path)
    again = ImageTokenizer.load(tmp_path)
    assert again.config == tokenizer.config
    assert not again.training
    with torch.no_grad():
        assert torch.equal(again.features(images), tokenizer.features(images))
    first = network_fingerprint(tmp_path)
    again.codebook[0, 0] += 1
    again.save(tmp_path)
    assert network_fingerprint(tmp_path) != first


def test_load_refuses_what_does_not_fit(tokenizer: ImageTokenizer, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is not an artifact"):
        ImageTokenizer.load(tmp_path)
    tokenizer.save(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "config": {**config["config"], "codebook_size": 64}}))
    with pytest.raises(ValueError, match="does not fit"):
        ImageTokenizer.load(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({**config, "config": {**config["config"], "image_size": 64}}))
    with pytest.raises(ValueError, match=r"preprocess\.json"):
        ImageTokenizer.load(tmp_path)


def test_frames_and_images() -> None:
    frames = np.stack([scene("red"), scene("blue")])
    assert (to_frames(to_images(frames)) == frames).all()
    wide = prepare_frame(scene("red", 50, (48, 96)), TINY)
    assert wide.shape == (32, 32, 3)
    assert wide[16, 19].tolist() == pytest.approx([200, 40, 40], abs=25)  # the square at 50..62 of 96


def test_official_images_are_resized_bilinearly_and_not_rounded() -> None:
    """Each pixel is a weighted mean of its surroundings; halving weighs the four nearest of a row 1, 3, 3, 1."""
    config = TINY.model_copy(update={"resize": "bilinear"})
    rows = np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)
    (made,) = prepare_images([rows], config)
    column = (torch.tensor([1.0, 3, 3, 1]).view(4, 1) @ torch.tensor([1.0, 3, 3, 1]).view(1, 4)) / 64
    expected = (torch.from_numpy(rows[1:5, 3:7]).float() / 255 * column.unsqueeze(-1)).sum((0, 1))
    torch.testing.assert_close(made[:, 1, 2], expected)
    assert ((made * 255 - (made * 255).round()).abs() > 0.01).any()
    assert (prepare_frame(rows, config) == to_frames(made[None])[0]).all()
    both = prepare_images([rows, rows[:32]], TINY)
    assert (to_frames(both[:1])[0] == prepare_frame(rows, TINY)).all()
    assert both.shape == (2, 3, 32, 32)
