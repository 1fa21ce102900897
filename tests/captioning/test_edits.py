"""Edited images against their instructions: what was asked for among the claims, and what changed besides."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import serve
from idc.captioning.edits import instruction_in, judged_edit
from tests.conftest import Command

EXAMPLES = Path(serve.__file__).parent / "web" / "examples" / "photographs"
LEFT, RIGHT = [0, 0, 100, 100], [200, 0, 300, 100]


def claim(kind: str, thing: str, box: list[int] | None = LEFT, **fields: Any) -> dict[str, Any]:
    boxes = {"box_before": None if kind == "appeared" else box, "box_after": None if kind == "gone" else box}
    return {"kind": kind, "object": thing, "count": 1, "where": "on the left", "before": None, "after": None,
            **boxes, **fields}  # fmt: skip


def fields(*claims: dict[str, Any], regions: tuple[tuple[list[int], float], ...] = ((LEFT, 0.1),)) -> dict[str, Any]:
    return {"claims": list(claims), "regions": [{"box": box, "share": share} for box, share in regions]}


HORSE = claim("replaced", "zebra", before="zebra", after="horse")
CASES: list[tuple[str, dict[str, Any], str, float | None]] = [
    ("Turn the zebra into a horse.", fields(HORSE), "found", 0.0),
    ("Turn the zebra into a horse.", fields(claim("gone", "zebra"), claim("appeared", "horse")), "found", 0.0),
    ("add a horse", fields(claim("appeared", "horse")), "found", 0.0),
    ("add a horse", fields(claim("gone", "horse")), "not found", 1.0),
    ("Remove the dogs from the bench", fields(claim("gone", "dog")), "found", 0.0),
    ("Remove the dogs from the bench", fields(claim("gone", "bench")), "not found", 1.0),
    ("remove the man", fields(claim("gone", "person")), "found", 0.0),
    ("Let there be a car on the road", fields(claim("appeared", "car")), "found", 0.0),
    ("put an owl on the bear's head", fields(claim("changed", "bear")), "not seen", None),
    ("make the girl smile", fields(claim("changed", "person")), "not seen", None),
    ("make it brighter", fields(), "not seen", None),
    ("carpet the floor", fields(claim("appeared", "car")), "not seen", None),
    ("add a horse", fields(), "not found", 1.0),
    ("add a horse", fields(regions=()), "not found", None),
]


@pytest.mark.parametrize(("instruction", "result", "found", "collateral"), CASES)
def test_what_was_asked_for_is_found_by_rules(
    instruction: str, result: dict[str, Any], found: str, collateral: float | None
) -> None:
    edit = judged_edit(instruction, result)
    assert (edit.found, edit.collateral) == (found, collateral)


def test_the_rest_is_measured_and_said() -> None:
    sky = claim("changed", "region", RIGHT, where="at the top right")
    edit = judged_edit("Turn the zebra into a horse", fields(HORSE, sky, regions=((LEFT, 0.1), (RIGHT, 0.3))))
    assert edit.collateral == pytest.approx(0.75)
    assert edit.sentence == (
        "The zebra became a horse; besides, the region at the top right changed. 75% of the changed area is outside of "
        "what was asked for."
    )
    half = judged_edit("add a dog", fields(claim("appeared", "dog", [0, 0, 50, 100])))
    assert half.collateral == pytest.approx(0.5), "half of the region is outside of the claim's box"


def test_the_instruction_is_one_of_the_columns_of_a_row() -> None:
    assert instruction_in({"instruction": "add a dog"}) == instruction_in('{"instruction": "add a dog"}') == "add a dog"
    assert {instruction_in(meta) for meta in (None, "", "{", "[]", {"instruction": " "}, {"instruction": 3})} == {None}


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_rows_with_an_instruction_have_both_numbers(suffix: str, tmp_path: Path, command: Command) -> None:
    pair = {side: str(EXAMPLES / name) for side, name in json.loads((EXAMPLES / "pairs.json").read_text())[0].items()
            if side in ("before", "after")}  # fmt: skip
    rows = [{**pair, "instruction": "make it brighter"}, {**pair, "instruction": None}]
    table = tmp_path / f"pairs.{suffix}"
    if suffix == "jsonl":
        table.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        pq.write_table(pa.Table.from_pylist(rows), table)
    out = tmp_path / "rows.jsonl"
    done = command(
        "caption", "--input", table, "--out", tmp_path / "out", "--local", f"jsonl={out}", "artifact=objects"
    )
    assert done.returncode == 0, done.stderr
    first, second = map(json.loads, out.read_text().splitlines())
    assert first["edit"]["found"] == "not seen"
    assert second["edit"] is None
