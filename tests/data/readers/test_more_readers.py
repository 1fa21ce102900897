"""Readers of generated, questioned and packed pairs: whole and damaged, through all that is done with pairs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from idc.data.readers.layouts import find_layout
from idc.data.store import iter_rows, read_rejects
from tests.data.official_layouts import found, more
from tests.data.readers.test_own import picture, prepare, put


def test_the_parquet_of_the_datasets_library_is_read_as_it_writes_it(tmp_path: Path) -> None:
    import datasets

    rows = [
        {"key": f"k{n}", "source_image": {"bytes": picture(n), "path": None}, "after": picture(9), "captions": ["on"]}
        for n in range(3)
    ]
    features = datasets.Features({
        "key": datasets.Value("string"), "source_image": datasets.Image(), "after": datasets.Image(),
        "captions": datasets.List(datasets.Value("string")),
    })  # fmt: skip
    data = datasets.Dataset.from_list(rows, features=features)
    data.rename_columns({"key": "pair_id", "source_image": "before"}).to_parquet(str(tmp_path / "pairs.parquet"))
    prepare(tmp_path / "pairs.parquet", tmp_path / "out", "auto", val_share=0, test_share=0)
    assert found(tmp_path / "out") == {f"k{n}": ("train", n, 9, ["on"]) for n in range(3)}


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


def vidic(folder: Path, **sections: Any) -> Path:
    """Two pairs of videos with a frame each, as the set's own checklist has them."""
    item = {"class": "subject", "question": "Does B show two people?", "correct_answer": "Yes", "answer": ""}
    same = {"class": "style", "question": "Is the style different?", "correct_answer": "no", "answer": ""}
    analysis = {"Similarities": [same], "Differences": [item, item], **sections}
    rows = [
        {"index": n, "video1_path": f"data/add/{n}_src.mp4", "video2_path": f"data/add/{n}_tgt.mp4",
         "structured_analysis": analysis} for n in range(2)
    ]  # fmt: skip
    frames = {f"data/add/{n}_{side}.{('png', 'jpg')[n]}": 10 * n + (side == "tgt") for n in range(2)
              for side in ("src", "tgt")}  # fmt: skip
    return put(folder, {"checklist/checklist.json": json.dumps(rows), **frames})


def test_vidic(tmp_path: Path) -> None:
    assert find_layout(str(vidic(tmp_path / "in"))).format == "vidic"
    manifest = prepare(tmp_path / "in", tmp_path / "out", "vidic")
    assert found(tmp_path / "out") == {"0": ("test", 0, 1, []), "1": ("test", 10, 11, [])}
    style = {"question": "Is the style different?", "type": "style", "answer": "no", "id": "Similarities/0"}
    people = {"question": "Does B show two people?", "type": "subject", "answer": "yes"}
    asked = [style, people | {"id": "Differences/0"}, people | {"id": "Differences/1"}]
    assert questions_of(tmp_path / "out") == {"0": asked, "1": asked}
    assert manifest.extra["counts"]["test"]["rows"] == 6
    for image in (tmp_path / "in" / "data").rglob("*.*"):
        image.unlink()
    vidic_text = (tmp_path / "in/checklist/checklist.json").read_text()
    damaged = vidic_text.replace('"class": "style", ', "", 1).replace('"video1_path": "data/add/1_src.mp4", ', "")
    (tmp_path / "in/checklist/checklist.json").write_text(damaged)
    assert not prepare(tmp_path / "in", tmp_path / "alone", "vidic").has_images
    assert {reject.row_id: reject.code for reject in read_rejects(tmp_path / "alone")} == {
        "checklist/checklist.json:0/Similarities/0": "bad row", "checklist/checklist.json:1": "bad row",
    }  # fmt: skip
    assert [item["id"] for item in questions_of(tmp_path / "alone")["0"]] == ["Differences/0", "Differences/1"]


def test_diffspot(tmp_path: Path) -> None:
    """The columns of its data card; 28 of its rows call the difficulty of an unchanged pair unknown."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [
        {
            "id": name, "image_before": {"bytes": picture(n), "path": None}, "image_after": picture(9),
            "task_type": "no_diff" if same else "visual_diff", "difficulty": difficulty, "ground_truth_diff": truth,
            "mutation_dicts_json": "[]", "mutation_types": [] if same else ["mutate_font_size"], "target_bbox_x": 4,
        }
        for n, (name, same, difficulty, truth) in enumerate(
            [("a", False, "hard", "The heading is larger."), ("b", True, "no_diff", ""), ("c", True, "unknown", None)]
        )
    ]  # fmt: skip
    (tmp_path / "in").mkdir()
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "in" / "test-00000-of-00001.parquet")
    for source in (tmp_path / "in", tmp_path / "in" / "test-00000-of-00001.parquet"):
        assert find_layout(str(source)).format == "diffspot"
    prepare(tmp_path / "in", tmp_path / "out", "auto")
    same = ["there is no difference"]
    assert found(tmp_path / "out") == {
        "a": ("test", 0, 9, ["The heading is larger."]), "b": ("test", 1, 9, same), "c": ("test", 2, 9, same),
    }  # fmt: skip
    stored = list(iter_rows(tmp_path / "out"))
    assert [row["change_type"] for row in stored] == ["font_size", "none", "none"]
    assert json.loads(stored[0]["meta"])["difficulty"] == "hard"
    assert json.loads(stored[0]["meta"])["target_bbox_x"] == 4
