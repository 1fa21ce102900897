"""Pairs to procedures: what is stored, rejected and refused, and that it does not depend on the cutting."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from idc.data.images import decode_image
from idc.data.pipeline import run_local
from idc.data.store import iter_rows, read_manifest, read_rejects
from idc.data.text import BOS, EOS, Vocabulary
from idc.systems.procap.procedures.build import build
from idc.systems.procap.procedures.config import ProceduresConfig
from idc.systems.procap.procedures.similarity import Sampling
from idc.vision.interpolation.middle_frames import flow_middle, interpolate
from idc.vision.tokenizer.model import ImageTokenizer, to_images
from tests.vision.pair_encoder.test_pair_encoder import tiny as tiny_pair_encoder
from tests.vision.scenes import TINY, pair_row, write_pairs

run = partial(run_local, progress=False)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> str:
    torch.manual_seed(0)
    made = ImageTokenizer(TINY)
    made.codebook.copy_(0.3 * torch.randn(made.codebook.shape))
    folder = tmp_path_factory.mktemp("tokenizer")
    made.save(folder)
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
    with pytest.raises(ValueError, match=r"no pair of .* has one; take strategy=visual"):
        build(config(silent, tokenizer, strategy="visual_text", pair_encoder=tokenizer), str(tmp_path / "out"), run)
    assert not (tmp_path / "out").exists()
