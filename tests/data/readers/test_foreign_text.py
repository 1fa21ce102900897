"""Text, JSON and Parquet of others: every reader keeps it, rejects it with its place, or refuses it in one line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from idc.data.config import ImportConfig, ValidateJob
from idc.data.pipeline import iter_chunks
from idc.data.readers import open_reader
from idc.data.rows import open_rows
from idc.data.store import iter_rows, read_rejects
from idc.data.validation.run import validate
from idc.schema import ChangePair
from tests.data.container_sets import instruct_pix2pix, procap_hdf5
from tests.data.official_layouts import Official
from tests.data.readers.test_own import FOLDERS, prepare, put, table_images
from tests.data.small_sets import OFFICIAL

NAMES = {"before": "images/1.png", "after": "images/2.png"}


def jsonl(tmp_path: Path, *lines: str) -> tuple[dict[str, list[str]], dict[str, str]]:
    """The captions of the pairs and the reasons of the rejects of a table; a line is put into the row's braces."""
    table_images(tmp_path)
    images = json.dumps(NAMES)[1:-1]
    (tmp_path / "t.jsonl").write_bytes("".join(f"{{{images}, {line}}}\n" for line in lines).encode())
    return imported(tmp_path, tmp_path / "t.jsonl", "jsonl")


def imported(tmp_path: Path, source: Path, format: str, **more: Any) -> tuple[dict[str, list[str]], dict[str, str]]:
    prepare(source, tmp_path / "out", format, **more)
    pairs = {row["pair_id"]: row["captions"] for row in iter_rows(tmp_path / "out")}
    return pairs, dict(read_rejects(tmp_path / "out"))


def metas(tmp_path: Path) -> dict[str, Any]:
    """The meta of every pair, as a strict reader of JSON takes it."""

    def refuse(name: str) -> Any:
        raise AssertionError(f"{name} is no JSON")

    return {row["pair_id"]: json.loads(row["meta"], parse_constant=refuse) for row in iter_rows(tmp_path / "out")}


DEEP = "[" * 100_000 + "]" * 100_000
LONG = "1" * 5_000
SURROGATE = '"half \\ud83d a smile"'
FAULTS = {
    "a repeated key": ('"a": 1, "a": 2', "the key 'a' occurs twice"),
    "depth": (f'"a": {DEEP}', "nested too deep"),
    "an integer of 5,000 digits": (f'"a": {LONG}', "4300 digits"),
    "NaN": ('"a": NaN', "NaN is not a JSON number"),
}


# ------------------------------------------------------------------------------------------------ JSON lines


@pytest.mark.parametrize("name", FAULTS)
def test_a_row_that_is_no_json_is_a_reject_with_its_line(tmp_path: Path, name: str) -> None:
    text, reason = FAULTS[name]
    pairs, rejects = jsonl(tmp_path, '"pair_id": "p1"', f'"pair_id": "p2", {text}', '"pair_id": "p3"')
    assert list(pairs) == ["p1", "p3"]
    assert list(rejects) == ["t.jsonl:2"]
    assert rejects["t.jsonl:2"].startswith("bad row: ")
    assert reason in rejects["t.jsonl:2"]
    batches = list(iter_chunks(open_rows(str(tmp_path / "t.jsonl"))))
    assert [name for batch in batches for name in batch["pair_id"]] == ["p1", "t.jsonl:2", "p3"]


def test_half_a_character_is_a_reject_in_every_column(tmp_path: Path) -> None:
    lines = [f'"pair_id": "p1", "caption": {SURROGATE}', f'"pair_id": {SURROGATE}', '"pair_id": "p3"']
    lines += [f'"pair_id": "p4", "meta": {{"note": {SURROGATE}}}', f'"pair_id": "p5", "note": [{SURROGATE}]']
    lines += [f'"pair_id": "p6", "change_type": {SURROGATE}', f'"pair_id": "p7", "mask": {SURROGATE}']
    lines += [f'"pair_id": "p8", "split": {SURROGATE}', '"pair_id": "p9", "caption": "\\ud83d\\ude00"']
    pairs, rejects = jsonl(tmp_path, *lines)
    assert pairs == {"p3": [], "p9": ["\U0001f600"]}
    assert len(rejects) == len(lines) - 2
    assert {rejects[name].partition(":")[0] for name in ("p1", "p4", "p5", "p6")} == {"not UTF-8"}
    result = validate(ValidateJob(pairs=str(tmp_path / "t.jsonl")), progress=False).result
    assert (result.num_pairs, result.usable_pairs) == (len(lines), 2)


