"""Texts and JSON lines of others: kept, or rejected with their place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from idc.data.schema import ChangePair
from idc.data.store import iter_rows
from tests.data.readers.test_own import FOLDERS, imported, metas, put, table_images


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
