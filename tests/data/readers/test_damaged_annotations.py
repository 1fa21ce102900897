"""Damaged annotations of the official layouts: what costs an entry, a file, or the whole set."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from idc.data.config import ImportConfig, ValidateJob
from idc.data.readers import open_reader
from idc.data.store import iter_rows, read_rejects
from idc.data.validation.run import validate
from tests.data import small_sets
from tests.data.readers.test_own import prepare, put
from tests.folders import read_chunks

SETS = small_sets.OFFICIAL
HALF = '"half \\ud83d a smile"'
QUESTIONS = {
    "Train_questions.json": '{"questions": [{"id": 1, "img_id": 1, "type": "t", "question": "q"}]}',
    "Train_answers.json": '{"answers": [{"question_id": 1, "answer": "a"}, {"question_id": 1, "answer": "b"}]}',
    "Train_images.json": '{"images": [{"id": 1, "file_name": "1.png"}]}',
}


# Set, what other files are put into it, and rejects: place -> beginning and a part of the reason
ENTRIES: list[tuple[str, dict[str, str], dict[str, tuple[str, str]]]] = [
    ("clevr_change", {"type_mapping.json": "[]"}, {"type_mapping.json": ("bad file", "holds a list, not an object")}),
    (
        "clevr_change",
        {"type_mapping.json": '{"color": ["x", "000001.png"], "drop": ["000001.png"], "add": 3}'},
        {"type_mapping.json:color:0": ("bad row", "'x' names no triple"),
         "type_mapping.json:drop:0": ("bad row", "triple 1 is in 'color' and in 'drop'"),
         "type_mapping.json:add": ("bad row", "'add' is not a list of triples")},
    ),
    (
        "clevr_change", {"change_captions.json": '{"CLEVR_default_000001.png": 3}'},
        {"000001c": ("bad row", "captions is 3, not a list of texts")},
    ),
    (
        "clevr_change", {"change_captions.json": '{"000001.png": ["a"], "CLEVR_default_000001.png": ["b"]}'},
        {"change_captions.json:CLEVR_default_000001.png": ("duplicate pair id", "")},
    ),
    ("cdvqa", QUESTIONS, {"Train_answers.json:1": ("duplicate pair id", "")}),
    (
        "spot_the_diff",
        {"train.json": f'[{{"img_id": "1", "sentences": [{HALF}]}}, {{"img_id": {HALF}, "sentences": ["b"]}}]'},
        {"1": ("not UTF-8", ""), "half ? a smile": ("not UTF-8", "")},
    ),
]  # fmt: skip


@pytest.mark.parametrize(("name", "damaged", "rejects"), ENTRIES)
def test_what_costs_an_entry_or_a_file(
    name: str, damaged: dict[str, str], rejects: dict[str, tuple[str, str]], tmp_path: Path
) -> None:
    official = SETS[name]() if name in SETS else None
    files = {} if official is None else official.files
    texts = {name: text for name, text in files.items() if isinstance(text, str)}
    source = put(tmp_path / "in", {**texts, **damaged})
    format, settings = (name, {}) if official is None else (official.format, official.settings)
    manifest = prepare(source, tmp_path / "out", format, **settings)
    actual = dict(read_rejects(tmp_path / "out"))
    assert actual.keys() == rejects.keys()
    for place, (code, part) in rejects.items():
        assert actual[place].startswith(f"{code}: ")
        assert part in actual[place]
    assert manifest.num_rows > 0
    result = validate(ValidateJob(pairs=str(source), format=format, **settings), progress=False).result
    assert (result.num_pairs - result.usable_pairs, sum(p.count for p in result.problems.values())) == (
        len(rejects), len(rejects),
    )  # fmt: skip


REFUSED = [
    ("clevr_change", {"splits.json": '{"holdout": [1]}'}, "'holdout' is not one of train, val, test"),
    ("clevr_change", {"splits.json": "{"}, r"splits\.json is not JSON"),
    ("clevr_change", {"splits.json": "[]"}, r"splits\.json holds a list"),
    ("clevr_change", {"splits.json": "{}"}, "it is empty"),
    ("clevr_change", {"notes.txt": "x"}, r"no splits\.json"),
    ("spot_the_diff", dict.fromkeys(["val.json", "valid.json"], "[]"), "several files for val: val.json, valid.json"),
    ("spot_the_diff", {"splits.json": '{"train": [1]}', "change_multi_captions.json": "{}"},
     r"give spot_the_diff\.protocol=multi"),
    ("levir", {"LevirCCcaptions.json": "<html>"}, r"no pair that can be read: .*LevirCCcaptions\.json is not JSON"),
    ("levir", {"LevirCCcaptions.json": '{"pictures": []}'}, "has no list 'images'"),
    ("instruct_pix2pix", {"seeds.json": '[["0000001", ["1"]], {"a": 1, "a": 2}]'}, r"seeds\.json: .*occurs twice"),
]  # fmt: skip


@pytest.mark.parametrize(("format", "texts", "message"), REFUSED)
def test_what_costs_the_whole_set(
    format: str, texts: dict[str, int | str | bytes], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=message):
        open_reader(format, str(put(tmp_path, texts)), ImportConfig())  # type: ignore[arg-type]


def test_types_of_clevr_change_and_absent_files_that_are_noted(tmp_path: Path) -> None:
    official = small_sets.clevr_change()
    prepare(official.write(tmp_path / "whole"), tmp_path / "built", "clevr_change")
    rows = {row["pair_id"]: row for row in iter_rows(tmp_path / "built")}
    assert [rows[name]["change_type"] for name in ("000000c", "000001c", "000001nc")] == ["color", "drop", "none"]
    assert json.loads(rows["000001c"]["meta"]) == {"triple": 1, "viewpoint_iou": 0.5}
    absent = ("change_captions.json", "no_change_captions.json", "change_captions_by_IOU.json", "type_mapping.json")
    for name in (*absent, *(f"{role}_000004.png" for role in ("images/CLEVR_default", "sc_images/CLEVR_semantic",
                                                             "nsc_images/CLEVR_nonsemantic"))):  # fmt: skip
        del official.files[name]
    source = official.write(tmp_path / "in")
    manifest = prepare(source, tmp_path / "out", "clevr_change")
    assert (manifest.num_without_captions, manifest.extra["absent_triples"]) == (8, 1)
    notes = " ".join(manifest.extra["notes"])
    assert all(name in notes for name in absent)
    assert {row["change_type"] for row in iter_rows(tmp_path / "out", ["change_type"])} == {None, "none"}


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_chunks_of_clevr_change_hold_whole_triples_and_the_last_one_all_rejects(size: int, tmp_path: Path) -> None:
    official = small_sets.clevr_change()
    config = ImportConfig(chunk_size=size)
    pairs = [f"{number:06d}{kind}" for number in range(5) for kind in ("c", "nc")]
    whole = 4 if size == 4 else 2
    expected = [pairs[first : first + whole] for first in range(0, len(pairs), whole)]
    source = open_reader("clevr_change", official.write(tmp_path / "intact"), config)
    assert [batch["pair_id"] for batch in read_chunks(source)] == expected
    folder, rejects = official.write_damaged(tmp_path / "damaged")
    *chunks, last = [batch["pair_id"] for batch in read_chunks(open_reader("clevr_change", folder, config))]
    assert (chunks, set(last)) == (expected, rejects.keys() - {"000001c"})
