"""Texts, names and JSON lines as people and programs write them: kept, or rejected with their place."""

from __future__ import annotations

import json
import unicodedata
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from idc.data.readers.folder import role_and_key
from idc.data.rows import open_rows
from idc.data.schema import ChangePair
from idc.data.store import iter_rows, read_rejects
from tests.data.readers.test_own import FOLDERS, imported, metas, prepare, put, result, table_images
from tests.folders import read_chunks


def jsonl(tmp_path: Path, *lines: str) -> tuple[dict[str, list[str]], dict[str, str]]:
    table_images(tmp_path)
    images = json.dumps({"before": "images/1.png", "after": "images/2.png"})[1:-1]
    (tmp_path / "t.jsonl").write_bytes("".join(f"{{{images}, {line}}}\n" for line in lines).encode())
    return imported(tmp_path / "t.jsonl", "jsonl")


DEEP = "[" * 100_000 + "]" * 100_000
SURROGATE = '"half \\ud83d a smile"'


def test_half_a_character_is_a_reject_in_every_column(tmp_path: Path) -> None:
    columns = ["caption", "change_type", "mask", "split"]
    lines = [f'"pair_id": {SURROGATE}', f'"pair_id": "q", "meta": {{"note": {SURROGATE}}}']
    lines += [f'"pair_id": "{name}", "{name}": {SURROGATE}' for name in columns]
    pairs, rejects = jsonl(tmp_path, *lines, '"pair_id": "p9", "caption": "\\ud83d\\ude00"')
    assert pairs == {"p9": ["\U0001f600"]}
    assert len(rejects) == len(lines)
    assert {rejects[name].partition(":")[0] for name in ("caption", "q", "change_type")} == {"not UTF-8"}


def test_numbers_that_json_has_not_are_never_stored(tmp_path: Path) -> None:
    bad = [
        '"score": 1e999', '"meta": {"score": -1e999}', '"meta": "{\\"score\\": NaN}"',
        '"meta": "{\\"score\\": 1, \\"score\\": 2}"', f'"note": "x", "meta": "{DEEP}"',
    ]  # fmt: skip
    lines = [f'"pair_id": "p{n}", {text}' for n, text in enumerate(bad)]
    pairs, rejects = jsonl(tmp_path, *lines, '"pair_id": "good", "score": 0.5')
    assert (list(pairs), list(rejects)) == (["good"], [f"p{n}" for n in range(len(bad))])
    assert {reason.split(":")[0] for reason in rejects.values()} == {"bad row"}
    assert metas(tmp_path / "out") == {"good": {"score": 0.5}}
    with pytest.raises(ValueError, match="not JSON"):
        ChangePair("p", b"", b"", meta={"score": float("nan")}).to_row()


def test_one_id_in_two_splits_is_a_reject(tmp_path: Path) -> None:
    """A row without a split says nothing about it, also where it is the first."""
    pairs, rejects = jsonl(
        tmp_path,
        '"pair_id": "p1", "caption": "one", "split": "train"',
        '"pair_id": "p1", "caption": "two", "split": "val"',
        '"pair_id": "p1", "caption": "three"',
        '"pair_id": "p1", "caption": "four", "split": "Training"',
        '"pair_id": "p2", "caption": "five"',
        '"pair_id": "p2", "caption": "six", "split": "test"',
        '"pair_id": "p3", "caption": "seven", "change_type": "move"',
        '"pair_id": "p3", "caption": "eight", "change_type": "add"',
    )
    assert pairs == {"p1": ["one", "three", "four"], "p2": ["five", "six"], "p3": ["seven"]}
    assert rejects == {
        "t.jsonl:2": "duplicate pair id: p1 has split 'val' in t.jsonl:2, but 'train' in t.jsonl:1",
        "t.jsonl:8": "duplicate pair id: p3 has change_type 'add' in t.jsonl:8, but 'move' in t.jsonl:7",
    }
    splits = {row["pair_id"]: row["split"] for row in iter_rows(tmp_path / "out")}
    assert (splits["p1"], splits["p2"]) == ("train", "test")


