"""Statistics and splits of OmniDiff, from folders written in the layout that the reader assumes."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from idc.data.config import ValidateJob
from idc.data.readers.omnidiff import TYPES
from idc.data.validation.report import kinds_lines, kinds_rows, read_report, validation_table, write_validation_report
from idc.data.validation.run import ValidationFindings, validate
from tests.data.readers.test_own import prepare, put

SHORT = "A black bird has appeared on the tree stump."
LONG = (
    "The man in a gray coat, blue pants and a red bag, who was on the left side of the road, is no longer visible. "
    "A blue sign has appeared on the ground in front of the sidewalk."
)


def written(folder: Path, sizes: Mapping[str, Mapping[str, int]], images: bool = False) -> Path:
    """Pairs in the assumed layout; every third has a long caption, and types go round, one or two of them by turns."""
    grey = itertools.count()
    for subset, splits in sizes.items():
        for split, size in splits.items():
            records = []
            for n in range(size):
                types = [TYPES[n % 12], *([TYPES[(n + 5) % 12]] if n % 2 else [])]
                record: dict[str, Any] = {
                    "id": f"{split}-{n:06d}", "captions": [LONG if n % 3 == 0 else SHORT], "types": types,
                    "before": f"images/{split}-{n}_a.jpg", "after": f"images/{split}-{n}_b.jpg",
                }  # fmt: skip
                records.append(record)
                if images:
                    put(folder / subset, {record["before"]: next(grey), record["after"]: next(grey)})
            put(folder, {f"{subset}/{split}.json": json.dumps(records)})
    return folder


def check(path: Path, **settings: Any) -> ValidationFindings:
    return validate(ValidateJob(pairs=str(path), pictures=0, **settings), progress=False)


def test_an_imported_folder_has_its_statistics_next_to_tables_1_and_2(tmp_path: Path) -> None:
    sizes = {"real": {"train": 24, "val": 12, "test": 5}, "render": {"train": 12, "test": 12}}
    prepare(written(tmp_path / "in", sizes, images=True), tmp_path / "out", "omnidiff")
    result = check(tmp_path / "out").result
    assert result.ok
    head, *rows = kinds_rows(result)
    assert head == [
        "pairs with a change of", "real train", "real val", "real test", "render train", "render test", "all",
    ]  # fmt: skip
    assert [row[0] for row in rows] == list(TYPES)
    # a pair with an odd number has two types
    counts = {row[0]: row[1:] for row in rows}
    assert sum(int(row[1]) for row in rows) == 24 + 12
    per_kind = {
        kind: sum(kind in {TYPES[n % 12], *([TYPES[(n + 5) % 12]] if n % 2 else [])} for n in range(24))
        for kind in TYPES
    }
    assert {kind: int(row[0]) for kind, row in counts.items()} == per_kind
    assert result.kinds_per_pair == {1: 12 + 6 + 3 + 6 + 6, 2: 12 + 6 + 2 + 6 + 6}
    absent = next(line for line in kinds_lines(result) if line.startswith("real test has no "))
    assert "the paper says that each split has all twelve types" in absent
    assert "pose" in absent

    text = validation_table(result)
    for shown in ("OmniDiff (the paper, tables 1 and 2)", "15,598", "37%", "3,793", "2.5", absent):
        assert shown in text
    path = str(tmp_path / "report.json")
    write_validation_report(result, path)
    assert read_report(path) == result


def test_pairs_without_types_are_counted_and_other_sets_have_no_such_table(tmp_path: Path) -> None:
    source = written(tmp_path / "in", {"real": {"train": 2}})
    records = json.loads((source / "real/train.json").read_text())
    del records[1]["types"]
    (source / "real/train.json").write_text(json.dumps(records))
    found = check(source, format="omnidiff", images=False).result
    assert found.kinds_per_pair == {0: 1, 1: 1}
    assert any(line.startswith("1 pairs have no types") for line in kinds_lines(found))
    (tmp_path / "own").mkdir()
    put(tmp_path / "own", {"a.png": 1, "b.png": 2})
    (tmp_path / "own" / "t.csv").write_text("pair_id,before,after,split\nx,a.png,b.png,train\n")
    other = check(tmp_path / "own" / "t.csv").result
    assert (other.kinds, kinds_rows(other), kinds_lines(other)) == ({}, [], [])
