"""Readers of generated, questioned and packed pairs: whole and damaged, through all that is done with pairs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from idc.data.config import ImportConfig
from idc.data.readers import open_reader
from idc.data.readers.layouts import find_layout
from idc.data.store import iter_rows, read_rejects
from tests.data.official_layouts import Expected, Official, found, more, round_trip
from tests.data.readers.test_own import picture, prepare, put

COLUMNS = {"before": "source_image", "after": "target", "captions": "texts", "pair_id": "key", "change_type": "kind"}


def saved(folder: Path, rows: dict[str, list[dict[str, Any]]]) -> Path:
    import datasets

    kinds = ["color", "add"]
    features = datasets.Features({
        "key": datasets.Value("string"), "source_image": datasets.Image(), "target": datasets.Image(),
        "texts": datasets.List(datasets.Value("string")), "kind": datasets.ClassLabel(names=kinds),
        "note": datasets.Value("int64"),
    })  # fmt: skip
    splits = {split: datasets.Dataset.from_list(of, features=features) for split, of in rows.items()}
    datasets.DatasetDict(splits).save_to_disk(str(folder))
    return folder


def hugging_rows() -> dict[str, list[dict[str, Any]]]:
    split = {"train": (0, 1), "validation": (2,), "test": (3, 4)}
    return {
        name: [
            {
                "key": f"k{n}", "source_image": {"bytes": picture(n), "path": None},
                "target": {"bytes": picture(50 + n), "path": None}, "texts": [f"lamp {n} is on", "on"], "kind": n % 2,
                "note": n,
            } for n in numbers
        ] for name, numbers in split.items()
    }  # fmt: skip


def test_hugging_face(tmp_path: Path) -> None:
    """The library's own files, which cannot be put into texts: made by it, and compared as the others are."""
    source = saved(tmp_path / "in", hugging_rows())
    names = {"train": "train", "validation": "val", "test": "test"}
    pairs: Expected = {
        row["key"]: (names[split], row["note"], 50 + row["note"], row["texts"])
        for split, rows in hugging_rows().items() for row in rows
    }  # fmt: skip

    class Saved(Official):
        def write(self, folder: Path) -> Path:
            return source

    settings = {"hugging_face": COLUMNS}
    round_trip(Saved("hugging_face", {}, pairs, lambda files: {}, settings=settings), tmp_path)
    rows = {row["pair_id"]: row for row in iter_rows(tmp_path / "out")}
    assert (rows["k1"]["change_type"], json.loads(rows["k1"]["meta"])) == ("add", {"note": 1})


def test_hugging_face_damaged(tmp_path: Path) -> None:
    rows = hugging_rows()
    rows["train"][0]["target"] = {"bytes": b"no picture", "path": None}
    rows["train"].append({**hugging_rows()["test"][0], "key": "k1"})
    rows["train"].append({**hugging_rows()["test"][0], "key": ""})
    rows["test"][1]["source_image"] = None
    rows["holdout"] = [{**hugging_rows()["test"][0], "key": "k9"}]
    source = saved(tmp_path / "in", rows)
    prepare(source, tmp_path / "out", "hugging_face", hugging_face=COLUMNS)
    assert {reject.row_id: reject.code for reject in read_rejects(tmp_path / "out")} == {
        "k0": "not an image", "k1": "duplicate pair id", "train:3": "no pair id", "k4": "missing file",
        "k9": "bad split",
    }  # fmt: skip
    assert set(found(tmp_path / "out")) == {"k1", "k2", "k3"}
    import datasets

    numbered = [row for of in hugging_rows().values() for row in of] * 8
    datasets.Dataset.from_list(numbered).save_to_disk(str(tmp_path / "one split"))
    columns = {name: COLUMNS[name] for name in ("before", "after", "captions")}
    settings = {"hugging_face": columns, "test_share": 0.5}
    manifest = prepare(tmp_path / "one split", tmp_path / "no ids", "hugging_face", **settings)
    assert list(found(tmp_path / "no ids"))[:2] == ["train-0", "train-1"]
    assert set(manifest.rows_by_split) > {"train"}
    with pytest.raises(ValueError, match="no column 'befor'"):
        open_reader("hugging_face", str(source), ImportConfig(hugging_face={"before": "befor"}))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="cannot be loaded as a data set"):
        open_reader("hugging_face", str(tmp_path / "nothing"), ImportConfig())


def cdvqa(folder: Path) -> Path:
    files: dict[str, int | str | bytes] = {}
    for part, start in (("Train", 0), ("Val", 10), ("Test", 20), ("Test2", 30)):
        images = [{"id": n, "file_name": f"{start + n // 2:05d}.png", "questions_ids": []} for n in range(4)]
        questions = [
            {"id": n, "img_id": n, "type": "change_or_not", "question": f"has tree {n} changed?", "active": True}
            for n in range(4)
        ]
        answers = [{"id": n, "question_id": n, "answer": ("yes", "no")[n % 2]} for n in range(4)]
        for what, records in (("images", images), ("questions", questions), ("answers", answers)):
            files[f"{part}_{what}.json"] = json.dumps({what: records})
        for n in range(2):
            files[f"im1/{start + n:05d}.png"], files[f"im2/{start + n:05d}.png"] = start + n, 100 + start + n
    return put(folder, files)


