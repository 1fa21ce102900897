"""Instructions: checked, and stored in the same folders as pairs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from idc.data.schema import (
    IMAGE,
    Instruction,
    Turn,
    instruction_arrow_schema,
)
from idc.data.store import DatasetFolder, MappedRows, iter_rows, read_manifest

DIALOGUE = Instruction(
    row_id="LEVIR_1/2",
    images=(b"one", b"two", b"three"),
    turns=(
        Turn("system", "Answer briefly."),
        Turn("user", f"Compare {IMAGE} with {IMAGE}: did anything change?"),
        Turn("assistant", "Yes.", "binary"),
        Turn("user", f"{IMAGE}Where are the buildings of this mask?"),
        Turn("assistant", "top left, center", "location"),
    ),
    split="val",
    of_pair="LEVIR_1",
    source="made:1",
    meta={"clean": True},
)
QUESTION = Instruction("q", (), (Turn("user", "What is a change?"), Turn("assistant", "A difference.", "caption")))


def build(path: Path, kind: str, schema: Any, rows: list[dict[str, Any]]) -> DatasetFolder:
    folder = DatasetFolder.open_for_build(path, kind=kind, schema=schema, fingerprint="f", config={}, num_chunks=1)
    folder.write_chunk(0, rows)
    folder.finish()
    return folder


def test_rows_come_back_as_they_were_stored(tmp_path: Path) -> None:
    records = [DIALOGUE, QUESTION]
    build(tmp_path / "data", "instructions", instruction_arrow_schema(), [record.to_row() for record in records])
    manifest = read_manifest(tmp_path / "data", "instructions")
    assert (manifest.schema_version, manifest.num_rows) == (1, 2)
    assert sum(manifest.rows_by_split.values()) == 2
    assert [Instruction.from_row(row) for row in iter_rows(tmp_path / "data")] == records
    assert [Instruction.from_row(row) for row in MappedRows(tmp_path / "data", split="val")] == records[:1]
    with pytest.raises(ValueError, match="holds instructions, not pairs"):
        read_manifest(tmp_path / "data", "pairs")


def test_a_row_whose_images_are_names_is_not_stored() -> None:
    row = {"row_id": "r", "images": ["images/a.png"], "turns": [
        {"role": "user", "text": f"{IMAGE}?"}, {"role": "assistant", "text": "x", "task": "caption"}]}  # fmt: skip
    named = Instruction.from_row(row)
    with pytest.raises(ValueError, match=r"row 'r': images\[0\] is the name 'images/a.png'; load its bytes"):
        named.to_row()


def turns(*changes: tuple[int, str, Any]) -> dict[str, Any]:
    rows = [dict(turn) for turn in DIALOGUE.to_row()["turns"]]
    for number, name, value in changes:
        rows[number][name] = value
    return {"turns": rows}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"row_id": ""}, "row_id is empty; every row needs"),
        ({"split": "dev"}, "row 'LEVIR_1/2': split 'dev' is not one of train, val, test"),
        (turns((1, "role", "assistant")), r"turns\[1\].role is 'assistant', expected 'user'"),
        (turns((3, "text", " ")), r"turns\[3\].text is ' ', expected a text"),
        (turns((2, "text", f"see {IMAGE}")), r"turns\[2\].text: an answer has <image>"),
        (turns((4, "task", None)), r"turns\[4\].task is None"),
        (turns((1, "task", "count")), r"turns\[1\].task is 'count'; only answers"),
        ({"images": [b"one", b"two"]}, "3 times <image> in turns, and 2 images"),
        ({"images": [b"one", b"two", b""]}, r"images\[2\] is empty"),
    ],
)
def test_wrong_instructions_are_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Instruction.from_row({**DIALOGUE.to_row(), **change})
