"""Robustness sets: what is changed, what is not, the same whatever the chunks; and the benchmark's corruptions."""

from __future__ import annotations

import io
import json
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from PIL import Image

from idc.config import load
from idc.data.config import Corruption, CorruptJob
from idc.data.images import decode_image, encode_png
from idc.data.pipeline import run_local, run_stages, write_result
from idc.data.schema import ChangePair
from idc.data.store import Manifest, iter_rows, read_manifest
from idc.data.text import Vocabulary, words
from idc.metrics.scene_scores import hallucination, truth_of
from idc.rendered.config import RenderJob
from idc.rendered.render import MASK_AFTER, MASK_BEFORE
from idc.rendered.render import open_rendering as open_render
from idc.robustness.build import open_corruption, shifted, training_words
from idc.robustness.corruptions import corrupt
from tests.conftest import Command
from tests.folders import write_rows

ROOT = Path(__file__).parents[2]
SENTENCE = "The small red cube that is left of the big blue ball was moved, and then the ball; it's gone."


def pairs_of(count: int) -> list[ChangePair]:
    """Pairs that are not rendered: every third of val or test, every fourth unchanged."""
    draw = np.random.default_rng(0)
    pairs = []
    for n in range(count):
        before, after = (encode_png(draw.integers(0, 256, (12, 10, 3), np.uint8)) for _ in range(2))
        kind = "none" if n % 4 == 0 else ("add", "drop", "color")[n % 3]
        split = ("train", "val", "test")[max(0, n % 5 - 2)]
        captions = (SENTENCE, f"number {n} of a few")
        pairs.append(ChangePair(f"p{n}", before, after, captions, kind, split, source=f"x:{n}", meta={"n": n}))
    return pairs


def store(folder: Path, pairs: list[ChangePair]) -> Path:
    return Path(write_rows(folder, pairs, extra={"notes": ["a note"]}))


def make(out: Path, pairs: Path, *, backwards: bool = False, **settings: Any) -> Manifest:
    job = load(CorruptJob, None, {"pairs": str(pairs), "out": str(out), **settings})
    folder, source, stages = open_corruption(job)
    if not backwards:
        return run_local(folder, source, stages, progress=False, max_reject_share=0.0)
    for chunk in reversed(folder.pending()):  # another worker for every chunk, the last one first
        built = [stage.build() for stage in pickle.loads(pickle.dumps(stages))]
        write_result(folder, chunk, run_stages(built, source.read(chunk)), None)
    return folder.finish()


def rows(folder: Path) -> dict[str, dict[str, Any]]:
    return {row["pair_id"]: row for row in iter_rows(folder)}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return store(tmp_path_factory.mktemp("plain") / "pairs", pairs_of(40))


@pytest.fixture(scope="module")
def rendered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("rendered") / "pairs"
    config = str(ROOT / "jobs/configs/render/demo.yaml")
    job = load(RenderJob, config, {"out": str(out), "render.num_scenes": 10, "render.samples_per_pixel": 4})
    folder, source, stages = open_render(job)
    run_local(folder, source, stages, progress=False, max_reject_share=0.0)
    return out


SETTINGS: list[dict[str, Any]] = [
    {"kind": "replace_words", "share": 0.5}, {"kind": "gaussian_noise", "severity": 3},
    {"kind": "motion_blur", "severity": 5, "which": "after"}, {"kind": "swap_order"},
]  # fmt: skip


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda s: s["kind"])
def test_the_same_whatever_the_chunks(plain: Path, tmp_path: Path, settings: dict[str, Any]) -> None:
    make(tmp_path / "one", plain, chunk_size=100, **settings)
    make(tmp_path / "many", plain, backwards=True, chunk_size=7, **settings)
    one, many = rows(tmp_path / "one"), rows(tmp_path / "many")
    assert one == many
    if settings["kind"] != "swap_order":
        make(tmp_path / "seed", plain, seed=1, **settings)
        assert rows(tmp_path / "seed") != one
    assert one != rows(plain)