def test_numbers_that_json_has_not_are_never_stored(tmp_path: Path) -> None:
    pairs, rejects = jsonl(
        tmp_path,
        '"pair_id": "p1", "score": 1e999',
        '"pair_id": "p2", "meta": {"score": -1e999}',
        '"pair_id": "p3", "meta": "{\\"score\\": NaN}"',
        '"pair_id": "p4", "meta": "{\\"score\\": 1, \\"score\\": 2}"',
        f'"pair_id": "p5", "note": "x", "meta": "{DEEP}"',
        f'"pair_id": "p6", "meta": "{DEEP}"',
        '"pair_id": "p7", "score": 0.5',
    )
    assert list(pairs) == ["p7"]
    assert list(rejects) == [f"p{n}" for n in range(1, 7)]
    assert {reason.split(":")[0] for reason in rejects.values()} == {"bad row"}
    assert metas(tmp_path) == {"p7": {"score": 0.5}}


def test_a_pair_may_not_store_what_is_no_json() -> None:
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


def test_the_columns_of_this_program_are_not_set_from_outside(tmp_path: Path) -> None:
    pairs, rejects = jsonl(tmp_path, '"pair_id": "p1", "error": "mine", "before_size": [1, 1]', '"pair_id": "p2"')
    assert (list(pairs), rejects) == (["p1", "p2"], {})
    assert metas(tmp_path)["p1"] == {"error": "mine", "before_size": [1, 1]}
    put(tmp_path / "in", {**FOLDERS["A and B endings"], "captions.json": '{"x": {"captions": "a", "error": "mine"}}'})
    pairs, rejects = imported(tmp_path / "folder", tmp_path / "in", "folder")
    assert (pairs, rejects) == ({"x": ["a"], "y": []}, {})
    assert metas(tmp_path / "folder")["x"] == {"error": "mine"}


@pytest.mark.parametrize("value", ["5", "true", '["images/1.png"]', '{"bytes": 5}'])
def test_a_cell_that_names_no_image_is_told_as_it_is(tmp_path: Path, value: str) -> None:
    table_images(tmp_path)
    (tmp_path / "t.jsonl").write_text(f'{{"pair_id": "p1", "before": {value}, "after": "images/2.png"}}\n')
    _, rejects = imported(tmp_path, tmp_path / "t.jsonl", "jsonl")
    assert rejects["p1"].startswith("bad row: before, ")
    assert "the cell is empty" not in rejects["p1"]


# ------------------------------------------------------------------------------------------------ folders


def test_a_byte_order_mark_is_in_no_caption(tmp_path: Path) -> None:
    mark = "\ufeff"
    files = {**FOLDERS["two folders"], "x.txt": f"{mark}moved\n", "captions.json": f'{mark}{{"y": "gone"}}'}
    pairs, _ = imported(tmp_path / "folder", put(tmp_path / "in", files), "folder")
    assert pairs == {"x": ["moved"], "y": ["gone"]}
    pairs, _ = jsonl(tmp_path / "lines", '"pair_id": "p1", "caption": "moved"')
    table = tmp_path / "lines/t.jsonl"
    table.write_text(mark + table.read_text())
    assert imported(tmp_path / "marked", table, "jsonl")[0] == pairs == {"p1": ["moved"]}


@pytest.mark.parametrize("make", [*OFFICIAL.values(), instruct_pix2pix, procap_hdf5], ids=lambda make: make.__name__)
def test_a_byte_order_mark_changes_no_official_set(tmp_path: Path, make: Callable[[], Official]) -> None:
    official = make()
    official.files = {file: f"\ufeff{text}" if isinstance(text, str) else text for file, text in official.files.items()}
    source = official.write(tmp_path / "in")
    pairs, rejects = imported(tmp_path, source, official.format, **official.settings)
    assert pairs == {name: pair[3] for name, pair in official.pairs.items()}
    assert rejects == {}


