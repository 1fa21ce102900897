"""The check of a data set finds what is wrong, and only that."""

from __future__ import annotations

import io
import json
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageFile

from idc.config import cli
from idc.data.config import ImportJob, ValidateJob
from idc.data.images import encode_png
from idc.data.validation.duplicates import Leak
from idc.data.validation.report import validation_table
from idc.data.validation.run import ValidationFindings, validate
from idc.next_command import after_validation
from tests.conftest import Command
from tests.data.readers.test_own import prepare, put
from tests.data.small_sets import OFFICIAL


def source(folder: Path, last: str = "") -> Path:
    put(folder, {f"{n}.png": n for n in range(8)})
    lines = [
        "pair_id,before,after,captions,change_type,split", "p1,0.png,1.png,the red cube moved|it moved,move,train",
        "p2,2.png,3.png,the cube is gone,drop,val", "p3,4.png,5.png,,,test", last,
    ]  # fmt: skip
    (folder / "pairs.csv").write_text("\n".join(lines))
    return folder / "pairs.csv"


def check(path: Path, **settings: Any) -> ValidationFindings:
    return validate(ValidateJob(pairs=str(path), **settings), progress=False)


def test_a_good_set(tmp_path: Path) -> None:
    path = source(tmp_path / "in")
    prepare(path, tmp_path / "out", "csv", chunk_size=2)
    raw, built = check(path).result, check(tmp_path / "out").result
    assert (raw.ok, raw.format, built.format) == (True, "csv", "data set folder")
    assert raw.model_dump(exclude={"pairs", "format"}) == built.model_dump(exclude={"pairs", "format"})
    assert built.by_split_and_type == {"test": {"unknown": 1}, "train": {"move": 1}, "val": {"drop": 1}}
    assert built.published is None
    assert built.counts["pairs"] == {"train": 1, "val": 1, "test": 1}
    assert built.counts["move_pairs"] == {"train": 1, "val": 0, "test": 0}
    assert (built.statistics.captions, built.without_captions) == (3, 1)
    assert built.image_sizes == {"8x6": 6}
    assert validation_table(built).endswith("\nok")


def test_leaks_duplicates_and_unreadable_files(tmp_path: Path) -> None:
    last = "p4,6.png,0.png,,,test\np1,7.png,6.png,,,train\np5,nowhere.png,7.png,,,train\np6,6.png,6.png,,,test"
    result = check(source(tmp_path, last)).result
    assert not result.ok
    assert {code: p.count for code, p in result.problems.items()} == {"duplicate pair id": 1, "missing file": 1}
    assert result.problems["missing file"].examples == ["p5: before, nowhere.png"]
    assert (result.num_leaks, result.usable_pairs) == (1, 5)
    assert result.leaks == [Leak(pairs=["p1", "p4"], splits=["train", "test"])]
    assert result.leaked_pairs == {"train": {"test": 1}, "test": {"train": 1}}
    assert result.warnings["identical before and after"].examples == ["p6: in test"]
    text = validation_table(result)
    assert "p1 and p4 share one (train and test)" in text
    assert "NOT fit" in text


