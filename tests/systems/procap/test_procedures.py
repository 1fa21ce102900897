"""Pairs to procedures: confidence (eq. 2) and the draw of key frames; what is stored, rejected and refused."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from idc.config import ConfigError, load
from idc.data.images import decode_image, resize_image
from idc.data.pipeline import run_local
from idc.data.store import iter_rows, read_manifest, read_rejects
from idc.data.text import BOS, EOS, Vocabulary
from idc.systems.procap.procedures.build import build
from idc.systems.procap.procedures.config import ProceduresConfig
from idc.systems.procap.procedures.similarity import (
    Sampling,
    confidence,
    dinov2_similarity,
    evenly_spaced,
    pair_encoder_similarity,
    pair_rng,
    sample_keyframes,
    tokenizer_similarity,
)
from idc.systems.procap.procedures.stages import stages
from idc.vision.interpolation.middle_frames import flow_middle, interpolate, linear_blend, make_middle
from idc.vision.tokenizer.model import ImageTokenizer, to_images
from tests.vision.interpolation.test_vfiformer import save_tiny
from tests.vision.pair_encoder.test_pair_encoder import tiny
from tests.vision.pair_encoder.test_pair_encoder import tiny as tiny_pair_encoder
from tests.vision.scenes import TINY, pair_row, scene, write_pairs
from tests.vision.tiny_models import save_tiny_dinov2

run = partial(run_local, progress=False)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> str:
    torch.manual_seed(0)
    model = ImageTokenizer(TINY)
    model.codebook.copy_(0.3 * torch.randn(model.codebook.shape))
    folder = tmp_path_factory.mktemp("tokenizer")
    model.save(folder)
    return str(folder)


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> str:
    rows = [pair_row(n, ("train", "train", "val", "test")[n % 4]) for n in range(12)]
    return write_pairs(tmp_path_factory.mktemp("pairs") / "pairs", rows, rows_per_part=5)


def config(pairs: str, tokenizer: str, **settings: Any) -> ProceduresConfig:
    return ProceduresConfig(**{"pairs": pairs, "tokenizer": tokenizer, "depth": 2, "pairs_per_chunk": 4, **settings})


def rows_of(path: Path | str) -> dict[str, dict[str, Any]]:
    return {row["pair_id"]: row for row in iter_rows(path)}


@pytest.fixture(scope="module")
def built(pairs: str, tokenizer: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    path = str(tmp_path_factory.mktemp("built") / "procedures")
    build(config(pairs, tokenizer, store_features=True, frames_per_batch=10), path, run)
    return path


def test_what_is_stored(built: str, pairs: str, tokenizer: str) -> None:
    manifest = read_manifest(built, kind="procedures")
    assert manifest.rows_by_split == {"test": 3, "train": 6, "val": 3}
    extra = manifest.extra
    sizes = {"num_frames": 5, "image_size": 32, "grid": [4, 4]}
    assert {**extra, **sizes, "feature_dim": 16, "codebook_size": 32, "num_keyframes": 2} == extra
    model, vocabulary = ImageTokenizer.load(tokenizer), Vocabulary(extra["vocabulary"])
    sources = rows_of(pairs)
    assert list(rows_of(built)) == list(sources)  # in order, nothing lost
    for name, row in rows_of(built).items():
        source = sources[name]
        for column in ("split", "captions", "change_type", "mask", "meta"):
            assert row[column] == source[column]
        frames = np.stack([decode_image(data) for data in row["frames"]])
        before, after = decode_image(source["before"]), decode_image(source["after"])
        assert (frames == interpolate(before, after, 2, flow_middle)).all()
        with torch.no_grad():
            tokens, features = model.tokens_and_features(to_images(frames))
        assert (np.frombuffer(row["tokens"], np.int16).reshape(5, 16) == tokens.numpy()).mean() > 0.99
        stored = np.frombuffer(row["features"], np.float16).reshape(5, 16, 16)
        np.testing.assert_allclose(stored, features.numpy(), atol=5e-3)
        assert len(row["confidence"]) == 3
        assert row["keyframes"] == sorted(set(row["keyframes"]))
        assert set(row["keyframes"]) <= {1, 2, 3}
        for ids, caption in zip(row["caption_ids"], row["captions"], strict=True):
            assert (ids[0], ids[-1]) == (BOS, EOS)
            assert row["split"] != "train" or vocabulary.decode(ids) == caption


def test_vocabulary_is_of_the_training_captions_or_of_other_procedures(tokenizer: str, tmp_path: Path) -> None:
    rows = [pair_row(0, "train"), pair_row(1, "test", captions=["zebra crossing"])]
    folder = write_pairs(tmp_path / "pairs", rows)
    words = build(config(folder, tokenizer), str(tmp_path / "out"), run).extra["vocabulary"]
    assert "zebra" not in words
    assert rows_of(tmp_path / "out")["p001"]["caption_ids"] == [[BOS, 3, 3, EOS]]
    others = write_pairs(tmp_path / "others", [pair_row(0, "train", captions=["zebra crossing"])])
    taken = config(others, tokenizer, vocabulary=str(tmp_path / "out"))
    assert build(taken, str(tmp_path / "other"), run).extra["vocabulary"] == words


def test_bad_images_are_rejected_and_nothing_else_is_lost(tokenizer: str, tmp_path: Path) -> None:
    rows = [pair_row(n, "train") for n in range(4)]
    rows[1]["after"] = rows[1]["after"][:300]
    rows[2]["before"] = b"this is a text file"
    settings = config(write_pairs(tmp_path / "pairs", rows), tokenizer, max_reject_share=0.5)
    build(settings, str(tmp_path / "out"), run)
    assert list(rows_of(tmp_path / "out")) == ["p000", "p003"]
    first, second = read_rejects(tmp_path / "out")
    assert (first.row_id, first.code, second.row_id, second.code) == (
        "p001", "truncated image", "p002", "not an image",
    )  # fmt: skip
    assert "after" in first.reason


def test_a_folder_of_other_settings_is_kept_and_settings_that_do_not_count_are_none(
    pairs: str, tokenizer: str, tmp_path: Path
) -> None:
    uniform = config(pairs, tokenizer, depth=3, strategy="uniform")
    first = build(uniform, str(tmp_path / "out"), run)
    assert {tuple(row["keyframes"]) for row in rows_of(tmp_path / "out").values()} == {(3, 5)}
    ignored = {"temperature": 0.5, "similarity": "dinov2", "mix": 0.1, "actors": 3, "frames_per_batch": 7}
    assert build(uniform.model_copy(update=ignored), str(tmp_path / "out"), run) == first
    for other in ({"strategy": "random"}, {"seed": 1}):
        with pytest.raises(ValueError, match="overwrite"):
            build(uniform.model_copy(update=other), str(tmp_path / "out"), run)
    build(uniform.model_copy(update={"seed": 1}), str(tmp_path / "out"), run, overwrite=True)


def test_a_pair_encoder_gives_the_confidence(pairs: str, tokenizer: str, tmp_path: Path) -> None:
    tiny_pair_encoder().save(tmp_path / "encoder")
    sampling = {"strategy": "visual_text", "pair_encoder": str(tmp_path / "encoder"), "temperature": 1e-5}
    settings = config(pairs, tokenizer, **sampling)
    build(settings, str(tmp_path / "out"), run)
    for row in rows_of(tmp_path / "out").values():
        frames = np.stack([decode_image(data) for data in row["frames"]])
        expected = Sampling(settings)(frames, np.zeros((5, 1, 1)), row["captions"])
        np.testing.assert_allclose(row["confidence"], expected, atol=0.02)
    assert np.ptp(rows_of(tmp_path / "out")["p000"]["confidence"]) > 0.1


def test_captions_to_compare_with_are_required_before_the_build(tokenizer: str, tmp_path: Path) -> None:
    silent = write_pairs(tmp_path / "silent", [pair_row(n, "train", captions=[]) for n in range(2)])
    with pytest.raises(ValueError, match=r"no pair of .* has one; take build.strategy=visual"):
        build(config(silent, tokenizer, strategy="visual_text", pair_encoder=tokenizer), str(tmp_path / "out"), run)
    assert not (tmp_path / "out").exists()


def test_the_frames_are_vfiformers_whose_weights_are_loaded_before_the_build(tmp_path: Path) -> None:
    torch.manual_seed(0)
    ImageTokenizer(TINY).save(tmp_path / "tokenizer")
    pairs = write_pairs(tmp_path / "pairs", [pair_row(n, "train") for n in range(2)])
    settings = {"tokenizer": str(tmp_path / "tokenizer"), "depth": 2, "interpolation": "vfiformer"}
    config = ProceduresConfig(pairs=pairs, interpolation_weights=save_tiny(tmp_path / "net.pth"), **settings)
    run = partial(run_local, progress=False)
    manifest = build(config, str(tmp_path / "out"), run)
    assert manifest.inputs["interpolation_weights"] == config.interpolation_weights
    middle = make_middle("vfiformer", config.interpolation_weights)
    for row in iter_rows(str(tmp_path / "out")):
        frames = np.stack([decode_image(data) for data in row["frames"]])
        assert (frames == interpolate(frames[0], frames[-1], 2, middle)).all()
    (tmp_path / "net.pth").write_bytes(b"damaged")
    with pytest.raises(ValueError, match="not a checkpoint"):
        build(config, str(tmp_path / "more"), run)
    assert not (tmp_path / "more").exists()


def test_with_a_gpu_vfiformer_shares_the_tokenizers_process() -> None:
    def needs(**settings: object) -> list[tuple[float, float, object]]:
        config = ProceduresConfig.model_validate({"pairs": "p", "tokenizer": "t", "actors": 3, **settings})
        return [(stage.num_cpus, stage.num_gpus, stage.concurrency) for stage in stages(config, TINY, Vocabulary([]))]

    vfiformer = {"interpolation": "vfiformer", "interpolation_weights": "w"}
    first, second, third, *_ = needs(gpus_per_actor=1.0, **vfiformer)
    assert first == second == (1.0, 1.0, 1)
    assert third == (1.0, 0.0, 3)
    assert [gpus for _, gpus, _ in needs(gpus_per_actor=1.0)] == [0, 1, 0, 0]
    assert len(set(needs(**vfiformer))) == 1


def test_weights_and_interpolation_go_together() -> None:
    for settings, message in (
        ({"interpolation": "vfiformer"}, "interpolation=vfiformer needs them"),
        ({"interpolation_weights": "w"}, "interpolation=dis has none; set interpolation=vfiformer"),
    ):
        with pytest.raises(ConfigError, match=message):
            load(ProceduresConfig, None, {"pairs": "p", "tokenizer": "t", **settings})


def test_confidence_is_equation_2() -> None:
    s_before, s_after = np.array([0.9, 0.5, 0.2]), np.array([0.1, 0.5, 0.8])
    squares = np.array([0.64, 0.0, 0.36])
    for temperature in (1.0, 0.1):
        expected = 1 - np.exp(squares / temperature) / np.exp(squares / temperature).sum()
        np.testing.assert_allclose(confidence(np.square(s_before - s_after), temperature), expected, rtol=1e-6)
    np.testing.assert_allclose(confidence(squares[:2], 1e-9), [0, 1])  # no overflow


def test_the_middle_of_a_change_is_the_most_confident() -> None:
    frames = red_to_blue()
    features = frames[:, ::4, ::4].reshape(9, -1, 3).astype(np.float16)
    ends = tokenizer_similarity(frames, features, [])
    assert (np.diff(ends[0]) < 0).all()
    assert (np.diff(ends[1]) > 0).all()
    temperature = float(np.square(ends[0] - ends[1]).max())
    weights = sampling(strategy="visual", temperature=temperature)(frames, features, ["unused"])
    np.testing.assert_array_equal(weights, confidence(np.square(ends[0].astype(np.float64) - ends[1]), temperature))
    assert weights[0] < weights[1] < weights[2] < weights[3] == weights.max()
    alike = sampling(strategy="visual")(frames[[0] * 5], features[[0] * 5], [])
    np.testing.assert_allclose(alike, 1 - 1 / 3, rtol=1e-6)


def test_keyframes_follow_the_confidence_sorted_and_distinct() -> None:
    rng = np.random.default_rng(0)
    drawn = [sample_keyframes(np.array([0.0, 1.0, 3.0, 0.0, 4.0]), 1, rng)[0] for _ in range(4000)]
    shares = np.bincount(drawn, minlength=6) / 4000
    np.testing.assert_allclose(shares, [0, 0, 1 / 8, 3 / 8, 0, 4 / 8], atol=0.03)
    for seed in range(50):
        several = sample_keyframes(np.ones(7), 3, np.random.default_rng(seed))
        assert several == sorted(set(several) & set(range(1, 8)))
        assert len(several) == 3
    assert sample_keyframes(np.zeros(3), 3, rng) == [1, 2, 3]
    with pytest.raises(ValueError, match="4 key frames cannot be drawn from 3"):
        sample_keyframes(np.ones(3), 4, rng)


def test_a_pairs_draw_depends_on_seed_and_id_alone() -> None:
    draws = {(seed, name): pair_rng(seed, name).random() for seed in (0, 1) for name in ("a", "b")}
    assert len(set(draws.values())) == 4
    assert pair_rng(1, "b").random() == draws[1, "b"]


def sampling(**settings: Any) -> Sampling:
    return Sampling(ProceduresConfig(pairs="p", tokenizer="t", **settings))


def red_to_blue() -> np.ndarray:
    return interpolate(scene("red"), scene("blue"), 3, linear_blend)


def test_random_leaves_all_frames_alike_and_uniform_draws_none_but_its_own() -> None:
    frames, features = red_to_blue(), np.zeros((9, 4, 2))
    np.testing.assert_allclose(sampling(strategy="random")(frames, features, []), np.full(7, 6 / 7))
    for k, chosen in ((1, [4]), (2, [3, 5]), (4, [2, 3, 5, 6]), (7, [1, 2, 3, 4, 5, 6, 7])):
        weights = sampling(strategy="uniform", num_keyframes=k)(frames, features, [])
        assert sample_keyframes(weights, k, np.random.default_rng(k)) == chosen
    for between in (1, 3, 7, 15):
        for k in range(1, between + 1):
            chosen = evenly_spaced(between, k)
            assert chosen == sorted(set(chosen) & set(range(1, between + 1))), (between, k)
            assert len(chosen) == k


def test_dinov2_compares_class_tokens(tmp_path: Path) -> None:
    model = save_tiny_dinov2(tmp_path / "dinov2")
    frames = red_to_blue()[:4]
    s_before, s_after = dinov2_similarity(str(tmp_path / "dinov2"))(frames, np.zeros((4, 1, 1)), [])
    vectors = []
    for frame in frames:
        pixels = torch.tensor(resize_image(frame, 224)).permute(2, 0, 1)[None] / 255
        mean, std = torch.tensor([[0.485, 0.456, 0.406], [0.229, 0.224, 0.225]])[..., None, None]
        with torch.no_grad():
            vectors.append(model(pixel_values=(pixels - mean) / std).last_hidden_state[0, 0])
    expected = [[float(torch.cosine_similarity(vectors[end], vectors[n], dim=0)) for n in (1, 2)] for end in (0, 3)]
    np.testing.assert_allclose([s_before, s_after], expected, atol=1e-5)
    with pytest.raises(ValueError, match=r"dinov2=.*nowhere.* cannot be loaded as Dinov2Model"):
        dinov2_similarity(str(tmp_path / "nowhere"))


def test_visual_text_is_equation_12_and_mixed_is_both(tmp_path: Path) -> None:
    encoder = tiny()
    encoder.save(tmp_path / "pairs")
    frames, captions = red_to_blue(), ["the red square became blue", "the blue square"]
    features = frames[:, ::4, ::4].reshape(9, -1, 3).astype(np.float16)
    text = pair_encoder_similarity(str(tmp_path / "pairs"))(frames, features, captions)
    texts = encoder.encode_texts(captions)
    first = encoder.encode_pairs([frames[0]], [frames[3]]) @ texts.T
    second = encoder.encode_pairs([frames[3]], [frames[8]]) @ texts.T
    np.testing.assert_allclose([text[0][2], text[1][2]], [first.mean(), second.mean()], atol=1e-5)

    folder = str(tmp_path / "pairs")
    alone = sampling(strategy="visual_text", pair_encoder=folder, temperature=0.01)
    expected = confidence(np.square(text[0].astype(np.float64) - text[1]), 0.01)
    np.testing.assert_array_equal(alone(frames, features, captions), expected)
    both = sampling(strategy="mixed", pair_encoder=folder, mix=0.4)(frames, features, captions)
    parts = []
    for s_before, s_after in (text, tokenizer_similarity(frames, features, [])):
        square = np.square(s_before.astype(np.float64) - s_after)
        parts.append((square - square.min()) / (square.max() - square.min()))
    shares = np.exp(0.4 * parts[0] + 0.6 * parts[1])
    np.testing.assert_allclose(both, 1 - shares / shares.sum(), atol=1e-4)
    for strategy in (alone, sampling(strategy="mixed", pair_encoder=folder, mix=0.5)):
        np.testing.assert_allclose(strategy(frames, features, []), np.full(7, 6 / 7))  # no caption, nothing known