def test_words_are_replaced_at_the_given_share_and_nothing_else(plain: Path, tmp_path: Path) -> None:
    known = set(training_words(str(plain)))
    clean = rows(plain)
    noised: dict[float, dict[str, Any]] = {}
    for share in (0.2, 0.8):
        make(tmp_path / str(share), plain, kind="replace_words", share=share)
        noised[share] = rows(tmp_path / str(share))
        changed = total = 0
        for name, row in noised[share].items():
            if row["split"] != "train":
                assert row == clean[name]
                continue
            assert {**row, "captions": None} == {**clean[name], "captions": None}
            for old, new in zip(clean[name]["captions"], row["captions"], strict=True):
                before, after = words(old), words(new)
                assert len(before) == len(after)
                assert set(after) - set(before) <= known
                assert [w for w in after if w in ",;"] == [w for w in before if w in ",;"]
                changed += sum(a != b for a, b in zip(before, after, strict=True))
                total += sum(w not in ",;" for w in before)
        assert changed / total == pytest.approx(share, abs=0.05)
    for name, row in noised[0.2].items():  # what is replaced at 20 % is replaced alike at 80 %
        for old, low, high in zip(clean[name]["captions"], row["captions"], noised[0.8][name]["captions"], strict=True):
            for a, b, c in zip(words(old), words(low), words(high), strict=True):
                assert a == b or b == c


def test_words_of_procedures_are_replaced_with_their_ids(plain: Path, tmp_path: Path) -> None:
    import pyarrow as pa

    vocabulary = Vocabulary.build(text for row in iter_rows(plain, ["captions"], "train") for text in row["captions"])
    lists = {"captions": pa.list_(pa.string()), "caption_ids": pa.list_(pa.list_(pa.int32()))}
    kinds = {"pair_id": pa.string(), "split": pa.string(), **lists, "tokens": pa.binary()}
    own = [pa.field(name, kind, name == "tokens") for name, kind in kinds.items()]
    stored = [
        {**{name: row[name] for name in ("pair_id", "split", "captions")}, "tokens": b"12",
         "caption_ids": [vocabulary.encode(caption) for caption in row["captions"]]} for row in iter_rows(plain)
    ]  # fmt: skip
    extra = {"vocabulary": vocabulary.words, "num_frames": 5}
    write_rows(tmp_path / "in", stored, "procedures", pa.schema(own), extra=extra)
    manifest = make(tmp_path / "out", tmp_path / "in", kind="replace_words", share=0.4)
    make(tmp_path / "pairs", plain, kind="replace_words", share=0.4)
    assert manifest.kind == "procedures"
    assert manifest.extra["vocabulary"] == vocabulary.words
    of_pairs = rows(tmp_path / "pairs")
    for name, row in rows(tmp_path / "out").items():
        assert row["captions"] == of_pairs[name]["captions"]
        assert row["tokens"] == b"12"
        assert row["caption_ids"] == [vocabulary.encode(caption) for caption in row["captions"]]
    with pytest.raises(ValueError, match="holds procedures; kind=fog takes pairs"):
        make(tmp_path / "fog", tmp_path / "in", kind="fog", severity=1)


@pytest.mark.parametrize("which", ["both", "before"])
def test_the_chosen_images_are_corrupted(plain: Path, tmp_path: Path, which: str) -> None:
    manifest = make(tmp_path / "out", plain, kind="gaussian_noise", severity=5, which=which, splits=["test"])
    clean = rows(plain)
    for name, row in rows(tmp_path / "out").items():
        for role in ("before", "after"):
            hit = row["split"] == "test" and which in ("both", role)
            assert (row[role] != clean[name][role]) == hit
        assert {**row, "before": 0, "after": 0} == {**clean[name], "before": 0, "after": 0}
    assert manifest.extra["robustness"] == {
        "of": read_manifest(plain).fingerprint, "data_set": "own", "kind": "gaussian_noise", "severity": 5,
        "which": which, "splits": ["test"], "seed": 0,
    }  # fmt: skip
    assert manifest.extra["notes"][0] == "a note"
    assert "gaussian_noise of severity 5" in manifest.extra["notes"][1]


