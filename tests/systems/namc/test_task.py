"""NAMC as runs: its samples; pre-training learns, parts off and varied; fine-tuning; wrong inputs; its captioner."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from idc.captioning.contract import SearchOptions
from idc.captioning.sources import is_captioner
from idc.config import ConfigError
from idc.data.store import iter_rows
from idc.data.text import Vocabulary, words
from idc.mining.descriptions.template import PairDescription
from idc.nn.captioned_rows import ImageStore
from idc.systems import load_captioner
from idc.systems.namc.captioner import MISMATCH, NamcCaptioner, mismatch
from idc.systems.namc.config import EncoderConfig
from idc.systems.namc.data import (
    CaptionedPairs,
    FeatureCache,
    Tokens,
    collate_described,
    first_description,
    image_tokens,
    load_tokenizer,
    scaled,
    sentence_words,
    texts_of,
)
from idc.systems.namc.model import MaskedImageEncoder
from idc.systems.namc.task import PretrainTask
from idc.training.artifact import read_artifact
from idc.training.context import LocalContext
from idc.training.task import SAMPLES
from idc.vision.image_quality import psnr_ssim
from tests.folders import read_log
from tests.systems.namc.tiny import described_samples, finetune_job, pretrain_job
from tests.systems.procap.world import Images, World, start

WITH_MAP = SearchOptions(change_map=True)


def test_pretraining_learns_with_all_losses(world: World, described: str, tmp_path: Path) -> None:
    start(pretrain_job(world, described, {"train.steps": 60, "train.eval_every": 30}), tmp_path)
    log = read_log(tmp_path / "log.jsonl")
    for name in ("nim", "mir", "fdg"):
        assert np.mean([line[name] for line in log[-5:]]) < 0.9 * np.mean([line[name] for line in log[:5]]), name
    assert np.mean([line["masked_patches"] for line in log]) == pytest.approx(0.2, abs=0.06)
    assert np.mean([line["masked_words"] for line in log]) == pytest.approx(0.15, abs=0.06)
    assert "validation/psnr_mir_raw" in log[-1]
    assert not is_captioner(str(tmp_path / "artifact"))


@pytest.mark.parametrize("settings", [
    {"nim.enabled": False, "mir.enabled": False, "tokenizer": None},
    {"mir.target": "l2", "tokenizer": None, "model.image": {"grid": 4, "cnn": "efficientnet_lite0"}},
    {"exchange": True, "train.precision": "bf16", "share": 0.5, "model.encoder.memory_norm": "batch"},
])  # fmt: skip
def test_parts_can_be_off_or_varied(world: World, described: str, tmp_path: Path, settings: dict[str, Any]) -> None:
    start(pretrain_job(world, described, {"train.steps": 2, **settings}), tmp_path / "pretrain")
    artifact = str(tmp_path / "pretrain" / "artifact")
    start(finetune_job(world, {"train.steps": 2, "pretrained": artifact}), tmp_path / "finetune")
    assert is_captioner(str(tmp_path / "finetune" / "artifact"))


def test_masks_and_their_reconstruction_begin_at_their_step(world: World, described: str, tmp_path: Path) -> None:
    settings = {"nim.masks_from": 3, "nim.token_weight": 1.0, "train.grad_accumulation": 2, "train.log_every": 1}
    start(pretrain_job(world, described, settings), tmp_path)
    log = read_log(tmp_path / "log.jsonl")
    assert [line["step"] for line in log] == [1, 2, 3, 4, 5, 6]
    assert [line["masked_patches"] > 0 for line in log] == [False] * 3 + [True] * 3
    assert ["mir" in line for line in log] == [False] * 3 + [True] * 3
    assert all(line["tokens"] > 0 for line in log)
    assert read_artifact(tmp_path / "artifact").state_dict()["steps"] == 12


def test_an_epoch_has_every_pair_once_with_a_drawn_caption(world: World) -> None:
    vocabulary = Vocabulary.build(text for row in iter_rows(world.pairs) for text in row["captions"])
    data = CaptionedPairs(
        world.pairs, "train", images=ImageStore(64, 8), vocabulary=vocabulary, length=20, seed=0, training=True
    )
    rows = [row["captions"] for row in iter_rows(world.pairs, ["captions"], "train") if row["captions"]]
    assert len(data) == len(rows)
    drawn = {tuple(data.get(0, epoch)["ids"]) for epoch in range(12)}
    assert len(drawn) > 1
    assert drawn <= {tuple(vocabulary.encode(text, 20)) for text in rows[0]}


def test_finetuning_keeps_what_was_learned_and_adds_the_words_of_captions(
    world: World, described: str, tmp_path: Path
) -> None:
    start(pretrain_job(world, described, {"caption_pairs": None, "train.steps": 2}), tmp_path / "pretrain")
    before = read_artifact(tmp_path / "pretrain" / "artifact")
    settings = {"pretrained": str(before.path), "train.steps": 1, "optim.lr": 0.0, "train.keep_best": None}
    start(finetune_job(world, settings), tmp_path / "finetune")
    after = read_artifact(tmp_path / "finetune" / "artifact")
    known = len(before.vocabulary)
    assert after.vocabulary.words[: known - 4] == before.vocabulary.words != after.vocabulary.words
    learned, tuned = before.state_dict(), after.state_dict()
    assert {f"net.{name}" for name in tuned} == {name for name in learned if name.startswith("net.")}
    for name, value in tuned.items():
        assert torch.equal(value[:known] if "word" in name else value, learned[f"net.{name}"]), name


@pytest.mark.parametrize(("settings", "error"), [
    ({"nim.enabled": False}, r"mir\.enabled: without NIM no position is masked"),
    ({"tokenizer": None}, r"tokenizer: required; MIR reconstructs the tokens"),
    ({"mir.target": "l1", "tokenizer": None}, r"mir\.target: l1 needs the features of a frozen CNN"),
    ({"mir.target": "l1"}, r"tokenizer: not used without MIR's discrete reconstruction"),
    ({"train.batch_size": 1}, r"train\.batch_size: 1 pair per micro-batch; the contrastive loss needs at least 2"),
    ({"model.decoder.width": 16}, r"decoder\.width: 16, but it attends to the encoder, whose width is 32"),
])  # fmt: skip
def test_settings_that_do_not_fit_are_refused(
    world: World, described: str, settings: dict[str, Any], error: str
) -> None:
    with pytest.raises(ConfigError, match=error):
        pretrain_job(world, described, settings)


def test_a_tokenizer_of_another_grid_and_a_finetuned_artifact_are_refused(
    world: World, described: str, tmp_path: Path
) -> None:
    image = {"grid": 2, "cnn": "stem", "stem_channels": [8, 8, 8, 8]}
    with pytest.raises(ValueError, match=r"has 4 patches per side, image.grid is 2"):
        start(pretrain_job(world, described, {"model.image": image}), tmp_path / "a")
    start(finetune_job(world, {"train.steps": 1}), tmp_path / "b")
    again = finetune_job(world, {"pretrained": str(tmp_path / "b" / "artifact")})
    with pytest.raises(ValueError, match=r"is a fine-tuned NAMC; give the artifact of jobs/pretrain_namc.py"):
        start(again, tmp_path / "c")


def test_the_quality_of_a_reconstruction_is_that_of_its_pictures(world: World, described: str) -> None:
    data = described_samples(described)
    tokenizer = load_tokenizer(world.tokenizer, pretrain_job(world, described).model.image, torch.device("cpu"))
    for ratio in (0.0, 0.5):
        job = pretrain_job(world, described, {"nim.masking": "random", "nim.image_ratio": ratio})
        torch.manual_seed(0)
        task = PretrainTask(job, None, data.vocabulary, image_tokens(tokenizer), 32, tokenizer).eval()
        assert task.nim is not None
        batch = {**collate_described([data.get(index, 0) for index in range(4)]), SAMPLES: 4}
        measured = task.validate([batch], LocalContext(None))
        tokens = image_tokens(tokenizer)(batch["images"]).long()
        with torch.no_grad():
            denoised = task.nim(batch["images"], texts_of(batch), batch["uniform_images"], batch["uniform_texts"])
            guessed = task._predicted(batch, task.features(batch), denoised).argmax(-1)
            for row, patch in itertools.product(range(8), range(16)):
                if batch["uniform_images"][row, patch] < ratio:
                    tokens[row, patch] = guessed[row, patch]
            shown = tokenizer.decode(tokens).permute(0, 2, 3, 1).mul(255).round().byte().numpy()
        raw = scaled(batch["images"], 32).permute(0, 2, 3, 1).mul(255).round().byte().numpy()
        expected = np.mean([*map(psnr_ssim, raw, shown)], axis=0)
        assert [measured["psnr_mir_raw"], measured["ssim_mir_raw"]] == pytest.approx(expected, rel=1e-3)
        same = measured["psnr_mir_raw"] == measured["psnr_vqgan_raw"]
        assert (measured["psnr_mir_vqgan"] == 100) == same == (not ratio)


def test_the_words_of_a_sentence_are_those_of_the_whole_text() -> None:
    description = PairDescription("shows", "a red cube, and a ball", "has", "a blue cube")
    sentence, numbers = sentence_words(("shows", "has"), [words(description.before), words(description.after)])
    assert sentence == words(description.sentence())
    assert [word for word, (image, _) in zip(sentence, numbers, strict=True) if image == 0] == words(description.before)
    assert [number for image, number in numbers if image == 1] == [0, 1, 2]
    assert first_description(["the cube turned blue", description.sentence()]) == description
    assert first_description(["the cube turned blue"]) is None


def test_exchange_exchanges_images_and_descriptions_by_index_and_epoch_alone(described: str) -> None:
    plain, exchanged = described_samples(described), described_samples(described, exchange=True)
    here, swapped = plain.get(0, 0), 0
    for epoch in range(8):
        sample, again = exchanged.get(0, epoch), exchanged.get(0, epoch)
        assert np.array_equal(sample["uniform_images"], again["uniform_images"])
        assert not epoch or not np.array_equal(sample["uniform_images"], exchanged.get(0, 0)["uniform_images"])
        if sample["keys"] == here["keys"][::-1]:
            swapped += 1
            assert np.array_equal(sample["images"], here["images"][::-1])
            assert sample["texts"] == here["texts"][::-1]
            assert sorted(sample["ids"]) == sorted(here["ids"]) != here["ids"] != sample["ids"]
    assert 0 < swapped < 8


def test_a_share_takes_the_same_pairs_of_any_run(described: str) -> None:
    half, again = (described_samples(described, share=0.5, seed=seed) for seed in (0, 9))
    assert len(half) == 7  # of 14
    assert [row for row, _ in half.described] == [row for row, _ in again.described]


def test_a_folder_without_any_description_is_refused(world: World) -> None:
    with pytest.raises(ValueError, match=r"no pair of split 'train' has a caption that follows the template"):
        described_samples(world.pairs)


def test_pieces_of_a_word_share_its_number() -> None:
    class Pieces:
        bos_token_id, eos_token_id = 90, 91

        def encode(self, word: str, add_special_tokens: bool) -> list[int]:
            assert not add_special_tokens
            return [ord(letter) for letter in word]

    ids, numbers = Tokens(Vocabulary([]), 6, Pieces())(["ab", "c", "defg"])
    assert (ids, numbers) == ([90, 97, 98, 99, 91], [-1, 0, 0, 1, -1])  # the third word does not fit


def test_remembered_features_are_computed_once_and_within_their_room() -> None:
    calls: list[int] = []

    def compute(images: torch.Tensor) -> torch.Tensor:
        calls.append(len(images))
        return images.float().mean(dim=(1, 2))

    images = torch.randint(0, 255, (4, 8, 8, 3), dtype=torch.uint8)
    expected = images.float().mean(dim=(1, 2))
    for megabytes, computed in ((1, [3, 1]), (0, [3, 3, 4])):
        remember = FeatureCache(compute, megabytes)
        for keys in ([b"a", b"b", b"c"], [b"a", b"b", b"c"], [b"a", b"b", b"c", b"d"]):
            assert torch.allclose(remember(images[: len(keys)], keys), expected[: len(keys)], rtol=1e-3)
        assert calls == computed
        calls.clear()


def test_free_captions_are_used_as_they_are_where_they_are_wanted(world: World) -> None:
    captions = [row["captions"][0] for row in iter_rows(world.pairs, ["captions"], "train")]
    vocabulary = Vocabulary.build(captions)
    data = described_samples(world.pairs, vocabulary=vocabulary, free=True, exchange=True)
    assert len(data) == len(captions)
    batch = collate_described([data.get(index, 0) for index in range(3)])
    assert [vocabulary.decode(row) for row in batch["targets"].tolist()] == [
        vocabulary.decode(vocabulary.encode(text)) for text in captions[:3]
    ]
    assert bool((batch["place"] == -1).all())


@pytest.fixture(scope="module")
def runs(world: World, described: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("namc")
    start(pretrain_job(world, described, {"train.steps": 10}), folder / "pretrain")
    settings = {"pretrained": str(folder / "pretrain" / "artifact"), "train.steps": 40, "beams": 3}
    start(finetune_job(world, settings), folder / "finetune")
    return folder


@pytest.fixture(scope="module")
def captioner(runs: Path) -> NamcCaptioner:
    return NamcCaptioner(runs / "finetune" / "artifact")


def test_the_artifact_is_a_captioner_and_that_of_the_pretraining_is_not(
    runs: Path, captioner: NamcCaptioner, images: Images
) -> None:
    loaded = load_captioner(str(captioner.path))
    assert loaded(*images) == [description.best.caption for description in captioner.describe(*images)]
    assert captioner.capabilities == {"map", "score", "sample"}
    with pytest.raises(ValueError, match=r"is pre-trained only and writes no captions; train it with jobs/finetune"):
        load_captioner(str(runs / "pretrain" / "artifact"))


def test_a_batch_gives_what_single_pairs_give(captioner: NamcCaptioner, images: Images) -> None:
    for before, after, description in zip(*images, captioner.describe(*images, WITH_MAP), strict=True):
        (alone,) = captioner.describe([before], [after], WITH_MAP)
        assert alone.best.caption == description.best.caption
        assert description.change_map.shape == (4, 4)
        assert alone.change_map == pytest.approx(description.change_map, abs=1e-5)
        assert description.evidence == {MISMATCH: pytest.approx(float(np.log(description.change_map.max())), abs=1e-4)}
    assert all(description.change_map is None for description in captioner.describe(*images))


def test_the_map_is_what_the_other_image_does_not_hold() -> None:
    before = torch.randn(1, 16, 8)
    moved = torch.randperm(16)
    after = before[:, moved]
    to_before, to_after = torch.eye(16)[moved][None], torch.eye(16)[moved].T[None]
    attention = torch.stack([to_before, to_after])
    assert torch.allclose(mismatch(attention, torch.cat([before, after])), torch.zeros(1, 16), atol=1e-6)
    after[0, 5] += 1  # a new thing, and what was there is gone from where before looks for it
    change_map = mismatch(attention, torch.cat([before, after]))
    assert set((change_map[0] > 1e-6).nonzero().flatten().tolist()) == {5, int(moved[5])}
    assert change_map[0, 5] == pytest.approx(1 - np.exp(-1), abs=1e-5)


@torch.no_grad()
def test_co_attention_is_that_of_after_to_before_and_of_before_to_after() -> None:
    torch.manual_seed(0)
    encoder = MaskedImageEncoder(EncoderConfig(width=16, layers=1, heads=1), 8, 4).eval()
    (layer,) = encoder.layers
    embedded = encoder.embed(torch.randn(6, 4, 8))
    before, after = embedded.chunk(2)
    looks = encoder.co_attention(embedded)
    assert torch.allclose(looks.sum(dim=-1), torch.ones(2, 3, 4))
    for look, x, other in zip(looks, (after, before), (before, after), strict=True):
        queries, memory = layer.norm_cross(layer.within(x, None)), layer.norm_memory(other)
        values = layer.attend_other.kv(memory).chunk(2, dim=-1)[1]
        expected = layer.attend_other(queries, memory, None)
        assert torch.allclose(layer.attend_other.out(look @ values), expected, atol=1e-5)