def questions_of(out: Path) -> dict[str, list[dict[str, Any]]]:
    return {row["pair_id"]: json.loads(row["meta"])["questions"] for row in iter_rows(out)}


def test_cdvqa(tmp_path: Path) -> None:
    assert find_layout(str(cdvqa(tmp_path / "in"))).format == "cdvqa"
    manifest = prepare(tmp_path / "in", tmp_path / "out", "cdvqa", chunk_size=3)
    assert manifest.rows_by_split == {"test": 4, "train": 2, "val": 2}
    assert found(tmp_path / "out")["00011"] == ("val", 11, 111, [])
    assert questions_of(tmp_path / "out")["00011"] == [
        {"question": "has tree 2 changed?", "type": "change_or_not", "answer": "yes", "id": "2"},
        {"question": "has tree 3 changed?", "type": "change_or_not", "answer": "no", "id": "3"},
    ]
    assert manifest.extra["counts"]["test"]["rows"] == 8


def test_cdvqa_damaged_and_without_images(tmp_path: Path) -> None:
    source = cdvqa(tmp_path / "in")
    (source / "im2/00001.png").unlink()
    (source / "Test2_answers.json").unlink()
    text = (source / "Val_images.json").read_text()
    (source / "Val_images.json").write_text(
        text.replace('{"id": 3, "file_name": "00011.png"', '{"id": 3, "file_name": "00000.png"')
    )
    questions = json.loads((source / "Train_questions.json").read_text())
    questions["questions"][1]["img_id"] = 77
    del questions["questions"][2]["question"]
    questions["questions"].append({**questions["questions"][3], "id": 8})
    questions["questions"].append({**questions["questions"][3], "active": False})
    (source / "Train_questions.json").write_text(json.dumps(questions))
    (source / "Test_questions.json").write_text('{"questions": [{"id": 0, "img_id": 0')
    manifest = prepare(source, tmp_path / "out", "cdvqa")
    assert {reject.row_id: reject.code for reject in read_rejects(tmp_path / "out")} == {
        "00001": "missing file", "Val_images.json:3": "duplicate pair id", "Train_questions.json:1": "bad row",
        "Train_questions.json:2": "bad row", "Train_questions.json:4": "bad row", "Test_questions.json": "bad file",
    }  # fmt: skip
    asked = questions_of(tmp_path / "out")
    assert {name: len(of) for name, of in asked.items()} == {
        "00000": 1, "00010": 2, "00011": 1, "00020": 0, "00021": 0, "00030": 2, "00031": 2,
    }  # fmt: skip
    assert asked["00030"][0]["answer"] is None
    assert any("Test2_answers.json is missing" in note for note in manifest.extra["notes"])
    for path in source.rglob("*.png"):
        path.unlink()
    assert not prepare(source, tmp_path / "alone", "cdvqa").has_images


def qag360k(folder: Path) -> Path:
    files: dict[str, int | str | bytes] = {}
    answer = {"type": "change_ratio", "answer": "0_to_10"}
    for start, split in enumerate(("train", "val", "test")):
        records = [
            {"id": n, "img_id": f"{10 * start + n // 2:05d}.png", "question": f"how much of {n}?", **answer}
            for n in range(4)
        ]
        files[f"{split}.json"] = json.dumps({"question": records})
        for n in range(2):
            for role, base in (("im1", 0), ("im2", 100)):
                files[f"{split}/{role}/{10 * start + n:05d}.png"] = base + 10 * start + n
        files |= {f"{split}/mask/{n}.png": 255 for n in range(4)}
    return put(folder, files)


def test_qag360k(tmp_path: Path) -> None:
    source = qag360k(tmp_path / "in")
    assert find_layout(str(source)).format == "qag360k"
    manifest = prepare(source, tmp_path / "out", "qag360k", chunk_size=2)
    assert manifest.rows_by_split == {"test": 2, "train": 2, "val": 2}
    assert found(tmp_path / "out")["00021"] == ("test", 21, 121, [])
    assert questions_of(tmp_path / "out")["00021"][1] == {
        "question": "how much of 3?", "type": "change_ratio", "answer": "0_to_10", "id": "3", "mask": "mask/3.png",
    }  # fmt: skip
    text = (source / "val.json").read_text()
    (source / "val.json").write_text(more(text[:-1], '{"id": 9, "img_id": "00000.png", "question": "x", "type": "y", '
                                          '"answer": "no"}, 7, {"id": 8, "img_id": "00019.png"}') + "}")  # fmt: skip
    (source / "train/im1/00001.png").write_bytes(b"")
    (source / "extra.json").write_text("{}")
    manifest = prepare(source, tmp_path / "damaged", "qag360k")
    assert {reject.row_id: reject.code for reject in read_rejects(tmp_path / "damaged")} == {
        "00001": "empty file", "val.json:4": "duplicate pair id", "val.json:5": "bad row", "val.json:6": "bad row",
    }  # fmt: skip
    assert len(found(tmp_path / "damaged")) == 5
    assert any("extra.json" in note for note in manifest.extra["notes"])
