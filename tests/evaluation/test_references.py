"""References and predictions made elsewhere: every form is read, and what does not fit is named by its place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from idc.evaluation.record import Prediction
from idc.evaluation.references import read_captions, read_references

TWO = {"a": ["one", "two"], "b": ["three"]}


def file(path: Path, content: Any) -> Path:
    """``content`` as JSON; a list in a ``.jsonl`` as lines."""
    lines = path.suffix == ".jsonl"
    path.write_text("\n".join(map(json.dumps, content)) if lines else json.dumps(content), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("r.jsonl", [{"pair_id": "a", "captions": ["one", "two"]}, {"pair_id": "b", "captions": ["three"]}]),
        ("r.jsonl", [{"pair_id": n, "caption": "x", "references": texts} for n, texts in TWO.items()]),
        ("r.jsonl", [{"image_id": n, "caption": c} for n, texts in TWO.items() for c in texts]),
        ("r.json", TWO),
        ("r.json", {"a": ["one", "two"], "b": "three"}),
        ("r.json", {"images": [{"id": "a"}, {"id": "b"}, {"id": "b"}], "annotations": [
            {"image_id": "a", "id": 7, "caption": "one"}, {"image_id": "b", "id": 8, "caption": "three"},
            {"image_id": "a", "id": 9, "caption": "two"}]}),
    ],
)  # fmt: skip
def test_every_form_of_references_gives_the_same(name: str, content: Any, tmp_path: Path) -> None:
    found = read_references(file(tmp_path / name, content))
    assert {pair.pair_id: pair.references for pair in found} == TWO


def test_what_else_is_known_of_a_pair_is_kept(tmp_path: Path) -> None:
    row = {"pair_id": "a", "captions": ["x"], "change_type": "move", "split": "valid"}
    assert read_references(file(tmp_path / "r.jsonl", [row])) == [
        Prediction(pair_id="a", caption="", references=["x"], change_type="move", split="val")
    ]
    rows = [{"pair_id": "a", "caption": "x", "split": "test"}, {"pair_id": "a", "caption": "y", "changed": True}]
    assert read_references(file(tmp_path / "r.jsonl", rows)) == [
        Prediction(pair_id="a", caption="", references=["x", "y"], changed=True, split="test")
    ]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("p.jsonl", [{"pair_id": "1", "caption": "x"}, {"pair_id": "2", "caption": "y", "score": 3}]),
        ("p.json", [{"image_id": 1, "caption": "x"}, {"image_id": 2, "caption": "y"}]),
        ("p.json", {"1": "x", "2": ["y"]}),
    ],
)
def test_every_form_of_predictions_gives_the_same(name: str, content: Any, tmp_path: Path) -> None:
    assert read_captions(file(tmp_path / name, content)) == {"1": "x", "2": "y"}


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("r.json", '{"a": ["one"', r"r\.json: not JSON"),
        ("r.json", "3", "holds a int"),
        ("r.json", '{"a": [1]}', "entry 0: not of the form"),
        ("LevirCCcaptions.json", '{"images": [{"filename": "train_000001.png", "sentences": []}]}',
         r"imported first \(jobs/import_dataset.py\); give the folder as pairs="),
        ("r.json", '{"a": [" "]}', "pair 'a' has an empty reference"),
        ("r.json", '[["a", "b"]]', "entry 0: a list and not an object"),
        ("r.json", '{"annotations": {}}', "images and annotations have to be lists"),
        ("r.json", '{"images": [{"id": "a"}, {"id": "b"}], "annotations": [{"image_id": "a", "caption": "x"}]}',
         "no references for 'b', which are listed under images"),
        ("r.json", '{"images": [{"id": "a"}], "annotations": [{"image_id": "c", "caption": "x"}, '
         '{"image_id": "a", "caption": "x"}]}', "references for 'c', which are not listed under images"),
        ("r.jsonl", '{"pair_id": "a", "captions": ["x"]}\nnothing', "line 2: not JSON"),
        ("r.jsonl", '{"pair_id": "a", "captions": ["x"]}\n{"pair_id": "a", "captions": ["y"]}',
         "line 2: pair 'a' is there twice"),
        ("r.jsonl", '{"captions": ["x"]}', "line 1: not of the form"),
        ("r.jsonl", '{"pair_id": "a", "captions": ["x"], "split": "tset"}', "line 1: split 'tset' is not one of"),
        ("r.jsonl", '{"pair_id": "a", "captions": ["x"], "changed": "yes"}', "changed is 'yes'"),
        ("r.json", '{"a": ["x"], "a": ["y"]}', r"r\.json: not usable as JSON: the key 'a' occurs twice"),
        ("r.jsonl",
         '{"pair_id": "a", "caption": "x", "split": "val"}\n{"pair_id": "a", "caption": "y", "split": "test"}',
         "line 2: pair 'a': split is 'test', in an earlier row 'val'"),
        ("r.jsonl", '{"pair_id": "a", "captions": ["x"], "references": ["y"]}', "line 1: captions and references"),
        ("r.jsonl", "\xff", r"r\.jsonl cannot be read"),
    ],
)  # fmt: skip
def test_a_broken_file_of_references_is_named_by_its_place(name: str, text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text, encoding="latin-1")
    with pytest.raises(ValueError, match=message):
        read_references(tmp_path / name)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("p.jsonl", '{"pair": "a"}', "line 1: not of the form"),
        ("p.jsonl", '{"pair_id": "a", "caption": null}', "line 1: pair_id and caption have to be text"),
        ("p.jsonl", '{"pair_id": 1, "caption": "x"}\n{"pair_id": "1", "caption": "x"}',
         "line 2: pair '1' is there twice"),
        ("p.json", '[{"image_id": "a", "caption": "x"}, {"image_id": "a", "caption": "x"}]',
         "entry 1: pair 'a' is there twice"),
    ],
)  # fmt: skip
def test_nothing_in_predictions_is_lost_or_guessed(name: str, text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=message):
        read_captions(tmp_path / name)