def test_only_line_ends_end_a_caption(tmp_path: Path) -> None:
    text = "a\u2028line\x0cfeed\x85and\x1cmore\rgone\r\nmoved\n"
    expected = ["a\u2028line\x0cfeed\x85and\x1cmore", "gone", "moved"]
    pairs, _ = imported(tmp_path / "f", put(tmp_path / "in", {**FOLDERS["two folders"], "x.txt": text}), "folder")
    assert pairs["x"] == expected


@pytest.mark.parametrize("name", FAULTS)
def test_captions_json_with_a_fault_is_refused(tmp_path: Path, name: str) -> None:
    text, reason = FAULTS[name]
    put(tmp_path / "in", {**FOLDERS["two folders"], "captions.json": f'{{"x": "moved", {text}}}'})
    with pytest.raises(ValueError, match=rf"captions\.json: .*{reason}"):
        open_reader("folder", str(tmp_path / "in"), ImportConfig())


def test_captions_of_one_pair_under_two_names_are_not_dropped(tmp_path: Path) -> None:
    for number, more in enumerate(
        (
            {"captions.json": '{"x": "moved", "x.png": "gone"}'},
            {"captions.json": '{"x": "moved"}', "x.txt": "gone"},
            {"x.txt": "moved", "captions/x.txt": "gone"},
            {"train/captions.json": '{"x": "moved"}', "captions.json": '{"train/x": "gone"}'},
        )
    ):
        folder = "train/" if "train/captions.json" in more else ""
        images = {f"{folder}before/x.png": 1, f"{folder}after/x.png": 2, "before/y.png": 1, "after/y.png": 2}
        source = put(tmp_path / f"in{number}", {**images, **more})
        pairs, rejects = imported(tmp_path / f"out{number}", source, "folder")
        assert list(pairs) == ["y"]
        assert list(rejects) == [f"{folder}x"]
        assert rejects[f"{folder}x"].startswith("bad row: captions in ")


def test_a_file_of_captions_may_add_what_text_files_do_not_say(tmp_path: Path) -> None:
    files = {**FOLDERS["two folders"], "captions.json": '{"x": {"change_type": "move", "split": "val"}}'}
    pairs, rejects = imported(tmp_path, put(tmp_path / "in", files), "folder")
    assert (pairs, rejects) == ({"x": ["moved", "gone"], "y": []}, {})
    (row,) = (row for row in iter_rows(tmp_path / "out") if row["pair_id"] == "x")
    assert (row["change_type"], row["split"]) == ("move", "val")


def test_a_split_that_contradicts_the_folder_is_a_reject(tmp_path: Path) -> None:
    images = {f"train/{role}/{name}.png": 1 for role in ("before", "after") for name in "xyz"}
    text = '{"x": {"split": "val"}, "y": {"split": "training"}}'
    pairs, rejects = imported(tmp_path, put(tmp_path / "in", {**images, "train/captions.json": text}), "folder")
    assert set(pairs) == {"train/y", "train/z"}
    assert rejects == {"train/x": "bad split: train/x is in the folder of train, but captions.json gives 'val'"}


def test_text_files_of_no_pair_are_counted(tmp_path: Path) -> None:
    files = {**FOLDERS["two folders"], "captions/z.txt": "of nobody", "captions.json": '{"w\\ud83d": "of nobody"}'}
    manifest = prepare(put(tmp_path / "in", files), tmp_path / "out", "folder")
    assert manifest.extra["captions_without_pair"] == 2
    assert any("captions/z.txt" in note for note in manifest.extra["notes"])
    assert any("w\\" in note or "w?" in note for note in manifest.extra["notes"])


# ------------------------------------------------------------------------------------------------ annotation files


def records(entry: str) -> str:
    """Spot-the-Diff's train.json with a damaged entry between two whole ones."""
    good = [f'{{"img_id": "{n}", "sentences": ["{text}"]}}' for n, text in ((1, "a"), (3, "c"))]
    return f'[{good[0]}, {{"img_id": "2", "sentences": ["b"], {entry}}}, {good[1]}]'


@pytest.mark.parametrize("name", FAULTS)
def test_an_entry_with_a_fault_costs_its_file_and_is_named(tmp_path: Path, name: str) -> None:
    text, reason = FAULTS[name]
    source = put(tmp_path / "in", {"train.json": records(text), "val.json": records('"x": 1')})
    pairs, rejects = imported(tmp_path, source, "spot_the_diff")
    assert pairs == {"1": ["a"], "2": ["b"], "3": ["c"]}
    assert list(rejects) == ["train.json"]
    assert reason in rejects["train.json"]


