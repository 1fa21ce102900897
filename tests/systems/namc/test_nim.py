"""NIM: what the naive implementation does not compute."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from transformers import CLIPConfig, CLIPModel

from idc.systems.namc.config import ClipConfig, ImageConfig, NimConfig
from idc.systems.namc.nim import DualEncoder, NoiseIdentification, Texts, build_clip, relevance, token_loss
from idc.vision.pair_encoder.model import MEAN, STD
from tests.nn.naive import sigmoid

IMAGE = ImageConfig(grid=2, cnn="stem")


def texts(*rows: list[int]) -> Texts:
    """One text per list of word numbers, a token each, between a begin and an end token."""
    longest = max(map(len, rows)) + 2
    ids = torch.tensor([[1, *(word + 4 for word in row), 2, *[0] * (longest - len(row) - 2)] for row in rows])
    words = torch.tensor([[-1, *row, -1, *[-1] * (longest - len(row) - 2)] for row in rows])
    return Texts(ids, words, torch.tensor([len(row) + 1 for row in rows]), max(max(row) for row in rows) + 1)


def test_a_word_has_the_mean_relevance_of_its_pieces() -> None:
    patches = torch.tensor([[[1.0, 0.0]]])
    tokens = torch.tensor([[[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [0.0, 0.0]]])
    pieces = Texts(torch.tensor([[1, 5, 6, 7, 2]]), torch.tensor([[-1, 0, 0, 1, -1]]), torch.tensor([4]), 2)
    assert torch.allclose(relevance(patches, tokens, pieces)[1], torch.tensor([[0.5, -1.0]]))


@torch.no_grad()
def test_without_masks_it_is_clip_of_transformers(tmp_path: object) -> None:
    sizes = {"hidden_size": 16, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    torch.manual_seed(1)
    text = {**sizes, "vocab_size": 12, "max_position_embeddings": 10, "eos_token_id": 2}
    vision = {**sizes, "image_size": 32, "patch_size": 16}
    clip = CLIPModel(CLIPConfig(text_config=text, vision_config=vision, projection_dim=16)).eval()
    clip.save_pretrained(tmp_path)
    dual = DualEncoder(build_clip(NimConfig(clip=str(tmp_path)), IMAGE, 0, 0)).eval()
    pixels = torch.randint(0, 256, (3, 32, 32, 3), dtype=torch.uint8)
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (MEAN, STD))
    scaled = (pixels.permute(0, 3, 1, 2).float() / 255 - mean) / std
    image = clip.visual_projection(clip.vision_model(pixel_values=scaled).pooler_output)
    assert torch.allclose(dual.images(pixels).whole, image, atol=1e-5)
    read = texts([0, 1, 2], [0, 1], [0])
    hidden = clip.text_model(input_ids=read.ids).last_hidden_state
    whole = clip.text_projection(hidden[torch.arange(len(hidden)), read.end])
    assert torch.allclose(dual.texts(read).whole, whole, atol=1e-5)
    with pytest.raises(ValueError, match=r"nim.clip: .* has images of 32 pixels with patches of 16; image.grid = 4"):
        build_clip(NimConfig(clip=str(tmp_path)), ImageConfig(grid=4, cnn="stem"), 0, 0)


def test_the_loss_of_tokens_asks_each_word_for_its_image_and_each_patch_for_its_text() -> None:
    generator = torch.Generator().manual_seed(3)
    patches, tokens = (torch.randn(3, number, 5, generator=generator) for number in (4, 6))
    seen, words = torch.rand(3, 4, generator=generator) < 0.7, torch.rand(3, 6, generator=generator) < 0.6
    seen[:, 0] = words[:, 1] = True
    threshold, temperature = 0.2, 0.1

    def cosine(image: int, patch: int, text: int, token: int) -> float:
        a, b = patches[image, patch], tokens[text, token]
        return float(a @ b / (a.norm() * b.norm()))

    def surprise(similarities: list[float], right: int) -> float:
        """The negative log of the right one matching, and the mean of that of the others not matching."""
        matching = [sigmoid((value - threshold) / temperature) for value in similarities]
        others = [-math.log(1 - chance) for number, chance in enumerate(matching) if number != right]
        return -math.log(matching[right]) + sum(others) / len(others)

    total = 0.0
    for pair in range(3):
        shown = {image: [patch for patch in range(4) if seen[image, patch]] for image in range(3)}
        said = {text: [token for token in range(6) if words[text, token]] for text in range(3)}
        of_words = [
            surprise([max(cosine(image, patch, pair, token) for patch in shown[image]) for image in range(3)], pair)
            for token in said[pair]
        ]
        of_patches = [
            surprise([max(cosine(pair, patch, text, token) for token in said[text]) for text in range(3)], pair)
            for patch in shown[pair]
        ]
        total += sum(of_words) / len(of_words) + sum(of_patches) / len(of_patches)
    loss = token_loss(patches, tokens, seen, words, torch.tensor(threshold), temperature)
    assert float(loss) == pytest.approx(total / 3, rel=1e-4)


def test_an_image_keeps_its_least_probable_patch_and_without_masking_every_token_is_read() -> None:
    torch.manual_seed(1)
    nim = NoiseIdentification(NimConfig(encoder=ClipConfig(width=16, layers=1, heads=2)), IMAGE, 12, 10)
    images = torch.randint(0, 256, (4, 32, 32, 3), dtype=torch.uint8)
    described = texts([0, 1], [2, 3], [4, 5], [6, 7])
    drawn = (torch.full((4, 4), -1.0), torch.full((4, described.num_words), -1.0))  # below every probability
    masked, whole = nim(images, described, *drawn), nim(images, described, *drawn, masking=False)
    relevance, _ = nim.relevance(images, described)
    assert torch.equal(~masked.images, F.one_hot(relevance.argmax(dim=1), 4).bool())
    assert masked.words[torch.arange(4), torch.tensor([1, 3, 5, 7])].all()
    assert not whole.images.any()
    assert not whole.words.any()
