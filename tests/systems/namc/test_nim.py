"""NIM's equations: relevance, probabilities, masks, the contrastive losses, and what is masked in the dual encoder."""

from __future__ import annotations

import math

import pytest
import torch
from transformers import CLIPConfig, CLIPModel

from idc.systems.namc.config import ClipConfig, ImageConfig, NimConfig
from idc.systems.namc.nim import (
    DualEncoder,
    Encoded,
    NoiseIdentification,
    Texts,
    build_clip,
    contrastive_loss,
    draw_masks,
    mask_probabilities,
    relevance,
    token_loss,
    words_exist,
)
from idc.vision.pair_encoder.model import MEAN, STD

IMAGE = ImageConfig(grid=2, cnn="stem")


def texts(*rows: list[int]) -> Texts:
    """One text per list of word numbers, a token each, between a begin and an end token."""
    longest = max(map(len, rows)) + 2
    ids = torch.tensor([[1, *(word + 4 for word in row), 2, *[0] * (longest - len(row) - 2)] for row in rows])
    words = torch.tensor([[-1, *row, -1, *[-1] * (longest - len(row) - 2)] for row in rows])
    return Texts(ids, words, torch.tensor([len(row) + 1 for row in rows]), max(max(row) for row in rows) + 1)


def encoder(**settings: object) -> DualEncoder:
    torch.manual_seed(0)
    config = NimConfig(encoder=ClipConfig(width=16, layers=2, heads=2), **settings)  # type: ignore[arg-type]
    return DualEncoder(build_clip(config, IMAGE, 12, 10)).eval()


def test_relevance_is_the_largest_cosine_with_a_token_of_the_other_modality() -> None:
    patches = torch.tensor([[[2.0, 0.0], [0.0, 3.0], [-1.0, 0.0]]])
    tokens = torch.tensor([[[9.0, 9.0], [1.0, 0.0], [1.0, 1.0], [9.0, -9.0]]])  # begin, two words, end
    of_patches, of_words = relevance(patches, tokens, texts([0, 1]))
    half = math.sqrt(0.5)
    assert torch.allclose(of_patches, torch.tensor([[1.0, half, -half]]), atol=1e-6)
    assert torch.allclose(of_words, torch.tensor([[1.0, half]]), atol=1e-6)


