"""Instructions and captions with an origin: checked, and stored in the same folders as pairs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from idc.data.config import ImportJob
from idc.data.images import encode_png
from idc.data.importing import open_import
from idc.data.pipeline import run_local
from idc.data.schema import (
    IMAGE,
    CaptionOrigin,
    ChangePair,
    Instruction,
    Turn,
    instruction_arrow_schema,
    pair_arrow_schema,
)
from idc.data.store import DatasetFolder, MappedRows, iter_rows, read_manifest, read_rejects

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


def test_a_caption_keeps_its_origin(tmp_path: Path) -> None:
    machine = CaptionOrigin("procap@1a2b", 0.75)
    pair = ChangePair("p", b"x", b"y", ("a", "b", "c"), caption_origins=(machine, None, CaptionOrigin("judge")))
    plain = ChangePair("q", b"x", b"y", ("a",))
    build(tmp_path / "with", "pairs", pair_arrow_schema(origins=True), [pair.to_row(), plain.to_row()])
    assert [ChangePair.from_row(row) for row in iter_rows(tmp_path / "with")] == [pair, plain]


@pytest.mark.parametrize("format", ["jsonl", "parquet"])
def test_origins_of_ones_own_table_are_imported(format: str, tmp_path: Path) -> None:
    """Blank captions lose theirs, wrong ones are rejects, copies of the folder keep them."""
    for name in ("before.png", "after.png", "same.png"):
        level = 40 if name == "after.png" else 20
        (tmp_path / name).write_bytes(encode_png(np.full((8, 8, 3), level, np.uint8)))
    machine, sure = {"source": "procap@1", "confidence": None}, {"source": "blip@2", "confidence": 0.5}
    pair = {"before": "before.png", "after": "after.png", "split": "train"}
    records = [
        {**pair, "pair_id": "a", "captions": ["x", " ", "y"], "caption_origins": [machine, sure, None]},
        {**pair, "pair_id": "b", "captions": ["z"], "caption_origins": None},
        {**pair, "pair_id": "c", "captions": ["z"], "caption_origins": [machine, sure]},
        {**pair, "pair_id": "d", "captions": ["z", "w"], "caption_origins": [None, sure], "after": "same.png"},
    ]
    table = tmp_path / f"pairs.{format}"
    if format == "jsonl":
        table.write_text("\n".join(json.dumps(record) for record in records))
    else:
        pq.write_table(pa.Table.from_pylist(records), table)
    job = ImportJob(source=str(table), out=str(tmp_path / "out"), format=format, max_reject_share=0.5)
    run_local(*open_import(job), progress=False, max_reject_share=0.5)
    found = {row["pair_id"]: ChangePair.from_row(row) for row in iter_rows(tmp_path / "out")}
    assert found["a"].captions == ("x", "y")
    assert found["a"].caption_origins == (CaptionOrigin("procap@1"), None)
    assert found["b"].caption_origins == ()
    assert found["d"].caption_origins == (None, CaptionOrigin("blip@2", 0.5))
    [reject] = read_rejects(tmp_path / "out")
    assert (reject.row_id, reject.reason) == ("c", "bad row: 2 caption_origins of 1 captions")


@pytest.mark.parametrize(
    ("origins", "message"),
    [
        ([None], "pair 'p': 1 caption_origins of 2 captions"),
        ([None, "blip"], r"caption_origins\[1\] is 'blip', neither null nor"),
        ([None, {"source": ""}], r"caption_origins\[1\]: source is ''; name the model"),
        (
            [{"source": "m", "confidence": 1.5}, None],
            r"caption_origins\[0\]: confidence is 1.5, not a number from 0 to 1",
        ),
    ],
)
def test_wrong_origins_are_named(origins: Any, message: str) -> None:
    row = ChangePair("p", b"x", b"y", ("a", "b")).to_row()
    if origins == [None]:
        origins = [{"source": "m", "confidence": None}]
    with pytest.raises(ValueError, match=message):
        ChangePair.from_row({**row, "caption_origins": origins})
