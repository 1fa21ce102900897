"""Pairs to procedures: what is stored, and that builds go on, reject, and do not depend on their cutting."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from idc.config import ConfigError, load
from idc.data.images import decode_image
from idc.data.pipeline import TooManyRejects, run_local
from idc.data.store import iter_rows, read_manifest, read_rejects
from idc.data.text import BOS, EOS, Vocabulary
from idc.systems.procap.procedures.build import build
from idc.systems.procap.procedures.config import BuildProceduresJob, ProceduresConfig
from idc.systems.procap.procedures.stages import Interpolate
from idc.vision.interpolation.middle_frames import DISFlow, interpolate
from idc.vision.tokenizer.model import ImageTokenizer, to_images
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
    build(config(pairs, tokenizer, store_features=True), path, run)
    return path


def test_what_is_stored(built: str, pairs: str, tokenizer: str) -> None:
    manifest = read_manifest(built, kind="procedures")
    assert manifest.complete
    assert manifest.rows_by_split == {"test": 3, "train": 6, "val": 3}
    extra = manifest.extra
    shown = {key: extra[key] for key in ("num_frames", "num_between", "image_size", "patches_per_frame", "grid")}
    assert shown == {"num_frames": 5, "num_between": 3, "image_size": 32, "patches_per_frame": 16, "grid": [4, 4]}
    assert (extra["feature_dim"], extra["codebook_size"], extra["num_keyframes"]) == (16, 32, 2)
    model, vocabulary = ImageTokenizer.load(tokenizer), Vocabulary(extra["vocabulary"])
    sources = rows_of(pairs)
    assert list(rows_of(built)) == list(sources)  # in order, nothing lost
    for name, row in rows_of(built).items():
        source = sources[name]
        assert {key: row[key] for key in ("split", "captions", "change_type", "mask", "meta")} == {
            key: source[key] for key in ("split", "captions", "change_type", "mask", "meta")
        }
        frames = np.stack([decode_image(data) for data in row["frames"]])
        before, after = decode_image(source["before"]), decode_image(source["after"])
        assert (frames == interpolate(before, after, 2, DISFlow())).all()
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
            if row["split"] == "train":
                assert vocabulary.decode(ids) == caption


def test_vocabulary_is_of_the_training_captions(tokenizer: str, tmp_path: Path) -> None:
    rows = [pair_row(0, "train"), pair_row(1, "test", captions=["zebra crossing"])]
    manifest = build(config(write_pairs(tmp_path / "pairs", rows), tokenizer), str(tmp_path / "out"), run)
    assert "zebra" not in manifest.extra["vocabulary"]
    assert rows_of(tmp_path / "out")["p001"]["caption_ids"] == [[BOS, 3, 3, EOS]]
    other = build(
        config(str(tmp_path / "pairs"), tokenizer, vocabulary=str(tmp_path / "out")), str(tmp_path / "other"), run
    )
    assert other.extra["vocabulary"] == manifest.extra["vocabulary"]


def test_the_cutting_changes_nothing(built: str, pairs: str, tokenizer: str, tmp_path: Path) -> None:
    other = config(pairs, tokenizer, store_features=True, pairs_per_chunk=1, frames_per_batch=1)
    build(other, str(tmp_path / "out"), run)
    again, first = rows_of(tmp_path / "out"), rows_of(built)
    assert again.keys() == first.keys()
    for name, row in first.items():
        for column in ("frames", "keyframes", "caption_ids"):
            assert again[name][column] == row[column], (name, column)
        np.testing.assert_allclose(again[name]["confidence"], row["confidence"], atol=1e-4)


def test_only_key_frames(pairs: str, tokenizer: str, built: str, tmp_path: Path) -> None:
    few = config(pairs, tokenizer, store_features=True, stored_frames="keyframes")
    assert build(few, str(tmp_path / "out"), run).extra["num_frames"] == 4
    full = rows_of(built)
    for name, row in rows_of(tmp_path / "out").items():
        kept = [0, *full[name]["keyframes"], 4]
        assert row["frames"] == [full[name]["frames"][n] for n in kept]
        assert row["keyframes"] == [1, 2]
        assert len(row["confidence"]) == 3
        assert len(row["tokens"]) == 2 * 4 * 16
        assert len(row["features"]) == 2 * 4 * 16 * 16


def test_bad_images_are_rejected_and_nothing_else_is_lost(tokenizer: str, tmp_path: Path) -> None:
    rows = [pair_row(n, "train") for n in range(8)]
    rows[2]["after"] = rows[2]["after"][:300]
    rows[5]["before"] = b"this is a text file"
    rows[6]["before"] = b""
    settings = config(write_pairs(tmp_path / "pairs", rows), tokenizer, max_reject_share=0.5)
    manifest = build(settings, str(tmp_path / "out"), run)
    assert list(rows_of(tmp_path / "out")) == ["p000", "p001", "p003", "p004", "p007"]
    rejects = {reject.row_id: reject for reject in read_rejects(tmp_path / "out")}
    assert {name: reject.code for name, reject in rejects.items()} == {
        "p002": "truncated image",
        "p005": "not an image",
        "p006": "empty file",
    }
    assert "after" in rejects["p002"].reason
    assert manifest.num_rejected == 3
    with pytest.raises(TooManyRejects):
        build(settings.model_copy(update={"max_reject_share": 0.1, "seed": 1}), str(tmp_path / "strict"), run)


def test_goes_on_where_it_was(pairs: str, tokenizer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(tmp_path / "out")
    calls: list[int] = []
    true_call = Interpolate.__call__

    def failing(self: Interpolate, batch: dict[str, Any]) -> dict[str, Any]:
        calls.append(len(batch["pair_id"]))
        if len(calls) == 2:
            raise KeyboardInterrupt
        return true_call(self, batch)

    monkeypatch.setattr(Interpolate, "__call__", failing)
    with pytest.raises(KeyboardInterrupt):
        build(config(pairs, tokenizer), path, run)
    assert not read_manifest(path).complete
    build(config(pairs, tokenizer), path, run)
    assert sum(calls[2:]) == 12 - calls[0]  # the first chunk was not done again
    assert len(rows_of(path)) == 12
    count = len(calls)
    build(config(pairs, tokenizer), path, run)
    assert len(calls) == count  # complete: nothing is done
    with pytest.raises(ValueError, match="overwrite"):
        build(config(pairs, tokenizer, seed=1), path, run)
    build(config(pairs, tokenizer, seed=1), path, run, overwrite=True)
    build(config(pairs, tokenizer, seed=1, actors=3, frames_per_batch=7), path, run)  # not other procedures


def score_file(path: Path, names: list[str], frames: int = 5, dino: bool = False) -> str:
    """Official scores of these pairs: frame 2 is half way for even ones, frame 1 for odd ones."""
    content = {}
    for n, name in enumerate(names):
        before = [0.9, 0.5 if n % 2 else 0.8, 0.8 if n % 2 else 0.5, 0.2, 0.1][:frames]
        entry = {"bef_inter_sim": [before] * 2, "inter_aft_sim": [[1 - s for s in before]] * 2}
        if dino:
            entry |= {"bef_inter_dino_score": before, "inter_aft_dino_score": before}
        content[name] = entry
    path.write_text(json.dumps(content))
    return str(path)


def test_official_scores_become_the_confidence(
    pairs: str, tokenizer: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    names = sorted(rows_of(pairs))
    scores = score_file(tmp_path / "scores.json", names[:-1])
    settings = config(pairs, tokenizer, strategy="visual_text", scores=scores, temperature=0.01)
    build(settings, str(tmp_path / "out"), run)
    made = rows_of(tmp_path / "out")
    for n, name in enumerate(names[:-1]):
        assert int(np.argmax(made[name]["confidence"])) == (0 if n % 2 else 1)
    np.testing.assert_allclose(made[names[-1]]["confidence"], np.full(3, 2 / 3))
    assert "1 of 12 pairs are not in" in caplog.text
    score_file(tmp_path / "scores.json", names)
    with pytest.raises(ValueError, match="overwrite"):  # other scores, other procedures
        build(settings, str(tmp_path / "out"), run)


def test_scores_that_do_not_fit_are_refused(pairs: str, tokenizer: str, tmp_path: Path) -> None:
    names = sorted(rows_of(pairs))
    good = score_file(tmp_path / "good.json", names)
    for changes, message in (
        ({"scores": good, "depth": 3}, "scores of 5 frames, but depth=3 makes 9; take depth=2"),
        ({"scores": good, "strategy": "mixed"}, "12 of 12 pairs have no DINOv2 scores; strategy='mixed' needs them"),
        ({"scores": score_file(tmp_path / "other.json", ["1.png"])}, "such as '1.png', and none of those in"),
    ):
        with pytest.raises(ValueError, match=message):
            build(config(pairs, tokenizer, **{"strategy": "visual_text", **changes}), str(tmp_path / "out"), run)
    assert not (tmp_path / "out").exists()


def test_visual_text_needs_captions_somewhere(tokenizer: str, tmp_path: Path) -> None:
    rows = [pair_row(n, "train", captions=[]) for n in range(2)]
    folder = write_pairs(tmp_path / "pairs", rows)
    settings = config(folder, tokenizer, strategy="visual_text", pair_encoder=tokenizer)
    with pytest.raises(ValueError, match=r"no pair of .* has one; take strategy=visual"):
        build(settings, str(tmp_path / "out"), run)


def test_uniform_key_frames_and_settings_that_do_not_count(pairs: str, tokenizer: str, tmp_path: Path) -> None:
    build(config(pairs, tokenizer, depth=3, strategy="uniform"), str(tmp_path / "out"), run)
    assert {tuple(row["keyframes"]) for row in rows_of(tmp_path / "out").values()} == {(3, 5)}
    same = config(pairs, tokenizer, depth=3, strategy="uniform", temperature=0.5, similarity="pixels", mix=0.1)
    build(same, str(tmp_path / "out"), run)  # complete already
    with pytest.raises(ValueError, match="overwrite"):
        build(config(pairs, tokenizer, depth=3, strategy="random"), str(tmp_path / "out"), run)


def test_faults_are_found_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        load(
            BuildProceduresJob,
            None,
            {"procedures": "x", "build.pairs": "p", "build.tokenizer": "t", "build.depth": 1, "build.similarty": "a"},
        )
    text = "\n".join(refused.value.faults)
    assert "did you mean 'similarity'" in text
    assert "num_keyframes: 2 cannot be drawn from 2^depth - 1 = 1 frames" in text
    for settings, fault in (
        ({"strategy": "mixed"}, "strategy: 'mixed' needs pair_encoder"),
        ({"pair_encoder": "a", "scores": "b"}, "pair_encoder and scores: give only one"),
    ):
        with pytest.raises(ValueError, match=fault):
            ProceduresConfig(pairs="p", tokenizer="t", **settings)
    job = ProceduresConfig(pairs=str(tmp_path / "nowhere"), tokenizer=str(tmp_path))
    assert [fault.split(":")[0] for fault in job.preflight()] == ["pairs"]


@pytest.mark.ray
def test_the_same_on_ray(ray_session: None, built: str, pairs: str, tokenizer: str, tmp_path: Path) -> None:
    from cluster.data import run_chunks_on_ray as run_on_ray

    settings = config(pairs, tokenizer, store_features=True, actors=2, cpus_per_actor=0.5)
    build(settings, str(tmp_path / "out"), partial(run_on_ray, progress=False))
    first = rows_of(built)
    for name, row in rows_of(tmp_path / "out").items():
        for column in ("frames", "keyframes", "caption_ids", "captions", "tokens"):
            assert row[column] == first[name][column], (name, column)
    assert len(first) == read_manifest(tmp_path / "out").num_rows