def test_a_file_in_two_splits_is_a_leak_and_no_near_copy(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    put(tmp_path, {f"{n}.png": encode_png(rng.integers(0, 256, (6, 8, 3), np.uint8)) for n in range(3)})  # type: ignore[arg-type]
    (tmp_path / "pairs.csv").write_text("pair_id,before,after,split\nt,0.png,1.png,train\nc,0.png,2.png,test")
    result = check(tmp_path / "pairs.csv").result
    assert (result.num_leaks, "near copies" in result.warnings) == (1, False)


def test_each_image_of_a_pair_is_decoded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    decoded, load = [], ImageFile.ImageFile.load

    def counted(image: ImageFile.ImageFile) -> Any:
        decoded.append(image.tile)
        return load(image)

    monkeypatch.setattr(ImageFile.ImageFile, "load", counted)
    assert check(source(tmp_path), pictures=0).result.usable_pairs == 3
    assert sum(map(bool, decoded)) == 6


def test_copies_in_another_format_or_size_are_named(tmp_path: Path) -> None:
    """A photograph of training that is in the test split without loss, as JPEG and at half the size; others are not."""

    def stored(image: Image.Image, format: str, **options: Any) -> bytes:
        file = io.BytesIO()
        image.save(file, format, **options)
        return file.getvalue()

    patterns = [np.random.default_rng(n).integers(0, 256, (6, 8, 3), np.uint8) for n in range(6)]
    smooth = [Image.fromarray(pattern).resize((160, 120), Image.Resampling.BICUBIC) for pattern in patterns]
    changed = smooth[0].copy()
    changed.paste((255, 0, 0), (20, 20, 50, 50))
    files = {"0.png": stored(smooth[0], "PNG"), "0.webp": stored(smooth[0], "WEBP", lossless=True)}
    files |= {"0.jpg": stored(smooth[0], "JPEG", quality=80), "half.bmp": stored(smooth[0].resize((80, 60)), "BMP")}
    files |= {f"{n}.png": stored(image, "PNG") for n, image in enumerate([changed, *smooth[1:]], 1)}
    put(tmp_path, files)  # type: ignore[arg-type]
    lines = ["pair_id,before,after,split", "t,0.png,2.png,train", "c,0.webp,3.png,test", "j,0.jpg,4.png,test"]
    lines += ["h,half.bmp,5.png,val", "d,1.png,6.png,test"]
    (tmp_path / "pairs.csv").write_text("\n".join(lines))
    result = check(tmp_path / "pairs.csv").result
    assert (result.ok, result.num_leaks) == (True, 0)
    assert sorted(result.warnings["near copies"].examples) == [
        "c: an image in test looks like one of h in val", "c: an image in test looks like one of t in train",
        "h: an image in val looks like one of t in train", "j: an image in test looks like one of h in val",
        "j: an image in test looks like one of t in train",
    ]  # fmt: skip


def test_the_same_two_images_and_blank_captions_are_warnings(tmp_path: Path) -> None:
    result = check(source(tmp_path, "p4,0.png,1.png,it moved| |,move,train\np5,1.png,0.png,moved,move,train")).result
    assert result.ok
    assert result.warnings["same two images"].examples == ["p1: also p4 (train)"]
    assert result.warnings["blank caption"].count == 2
    assert result.counts["distinct_pairs"] == {"train": 2, "val": 1, "test": 1}
    assert result.counts["pairs"]["train"] == 3


# Pair id: value in the mask, changeflag, change type, what is wrong
MASKS: dict[str, tuple[int, int | None, str | None, str | None]] = {
    "fine": (255, 1, None, None),
    "fine-unchanged": (0, 0, "none", None),
    "empty": (0, 1, None, "empty: annotated as changed, but the mask is empty"),
    "full": (128, 0, "none", "full: annotated as unchanged, but 100.00% of the mask is set"),
    "by-type": (7, None, "none", "by-type: annotated as unchanged, but 100.00% of the mask is set"),
    "by-other-type": (0, None, "add", "by-other-type: annotated as changed, but the mask is empty"),
    "nobody-says": (7, None, None, None),
}


def test_flags_against_masks_and_images(tmp_path: Path) -> None:
    lines = []
    for number, (name, (value, flag, kind, _)) in enumerate(MASKS.items()):
        put(tmp_path, {f"{name}.png": 2 * number, f"{name}_after.png": 2 * number + 1})
        (tmp_path / f"{name}_mask.png").write_bytes(encode_png(np.full((6, 8), value, np.uint8)))
        row = {"pair_id": name, "before": f"{name}.png", "after": f"{name}_after.png", "mask": f"{name}_mask.png"}
        lines.append(json.dumps(row | {"change_type": kind, "split": "train", "meta": {"changeflag": flag}}))
    (tmp_path / "pairs.jsonl").write_text("\n".join(lines))
    found = check(tmp_path / "pairs.jsonl", format="jsonl")
    wrong = {name: text for name, (*_, text) in MASKS.items() if text is not None}
    assert found.result.problems["contradiction"].examples == list(wrong.values())
    assert found.result.counts["unchanged_with_mask"] == {"train": 2}
    assert found.result.counts["changed_without_mask"] == {"train": 2}
    assert not found.result.ok
    last = "p4,6.png,6.png,it moved,move,train\np5,7.png,7.png,nothing,none,train"
    result = check(source(tmp_path / "one image", last)).result
    assert result.problems["contradiction"].examples == ["p4: annotated as changed, but before and after are one image"]
    assert result.warnings["identical before and after"].count == 2


def test_questions_and_parts_are_counted(tmp_path: Path) -> None:
    put(tmp_path, {f"{n}.png": n for n in range(4)})
    asked = [{"question": f"q{n}", "type": f"type {n % 2}", "answer": f"answer {n}"} for n in range(3)]
    rows = [
        {"pair_id": "p1", "before": "0.png", "after": "1.png", "split": "val", "meta": {"questions": asked}},
        {"pair_id": "p2", "before": "2.png", "after": "3.png", "split": "val",
         "meta": {"questions": asked[:1], "subset": "real"}},
    ]  # fmt: skip
    (tmp_path / "pairs.jsonl").write_text("\n".join(map(json.dumps, rows)))
    result = check(tmp_path / "pairs.jsonl", published="cdvqa").result
    assert (result.counts["questions"], result.counts["real_pairs"]) == ({"val": 4}, {"val": 1})
    assert (result.counts["question_types"], result.counts["answers"]) == ({"all": 2}, {"all": 3})
    assert "DIFFERENT: 4 questions (val) (published –/16,441/39,686)" in result.published.sentence()


def test_an_imported_layout_is_compared_with_its_own_counts(tmp_path: Path) -> None:
    """Rows, sentences and pairs of an official layout, before and after the import."""
    put(tmp_path / "in", {
        "train.json": '[{"img_id": "1", "sentences": ["a car is gone", " "]}, {"img_id": "1", "sentences": ["gone"]}]',
        "change_multi_captions.json": '{"000001.png": ["the car is gone. gone"]}',
        "splits.json": '{"train": [1], "val": [], "test": []}',
    })  # fmt: skip
    single = {"rows": 2, "sentences": 3, "empty_sentences": 1, "pairs": 1, "captions": 2}
    for protocol, known_as in (("single", "spot_the_diff"), ("multi", "spot_the_diff_multi")):
        settings = {"spot_the_diff": {"protocol": protocol}}
        prepare(tmp_path / "in", tmp_path / protocol, "spot_the_diff", **settings)
        raw = check(tmp_path / "in", format="spot_the_diff", **settings).result
        built = check(tmp_path / protocol).result
        assert raw.counts == built.counts
        assert (built.published, built.published.name) == (raw.published, known_as)
        assert not built.images
        if protocol == "single":
            assert {name: built.counts[name]["train"] for name in single} == single


IMPORT = "python jobs/import_dataset.py"


def test_the_next_command(tmp_path: Path) -> None:

    def after(path: Path, **settings: Any) -> str:
        return after_validation(check(path, **settings))

    multi = OFFICIAL["spot_the_diff_multi"]()
    source_folder = multi.write(tmp_path / "multi in")
    command = shlex.split(after(source_folder, pictures=0))
    settings = ["source=" + str(source_folder), "spot_the_diff.protocol=multi", "format=spot_the_diff"]
    assert command == [*IMPORT.split(), *settings, "out=data/mine/pairs"]
    assert cli(ImportJob, None, command[2:]).config.spot_the_diff.protocol == "multi"
    prepare(source_folder, tmp_path / "multi", multi.format, **multi.settings)
    assert after(tmp_path / "multi").endswith(f"twincap/demo.yaml name=mine pairs={tmp_path / 'multi'}")
    prepare(source_folder, tmp_path / "alone", multi.format, images=False, **multi.settings)
    assert after(tmp_path / "alone").startswith("python jobs/evaluate.py predictions=mine.jsonl")
    prepare(source(tmp_path / "in", "p4,0.png,7.png,,,test"), tmp_path / "leaking", "csv")
    assert after(tmp_path / "leaking") == f"python jobs/validate.py pairs={tmp_path / 'leaking'}"


def test_the_job(tmp_path: Path, command: Command) -> None:
    path = source(tmp_path / "in")
    good = command("validate", f"pairs={path}")
    assert good.returncode == 0, good.stderr
    assert "3 of 3 pairs are usable" in good.stdout
    assert json.loads((tmp_path / "in" / "pairs.csv.validation.json").read_text())["ok"] is True
    assert good.stdout.splitlines()[-1] == f"next: {IMPORT} source={path} format=csv out=data/mine/pairs"
    assert 'alt="before, pair p2"' in (tmp_path / "in" / "pairs.csv.validation.html").read_text()
    bad_path = source(tmp_path / "in", "p4,0.png,9.png,,,test")
    bad = command("validate", f"pairs={bad_path}", f"report={tmp_path / 'r.json'}")
    assert bad.returncode == 1
    assert "ERROR missing file: 1" in bad.stdout
    assert json.loads((tmp_path / "r.json").read_text())["problems"]["missing file"]["count"] == 1