TWO = FOLDERS["two folders"]
IMAGES = {f"{role}/{name}.png": 1 for role in ("before", "after") for name in "xy"}
LINES = "a\u2028line\x0cfeed\x85and\x1cmore\rgone\r\nmoved\n"
TRAIN = {f"train/{role}/{name}.png": 1 for role in ("before", "after") for name in "xyz"}
TWICE = {"x": "bad row: captions in "}
# Files, captions of the pairs, and rejects: id -> reason
TEXTS: dict[str, tuple[dict[str, Any], dict[str, list[str]], dict[str, str]]] = {
    "byte order marks": (
        {**TWO, "x.txt": "\ufeffmoved\n", "captions.json": '\ufeff{"y": "gone", "x": {"split": "val"}}'},
        {"x": ["moved"], "y": ["gone"]}, {},
    ),
    "only line ends end a caption": (
        {**TWO, "x.txt": LINES}, {"x": ["a\u2028line\x0cfeed\x85and\x1cmore", "gone", "moved"], "y": []}, {},
    ),
    "two names in one file": ({**IMAGES, "captions.json": '{"x": "moved", "x.png": "gone"}'}, {"y": []}, TWICE),
    "two text files": ({**IMAGES, "x.txt": "moved", "captions/x.txt": "gone"}, {"y": []}, TWICE),
    "two files of captions": (
        {**TRAIN, "train/captions.json": '{"x": "moved"}', "captions.json": '{"train/x": "gone"}'},
        {"train/y": [], "train/z": []}, {"train/x": "bad row: captions in "},
    ),
    "a split against the folder": (
        {**TRAIN, "train/captions.json": '{"x": {"split": "val"}, "y": {"split": "training"}}'},
        {"train/y": [], "train/z": []},
        {"train/x": "bad split: train/x is in the folder of train, but captions.json gives 'val'"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TEXTS)
def test_texts_of_a_folder(name: str, tmp_path: Path) -> None:
    files, pairs, reasons = TEXTS[name]
    actual, rejects = imported(put(tmp_path / "in", files), "folder")
    assert actual == pairs
    assert rejects.keys() == reasons.keys()
    assert all(rejects[place].startswith(reason) for place, reason in reasons.items())


HEAD, P1, P2 = "pair_id,before,after,caption", "p1,i/1.png,i/2.png,gone", 'p2,i/3.png,i/4.png,"a, b"'
TABLES: dict[str, list[str]] = {
    "rows of empty cells": [HEAD, ",,,", P1, P2, " , ,,", ",,,,,"],
    "spaces after commas": [
        '"pair_id", "before", "after", "caption"', "p1, i/1.png, i/2.png , gone", 'p2, "i/3.png", i/4.png, "a, b"',
    ],
    "paths of Windows": [HEAD, "p1,i\\1.png,.\\i\\2.png,gone", P2.replace("i/3", ".\\i\\3")],
    "NFC for files in NFD": [HEAD, P1.replace("i/1", "caf\u00e9/1"), P2.replace("i/4", "caf\u00e9\\4")],
    "NFD for files in NFC": [HEAD, P1.replace("i/1", "u\u0308/1"), P2.replace("i/4", "u\u0308/4")],
}  # fmt: skip


@pytest.mark.parametrize("kind", TABLES)
def test_tables_as_programs_and_systems_write_them(tmp_path: Path, kind: str) -> None:
    folders = ("i", "cafe\u0301", "\u00fc")
    images = {f"{folder}/{n}.png": n for folder in folders for n in range(1, 5)}
    put(tmp_path, {"t.csv": "\n".join([*TABLES[kind], ""]), **images})
    manifest = prepare(tmp_path / "t.csv", tmp_path / "out", "csv", chunk_size=1)
    assert result(tmp_path / "out") == {"p1": (1, 2, ["gone"]), "p2": (3, 4, ["a, b"])}
    assert manifest.num_rejected == 0
    batches = read_chunks(open_rows(str(tmp_path / "t.csv")))
    assert [name for batch in batches for name in batch["pair_id"]] == ["p1", "p2"]


def test_a_path_of_windows_does_not_lead_out_of_the_folder_and_a_backslash_may_be_in_a_name(tmp_path: Path) -> None:
    table = "pair_id,before,after\np1,..\\x.png,1.png\np2,a\\b.png,1.png\n"
    put(tmp_path, {"x.png": 9, "in/1.png": 1, "in/a\\b.png": 2, "in/a/b.png": 3, "in/t.csv": table})
    prepare(tmp_path / "in/t.csv", tmp_path / "out", "csv")
    assert result(tmp_path / "out") == {"p2": (2, 1, [])}
    assert [(reject.row_id, reject.code) for reject in read_rejects(tmp_path / "out")] == [("p1", "outside the source")]


@pytest.mark.parametrize(("name", "encoding"), [("t.csv", "utf-16"), ("t.csv", "utf-16-le"), ("t.jsonl", "utf-16-be")])
def test_a_table_in_utf_16_is_named(tmp_path: Path, name: str, encoding: str) -> None:
    text = "pair_id,before,after\np,a,b\n" if name == "t.csv" else '{"pair_id": "p", "before": "a", "after": "b"}\n'
    (tmp_path / name).write_bytes(text.encode(encoding))
    with pytest.raises(ValueError, match=rf"{name} is UTF-16; save it as UTF-8"):
        open_rows(str(tmp_path / name))


@pytest.mark.parametrize(("name", "data", "remedy"), [
    ("t.csv", b"sep=;\nbefore;after\na;b\n", r"Remove lines above the columns' names \(a title, Excel's sep=;\)"),
    ("t.csv", b"Pairs of May,\nbefore,after\na,b\n", "Remove lines above the columns' names"),
    ("t.xlsx", b"PK\x03\x04\x14\0\x06\0", "t.xlsx is a workbook, not text; save its sheet as CSV UTF-8"),
    ("t.csv", b"PK\x03\x04\x14\0\x06\0", "t.csv is a workbook"),
    ("t.XLS", b"\xd0\xcf\x11\xe0\xa1\xb1", "t.XLS is a workbook"),
])  # fmt: skip
def test_what_a_spreadsheet_writes_has_a_remedy(tmp_path: Path, name: str, data: bytes, remedy: str) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(ValueError, match=remedy):
        open_rows(str(tmp_path / name))


@pytest.mark.parametrize(
    ("before", "after", "pair"),
    [
        ("Machine 1 before.JPG", "Machine 1 after.JPG", "Machine 1"),
        ("Machine 1 - Before.jpg", "Machine 1 - After.JPG", "Machine 1"),
        ("x.before.png", "x.AFTER.png", "x"),
        ("Hall A.png", "Hall B.png", "Hall"),
        ("Before Machine 1.JPG", "after Machine 1.jpg", "Machine 1"),
        ("site/before.png", "site/After.PNG", "site"),
        ("before/caf\u00e9.png", "after/cafe\u0301.png", "caf\u00e9"),
        ("x_a_b_A.png", "x_a_b_B.png", "x_a_b"),
    ],
)
def test_names_of_before_and_after_as_people_have_them(tmp_path: Path, before: str, after: str, pair: str) -> None:
    captions = json.dumps({unicodedata.normalize("NFD", pair): "gone"})
    manifest = prepare(put(tmp_path / "in", {before: 1, after: 2, "captions.json": captions}), tmp_path / "out", "auto")
    (row,) = result(tmp_path / "out").items()
    assert (row[0], row[1][2]) == (pair, ["gone"])
    assert row[1][0] < row[1][1]
    for other in ("a dog.png", "beforehand.png", "label.png", "plan.png"):
        assert role_and_key(PurePosixPath(other))[0] is None
    assert manifest.num_rejected == 0


def test_images_of_a_data_set_are_found_in_either_form(tmp_path: Path) -> None:
    rows = [{"img0": "caf\u00e9.png", "img1": "u\u0308.png", "sents": ["gone"], "uid": "u"}]
    put(tmp_path / "in", {"train.json": json.dumps(rows), "images/cafe\u0301.png": 1, "images/\u00fc.png": 2})
    prepare(tmp_path / "in", tmp_path / "out", "image_editing_request")
    assert list(result(tmp_path / "out").values()) == [(1, 2, ["gone"])]