def test_a_word_has_the_mean_relevance_of_its_pieces() -> None:
    patches = torch.tensor([[[1.0, 0.0]]])
    tokens = torch.tensor([[[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [0.0, 0.0]]])
    pieces = Texts(torch.tensor([[1, 5, 6, 7, 2]]), torch.tensor([[-1, 0, 0, 1, -1]]), torch.tensor([4]), 2)
    assert torch.allclose(relevance(patches, tokens, pieces)[1], torch.tensor([[0.5, -1.0]]))


def test_mask_probabilities_are_the_ratio_plus_the_centred_irrelevance() -> None:
    found = mask_probabilities(
        torch.tensor([[0.9, 0.5, 0.1, 7.0]]), torch.tensor([[True, True, True, False]]), 0.2, "noise"
    )
    assert torch.allclose(found, torch.tensor([[0.0, 0.2, 0.6, 0.0]]), atol=1e-6)  # -0.2 is clipped, padding is 0
    alike = mask_probabilities(torch.full((1, 3), 0.4), torch.ones(1, 3, dtype=torch.bool), 0.15, "noise")
    assert torch.allclose(alike, torch.full((1, 3), 0.15))
    drawn_alike = mask_probabilities(torch.rand(1, 3), torch.tensor([[True, True, False]]), 0.3, "random")
    assert torch.allclose(drawn_alike, torch.tensor([[0.3, 0.3, 0.0]]))


def test_masks_are_drawn_by_the_given_numbers_and_an_image_keeps_a_patch() -> None:
    images, words = draw_masks(
        torch.tensor([[1.0, 0.9, 1.0], [0.5, 0.5, 0.0]]), torch.tensor([[0.4], [0.0]]),
        torch.tensor([[0.1, 0.1, 0.1], [0.4, 0.6, 0.0]]), torch.tensor([[0.3], [0.0]]),
    )  # fmt: skip
    assert images.tolist() == [[True, False, True], [True, False, False]]
    assert words.tolist() == [[True], [False]]


def test_the_matching_loss_is_the_divergence_of_the_modeled_from_the_true_distribution() -> None:
    image, text = torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([[1.0, 0.0], [0.6, 0.8]])
    tau, epsilon, total = 0.5, 1e-8, 0.0
    cosines = [[1.0, 0.6], [0.0, 0.8]]
    for logits in (cosines, [list(column) for column in zip(*cosines, strict=True)]):
        for row, values in enumerate(logits):
            weights = [math.exp(value / tau) for value in values]
            for column, weight in enumerate(weights):
                p = weight / sum(weights)
                total += p * (math.log(p) - math.log((row == column) + epsilon)) / 2
    assert float(contrastive_loss(image, text, tau, "sdm")) == pytest.approx(total, rel=1e-5)
    expected = (
        sum(
            math.log(sum(math.exp(v / tau) for v in values)) - values[row] / tau
            for logits in (cosines, [list(column) for column in zip(*cosines, strict=True)])
            for row, values in enumerate(logits)
        )
        / 2
    )
    assert float(contrastive_loss(image, text, tau, "infonce")) == pytest.approx(expected, rel=1e-5)


@torch.no_grad()
def test_without_masks_it_is_clip_of_transformers(tmp_path: object) -> None:
    sizes = {"hidden_size": 16, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    torch.manual_seed(1)
    clip = CLIPModel(
        CLIPConfig(
            text_config={**sizes, "vocab_size": 12, "max_position_embeddings": 10, "eos_token_id": 2},
            vision_config={**sizes, "image_size": 32, "patch_size": 16},
            projection_dim=16,
        )
    ).eval()
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


@torch.no_grad()
def test_the_content_of_what_is_masked_has_no_influence() -> None:
    dual = encoder()
    pixels = torch.randint(0, 256, (1, 32, 32, 3), dtype=torch.uint8)
    other = pixels.clone()
    other[:, 16:, :16] = 0  # the third patch
    masked = torch.tensor([[False, False, True, False]])
    assert torch.equal(dual.images(pixels, masked).tokens, dual.images(other, masked).tokens)
    assert not torch.allclose(dual.images(pixels).tokens, dual.images(other).tokens)
    assert not torch.allclose(dual.images(pixels, masked).tokens, dual.images(pixels).tokens)
    first, second = texts([0, 1, 2]), texts([0, 1, 2])
    second.ids[0, 2] = 9
    lost = torch.tensor([[False, True, False]])
    assert torch.equal(dual.texts(first, lost).tokens, dual.texts(second, lost).tokens)
    assert not torch.allclose(dual.texts(first).whole, dual.texts(second).whole)


@torch.no_grad()
def test_padding_of_a_text_has_no_influence() -> None:
    dual = encoder()
    short, padded = texts([0, 1]), texts([0, 1], [0, 1, 2, 3])
    assert torch.allclose(dual.texts(short).whole[0], dual.texts(padded).whole[0], atol=1e-6)
    assert words_exist(padded).tolist() == [[True, True, False, False], [True] * 4]


def test_random_masking_reaches_its_ratios_and_noise_masking_follows_the_irrelevance() -> None:
    config = NimConfig(
        encoder=ClipConfig(width=16, layers=1, heads=2), masking="random", image_ratio=0.3, text_ratio=0.5
    )
    nim = NoiseIdentification(config, IMAGE, 12, 10)
    torch.manual_seed(0)
    read = texts(*[[0, 1, 2, 3]] * 400)
    pixels = torch.randint(0, 256, (400, 32, 32, 3), dtype=torch.uint8)
    images, words = nim.masks(pixels, read, torch.rand(400, 4), torch.rand(400, 4))
    assert float(images.float().mean()) == pytest.approx(0.3, abs=0.04)
    assert float(words.float().mean()) == pytest.approx(0.5, abs=0.04)
    noise = NoiseIdentification(config.model_copy(update={"masking": "noise"}), IMAGE, 12, 10)
    of_images, of_words = noise.relevance(pixels, read)
    images, words = noise.masks(pixels, read, torch.rand(400, 4), torch.rand(400, 4))
    for mask, values in ((images, of_images), (words, of_words)):
        assert float(values[mask].mean()) < float(values[~mask].mean())


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
        matching = [1 / (1 + math.exp(-(value - threshold) / temperature)) for value in similarities]
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


@pytest.mark.parametrize("weight", [0.0, 0.5])
def test_patches_learn_their_relevance_by_the_loss_of_tokens_alone(weight: float) -> None:
    torch.manual_seed(1)
    config = NimConfig(encoder=ClipConfig(width=16, layers=1, heads=2), token_weight=weight)
    nim = NoiseIdentification(config, IMAGE, 12, 10)
    patches: list[torch.Tensor] = []
    encode = nim.encoder.images

    def kept(*args: torch.Tensor) -> Encoded:
        encoded = encode(*args)
        if encoded.tokens.requires_grad:
            encoded.tokens.retain_grad()
            patches.append(encoded.tokens)
        return encoded

    nim.encoder.images = kept  # type: ignore[assignment]
    images = torch.randint(0, 256, (4, 32, 32, 3), dtype=torch.uint8)
    described = texts([0, 1], [2, 3], [4, 5], [6, 7])
    denoised = nim(images, described, torch.ones(4, 4), torch.ones(4, described.num_words))
    (denoised.loss + weight * denoised.token_loss).backward()
    (tokens,) = patches
    assert (tokens.grad is not None and bool(tokens.grad.any())) == bool(weight)
    assert (nim.threshold is None) == (not weight)


def test_without_masking_every_token_is_read() -> None:
    torch.manual_seed(1)
    nim = NoiseIdentification(NimConfig(encoder=ClipConfig(width=16, layers=1, heads=2)), IMAGE, 12, 10)
    images = torch.randint(0, 256, (4, 32, 32, 3), dtype=torch.uint8)
    described = texts([0, 1], [2, 3], [4, 5], [6, 7])
    drawn = (torch.zeros(4, 4), torch.zeros(4, described.num_words))  # below every probability
    masked, whole = nim(images, described, *drawn), nim(images, described, *drawn, masking=False)
    assert masked.images.any()
    assert masked.words.any()
    assert not whole.images.any()
    assert not whole.words.any()
    assert torch.equal(whole.text, nim.encoder.texts(described).tokens)
