"""The losses of pre-training and fine-tuning against a second, naive implementation; what each loss trains; sizes."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import CLIPConfig, CLIPModel

from idc.config import load
from idc.data.store import iter_rows
from idc.data.text import Vocabulary
from idc.nn.captioned_rows import ImageStore
from idc.systems.namc.config import ClipConfig, ImageConfig, ModelConfig, NimConfig
from idc.systems.namc.data import CaptionedPairs, collate_captioned, collate_described, texts_of
from idc.systems.namc.model import NamcNet, PretrainHeads
from idc.systems.namc.nim import DualEncoder, NoiseIdentification, Texts, build_clip, relevance, token_loss
from idc.systems.namc.task import FinetuneTask, PretrainTask
from idc.vision.pair_encoder.model import MEAN, STD
from tests.nn.naive import log_probability, sigmoid
from tests.systems.namc.naive import Captioner, Pretraining
from tests.systems.namc.tiny import MODEL, described_samples, finetune_job, pretrain_job
from tests.systems.procap.naive import shaken
from tests.systems.procap.world import World

PAIRS = 2
CODES = 32


class FrozenGrid:
    """In the place of a frozen CNN: the mean colours of patches, and their squares."""

    channels = 6

    def __call__(self, images_NHWC: Tensor) -> Tensor:
        pixels = images_NHWC.float() / 255
        count, side = len(pixels), pixels.shape[1] // 16
        means = pixels.unflatten(2, (side, 16)).unflatten(1, (side, 16)).mean(dim=(2, 4)).view(count, -1, 3)
        return torch.cat([means, means.square()], dim=-1)


def standardised(images_NHWC: Tensor) -> Tensor:
    """What the task makes of the grid: mean 0 and deviation 1 at each position, stored in float16."""
    features = FrozenGrid()(images_NHWC)
    centred = features - features.mean(dim=-1, keepdim=True)
    return (centred / (centred.square().mean(dim=-1, keepdim=True) + 1e-5).sqrt()).half().float()


def codes_of(images_NHWC: Tensor) -> Tensor:
    return images_NHWC.flatten(1)[:, 5:5 + 16 * 7:7].long() % CODES  # fmt: skip


def pretraining(
    world: World, described: str, settings: dict[str, Any]
) -> tuple[PretrainTask, list[dict[str, Any]], dict[str, Any]]:
    ratios = {"nim.image_ratio": 0.4, "nim.text_ratio": 0.4, "nim.temperature": 0.2}
    job = pretrain_job(world, described, {**ratios, **settings})
    data = described_samples(described)
    torch.manual_seed(0)
    frozen: Any = FrozenGrid() if job.model.image.cnn != "stem" else None
    task = PretrainTask(job, frozen, data.vocabulary, codes_of if job.tokenizer else None, CODES).eval()
    shaken(task, 0.1)
    samples = [data.get(index, 0) for index in range(PAIRS)]
    return task, samples, dict(collate_described(samples))


CNN = {"tokenizer": None, "model.image": {"grid": 4, "cnn": "efficientnet_lite0"}}
VARIANTS: dict[str, dict[str, Any]] = {
    "as in the paper": {},
    "lost words are no targets, raw descriptions, L1 of a frozen CNN": {
        "masked_words": "skip", "nim.align_texts": "raw", "mir.target": "l1", **CNN,
    },
    "InfoNCE, raw images, L2 of a frozen CNN": {
        "nim.loss": "infonce", "nim.align_images": "raw", "mir.target": "l2", **CNN,
    },
    "random masks, memory normalised over the batch, without MIR": {
        "nim.masking": "random", "model.encoder": {**MODEL["encoder"], "memory_norm": "batch"},
        "mir.enabled": False, "tokenizer": None,
    },
}  # fmt: skip


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_losses_are_those_of_the_equations(variant: str, world: World, described: str) -> None:
    task, samples, batch = pretraining(world, described, VARIANTS[variant])
    stem = task.job.model.image.cnn == "stem"
    expected = Pretraining(task, task.job, codes_of, None if stem else standardised).losses(samples)
    total, logs = task.train().training_step(batch)
    assert 0.1 < float(logs["masked_patches"]) < 0.7, "some, not all"
    assert 0.1 < float(logs["masked_words"]) < 0.7
    names = {"nim", "mir", "fdg"} if task.job.mir.enabled else {"nim", "fdg"}
    assert names == {"nim", "mir", "fdg"} & logs.keys()
    for name in (*sorted(names), "masked_patches", "masked_words"):
        assert float(logs[name]) == pytest.approx(expected[name], rel=1e-5), name
    assert float(total.detach()) == pytest.approx(sum(expected[name] for name in names), rel=1e-5), "eq. 2"


def test_the_losses_train_what_the_paper_lets_them(world: World, described: str) -> None:
    """L_MIR also the text encoder, of which its keys and values are made; L_FDG encoder and decoder, nothing of NIM.
    Masks have no gradient."""
    task, _, batch = pretraining(world, described, {})
    assert task.nim is not None

    def trained(loss: Tensor) -> set[str]:
        task.zero_grad()
        loss.backward(retain_graph=True)
        return {name for name, p in task.named_parameters() if p.grad is not None and float(p.grad.abs().sum()) > 0}

    features = task.features(batch)
    denoised = task.nim(batch["images"], texts_of(batch), batch["uniform_images"], batch["uniform_texts"])
    by_nim = trained(denoised.loss)
    by_mir = trained(task._reconstruction(batch, features, denoised)[0])
    by_fdg = trained(task._generation(batch, features, denoised)[0])
    assert {name.split(".")[0] for name in by_nim} == {"nim"}
    texts_of_nim = {name for name in by_mir if name.startswith("nim.")}
    assert {"nim.encoder.text_mask", "nim.encoder.clip.text_projection.weight"} <= texts_of_nim
    assert all("text" in name for name in texts_of_nim)
    assert "net.encoder.join.weight" in by_fdg - by_mir
    assert {name.split(".")[0] for name in by_fdg} == {"net"}
    assert "net.encoder.layers.0.attend_other.kv.weight" in by_mir & by_fdg, "one Transformer does both"


@pytest.mark.parametrize("references", ["drawn", "all"])
def test_finetuning_is_the_mean_over_words_then_captions_then_pairs(world: World, references: str) -> None:
    job = finetune_job(world, {"references": references})
    assert job.model is not None
    vocabulary = Vocabulary.build(text for row in iter_rows(world.pairs) for text in row["captions"])
    data = CaptionedPairs(
        world.pairs, "train", images=ImageStore(64, 8), vocabulary=vocabulary, length=20, seed=0, training=True,
        references=references,
    )  # fmt: skip
    torch.manual_seed(0)
    task = FinetuneTask(job, job.model, None, vocabulary).eval()
    shaken(task, 0.1)
    samples = [data.get(index, 0) for index in range(PAIRS)]
    captions = [sample.get("captions", [sample.get("ids")]) for sample in samples]
    if references == "all":
        del captions[0][1:]  # pairs with fewer captions are padded
    naive, total = Captioner(task, task.net.config), 0.0
    for sample, texts in zip(samples, captions, strict=True):
        features = [naive.features(image) for image in sample["images"]]
        memory = naive.compared(features, [[False] * len(positions) for positions in features])
        for ids in texts:
            each = [log_probability(*pair) for pair in zip(naive.words(ids[:-1], memory), ids[1:], strict=True)]
            total -= sum(each) / len(each) / len(texts) / PAIRS
    loss = task.training_step(dict(collate_captioned(samples)))[0].detach()
    assert float(loss) == pytest.approx(total, rel=1e-5)


def test_the_sizes_of_table_5() -> None:
    """64.2 million with BERT's word pieces, tied, and MIR's classifier; without ResNet-101."""
    for length, millions in ((24, 64.21), (96, 64.27)):
        model = load(ModelConfig, None, {"decoder.max_length": length})
        with torch.device("meta"):
            net, heads = NamcNet(model, 1024, 30_522), PretrainHeads(512, model.encoder.width, 1024)
        size = sum(p.numel() for p in [*net.parameters(), *heads.predict.parameters()])
        assert round(size / 1e6, 2) == millions


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
