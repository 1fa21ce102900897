"""The published numbers of the sweeps of M3Diff and NAMC are those of the leaderboard's transcription, row by row."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from idc.report.leaderboard.published_rows import published_rows

SHORT = {"BLEU-4": "B", "METEOR": "M", "ROUGE-L": "R", "CIDEr": "C", "SPICE": "S", "LLM judge": "LLM"}
PARTS = {"real": "Real ", "render": "Render "}
TABLES = {
    "m3diff/03": "omnidiff", "m3diff/04": "spot_the_diff", "m3diff/05": "image_editing_request",
    "m3diff/07": "clevr_change", "m3diff/08": "clevr_dc", "namc/01": "clevr_dc", "namc/02": "clevr_change",
    "namc/03": "image_editing_request", "namc/04": "spot_the_diff",
}  # fmt: skip


@pytest.mark.parametrize("table", TABLES)
def test_a_headline_table_has_every_row_of_the_paper(table: str) -> None:
    system, number = table.split("/")
    source = ("omnidiff" if system == "m3diff" else system, f"Table {int(number)}")
    printed: dict[str, dict[str, float]] = {}
    for row in published_rows(TABLES[table]):
        if (row.table.paper, row.table.table) == source:
            titles = {f"{PARTS.get(row.table.subset, '')}{SHORT[name]}": value for name, value in row.values.items()}
            printed.setdefault(row.method.replace("†", ""), {}).update(titles)
    sweep = yaml.safe_load(Path(f"jobs/configs/{system}/sweeps/table{number}.yaml").read_text(encoding="utf-8"))
    rows = {row["label"].replace("†", "").removesuffix(", zero-shot"): row["published"] for row in sweep["rows"]}
    assert {name: row for name, row in rows.items() if name != "M3Diff, LLaVA-OneVision-7B"} == printed