@pytest.mark.parametrize("which", ["both", "after"])
def test_images_are_shifted_with_their_masks(rendered: Path, tmp_path: Path, which: str) -> None:
    assert shifted(np.arange(6).reshape(2, 3), 1, -2).tolist() == [[2, 2, 2], [2, 2, 2]], "the border is repeated"
    make(tmp_path / "out", rendered, kind="shift", severity=3, which=which)
    clean = rows(rendered)
    steps = {"before": set(), "after": set()}
    for name, row in rows(tmp_path / "out").items():
        mask, moved_mask = (decode_image(one["mask"])[..., 0] for one in (clean[name], row))
        for role, flag in (("before", MASK_BEFORE), ("after", MASK_AFTER)):
            old, new = decode_image(clean[name][role]), decode_image(row[role])
            [step] = [
                (down, right)
                for down in (-3, 0, 3)
                for right in (-3, 0, 3)
                if np.array_equal(new[3 + down : 61 + down, 3 + right : 61 + right], old[3:61, 3:61])
            ]
            steps[role].add(step)
            inner = (mask & flag)[3:61, 3:61]
            assert np.array_equal((moved_mask & flag)[3 + step[0] : 61 + step[0], 3 + step[1] : 61 + step[1]], inner)
        assert {**row, "before": 0, "after": 0, "mask": 0} == {**clean[name], "before": 0, "after": 0, "mask": 0}
    for role, seen in steps.items():
        assert ((0, 0) in seen) == (which not in ("both", role))
        assert len(seen) > 2 or which not in ("both", role), "a draw for each image"


def test_the_order_of_rendered_pairs_is_swapped_with_true_references(rendered: Path, tmp_path: Path) -> None:
    make(tmp_path / "out", rendered, kind="swap_order")
    clean, swapped = rows(rendered), rows(tmp_path / "out")
    assert len(swapped) >= 16  # a scene of which nothing can be said without doubt in the other order may be lost
    seen, said = set(), []
    for name, row in swapped.items():
        old = clean[name]
        assert (row["before"], row["after"]) == (old["after"], old["before"])
        kind = {"add": "drop", "drop": "add"}.get(old["change_type"], old["change_type"])
        assert row["change_type"] == kind
        meta, was = json.loads(row["meta"]), json.loads(old["meta"])
        assert (meta["before"], meta["after"], meta["views"]) == (was["after"], was["before"], was["views"][::-1])
        assert meta["swapped"]
        mask, mask_was = decode_image(row["mask"])[..., 0], decode_image(old["mask"])[..., 0]
        assert np.array_equal(mask == MASK_BEFORE, mask_was == MASK_AFTER)
        assert np.array_equal(mask > 0, mask_was > 0)
        assert len(row["captions"]) == len(old["captions"])
        assert kind == "move" or (kind == "none") == (row["captions"] == old["captions"])
        said += [(caption, truth_of(kind, meta["before"], meta["after"])) for caption in row["captions"]]
        seen.add(kind)
    assert seen == {"none", "color", "material", "add", "drop", "move"}
    rates = hallucination(said)
    for rate in (rates.change_type, rates.object, rates.attribute):
        assert rate.right == rate.total > 0


def test_references_and_notes_of_other_pairs_are_not_passed_off_as_true(plain: Path, tmp_path: Path) -> None:
    clean = rows(plain)
    manifest = make(tmp_path / "remake", plain, kind="swap_order")
    kept = rows(tmp_path / "remake")
    assert set(kept) == {name for name, row in clean.items() if row["change_type"] == "none"}
    assert all(row["captions"] == clean[name]["captions"] for name, row in kept.items())
    assert "left out" in manifest.extra["notes"][-1]
    one_order = {"questions": [{"question": "what was built?", "answer": "houses"}], "guide": "houses were built"}
    pair = replace(pairs_of(1)[0], meta={**one_order, "conditions": ["wet", "dry"]})
    make(tmp_path / "notes", store(tmp_path / "in", [pair]), kind="swap_order")
    [row] = rows(tmp_path / "notes").values()
    assert json.loads(row["meta"]) == {"conditions": ["dry", "wet"], "swapped": True}


def test_the_job(plain: Path, tmp_path: Path, command: Command) -> None:
    run = command("robustness", "--local", f"pairs={plain}", "kind=fog", "severity=2", f"out={tmp_path / 'out'}")
    assert run.returncode == 0, run.stderr
    assert "40 rows" in run.stdout
    assert read_manifest(tmp_path / "out").complete
    silent = store(tmp_path / "silent", [ChangePair("a", pairs_of(1)[0].before, b"no image")])
    run = command("robustness", "--local", f"pairs={silent}", "kind=replace_words", "share=0.2", f"out={tmp_path}/none")
    assert (run.returncode, "has 0 words in its training captions" in run.stderr) == (1, True)
    run = command("robustness", "--local", f"pairs={silent}", "kind=fog", "severity=2", f"out={tmp_path}/fog")
    assert (run.returncode, "1 x not an image" in run.stderr) == (1, True)