@pytest.mark.parametrize("name", FAULTS)
def test_an_entry_of_an_object_with_a_fault_costs_its_file_and_is_named(tmp_path: Path, name: str) -> None:
    text, reason = FAULTS[name]
    captions = f'{{"000001.png": ["a"], "000002.png": {{{text}}}, "000003.png": ["c"]}}'
    source = put(tmp_path / "in", {"change_multi_captions.json": captions, "splits.json": '{"train": [1, 3]}'})
    pairs, rejects = imported(tmp_path, source, "spot_the_diff", spot_the_diff={"protocol": "multi"})
    assert pairs == {"1": [], "3": []}
    assert list(rejects) == ["change_multi_captions.json"]
    assert reason in rejects["change_multi_captions.json"]


def test_half_a_character_in_annotations_costs_its_pair(tmp_path: Path) -> None:
    entries = [('"1"', SURROGATE), (SURROGATE, '"b"'), ('"3"', '"c"')]
    text = ", ".join(f'{{"img_id": {name}, "sentences": [{sentence}]}}' for name, sentence in entries)
    source = put(tmp_path / "in", {"train.json": f"[{text}]"})
    pairs, rejects = imported(tmp_path, source, "spot_the_diff")
    assert pairs == {"3": ["c"]}
    assert [reason.split(":")[0] for reason in rejects.values()] == ["not UTF-8", "not UTF-8"]
    result = validate(ValidateJob(pairs=str(source), format="spot_the_diff"), progress=False).result
    assert (result.num_pairs, result.usable_pairs) == (3, 1)


@pytest.mark.parametrize(
    ("format", "files", "place"),
    [
        ("clevr_change", {"splits.json": '{"train": [1, 2]}',
                          "change_captions.json": '{"000001.png": ["a"], "CLEVR_default_000001.png": ["b"]}'},
         "change_captions.json:CLEVR_default_000001.png"),
        ("clevr_dc", {"split.json": '{"train": [1, 2]}', "captions.json": '{"1": ["a"], "000001.png": ["b"]}'},
         "captions.json:000001.png"),
        ("cdvqa", {"Train_questions.json": '{"questions": [{"id": 1, "img_id": 1, "type": "t", "question": "q"}]}',
                   "Train_answers.json": '{"answers": [{"question_id": 1, "answer": "a"}, '
                                         '{"question_id": 1, "answer": "b"}]}',
                   "Train_images.json": '{"images": [{"id": 1, "file_name": "1.png"}]}'},
         "Train_answers.json:1"),
    ],
)  # fmt: skip
def test_one_pair_under_two_names_is_a_reject(tmp_path: Path, format: str, files: dict[str, str], place: str) -> None:
    _, rejects = imported(tmp_path, put(tmp_path / "in", {**files}), format)
    assert rejects[place].startswith("duplicate pair id: ")
    assert len(rejects) == 1


def test_two_files_of_one_split_are_refused(tmp_path: Path) -> None:
    source = put(tmp_path / "in", {name: records('"x": 1') for name in ("train.json", "val.json", "valid.json")})
    with pytest.raises(ValueError, match=r"several files for val: val\.json, valid\.json"):
        open_reader("spot_the_diff", str(source), ImportConfig())


@pytest.mark.parametrize("name", FAULTS)
def test_seeds_and_prompts_with_a_fault(tmp_path: Path, name: str) -> None:
    text, reason = FAULTS[name]
    official = instruct_pix2pix()
    official.files["0000001/prompt.json"] = f'{{"edit": "x", {text}}}'
    _, rejects = imported(tmp_path, official.write(tmp_path / "in"), "instruct_pix2pix")
    assert list(rejects) == ["0000001_1"]
    assert reason in rejects["0000001_1"]
    put(tmp_path / "in", {"seeds.json": f'[["0000001", ["1"]], {{{text}}}]'})
    with pytest.raises(ValueError, match=rf"seeds\.json: .*{reason}"):
        open_reader("instruct_pix2pix", str(tmp_path / "in"), ImportConfig())