NOISY = np.random.default_rng(0).integers(0, 256, (56, 84, 3), np.uint8)
SCENE = np.asarray(Image.fromarray(NOISY[:7, :7]).resize((224, 224), Image.Resampling.BICUBIC))
GREY = np.full((224, 224, 3), 128, np.uint8)


def corrupted(pixels: np.ndarray, kind: str, severity: int, seed: int = 0) -> np.ndarray:
    return corrupt(pixels, kind, severity, np.random.default_rng(seed))  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", get_args(Corruption))
def test_every_size_the_same_twice_and_further_away_at_a_higher_severity(kind: str) -> None:
    for pixels in (NOISY, NOISY[:, :30], NOISY[:1, :1]):
        before = pixels.copy()
        first, again = corrupted(pixels, kind, 5), corrupted(pixels, kind, 5)
        assert (first.shape, first.dtype) == (pixels.shape, np.uint8)
        assert np.array_equal(first, again)
        assert np.array_equal(pixels, before)
    away = [np.abs(corrupted(SCENE, kind, severity).astype(float) - SCENE).mean() for severity in range(1, 6)]
    assert away == sorted(away)
    assert away[4] > 1.2 * away[0] > 0
    if kind in ("gaussian_noise", "motion_blur", "fog"):
        assert not np.array_equal(corrupted(SCENE, kind, 5, seed=0), corrupted(SCENE, kind, 5, seed=1)), "it is drawn"


def test_noise_contrast_brightness_and_jpeg_by_their_definitions() -> None:
    for severity, deviation in enumerate((0.08, 0.12, 0.18, 0.26, 0.38), start=1):
        drawn = np.random.default_rng(0).normal(128 / 255, deviation, 200_000)
        expected = np.clip(drawn, 0, 1).std() * 255
        assert corrupted(GREY, "gaussian_noise", severity).std() == pytest.approx(expected, rel=0.02)
    mean = SCENE.mean(axis=(0, 1))
    for severity, factor in enumerate((0.4, 0.3, 0.2, 0.1, 0.05), start=1):
        assert np.abs(corrupted(SCENE, "contrast", severity) - ((SCENE - mean) * factor + mean)).max() <= 1
    for severity, more in enumerate((0.1, 0.2, 0.3, 0.4, 0.5), start=1):
        assert np.abs(corrupted(GREY, "brightness", severity) - np.minimum(128 + 255 * more, 255)).max() <= 1
    for severity, quality in enumerate((25, 18, 15, 10, 7), start=1):
        stream = io.BytesIO()
        Image.fromarray(SCENE).save(stream, "JPEG", quality=quality)
        assert np.array_equal(corrupted(SCENE, "jpeg_compression", severity), np.asarray(Image.open(stream)))


def test_defocus_spreads_a_dot_over_the_benchmarks_disk_whose_radius_follows_the_size() -> None:
    """A disk of radius 10 at 224 pixels has radius 5 at 112."""
    sizes = [(224, severity, radius) for severity, radius in enumerate((3, 4, 6, 8, 10), start=1)]
    for side, severity, radius in (*sizes, (112, 5, 5), (448, 5, 20)):
        dot = np.zeros((side, side, 3), np.uint8)
        middle, arm = side // 2, side // 40
        dot[middle - arm : middle + arm + 1, middle - arm : middle + arm + 1] = 255
        rows = np.flatnonzero(corrupted(dot, "defocus_blur", severity)[:, middle, 0])
        assert abs((rows[-1] - rows[0] + 1) - (2 * arm + 1 + 2 * radius)) <= 4


def test_fog_adds_a_cloud_and_keeps_the_range() -> None:
    """The benchmark scales by m / (m + c) with m the brightest value: black stays within [0, m c / (m + c)]."""
    half = GREY.copy()
    half[:, :112] = 0
    fogged = corrupted(half, "fog", 5)
    m = 128 / 255
    assert 60 < fogged[:, :112].max() <= 255 * m * 3 / (m + 3) + 1
    assert fogged.max() <= 128
    assert np.ptp(fogged[:, :112].astype(int).mean(axis=2)) > 20
