"""The sweeps' published numbers are those of the leaderboard's transcription, row by row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from idc.report.leaderboard.published_rows import published_rows

SWEEPS = Path("jobs/configs/m3diff/sweeps")
SHORT = {"BLEU-4": "B", "METEOR": "M", "ROUGE-L": "R", "CIDEr": "C", "SPICE": "S", "LLM judge": "LLM"}
DATA = {"03": "omnidiff", "04": "spot_the_diff", "05": "image_editing_request", "07": "clevr_change", "08": "clevr_dc"}
PARTS = {"real": "Real ", "render": "Render ", "all": ""}
GROUPS = {"OmniDiff": "omnidiff", "Image-Editing-Request": "image_editing_request"}


def plain(label: str) -> str:
    """A label without what marks a zero-shot row."""
    return label.replace("†", "").removesuffix(", zero-shot")


def printed(table: str, data_set: str) -> dict[str, dict[str, float]]:
    """Label -> column title -> number of a table and data set."""
    found: dict[str, dict[str, float]] = {}
    for row in published_rows(data_set):
        if (row.table.paper, row.table.table) == ("omnidiff", f"Table {int(table)}"):
            titles = {f"{PARTS[row.table.subset]}{SHORT[metric]}": value for metric, value in row.values.items()}
            found.setdefault(plain(row.method), {}).update(titles)
    return found


def rows(table: str, group: str = "") -> dict[str, dict[str, float]]:
    """Label -> published numbers of a sweep's rows, without rows that another table prints."""
    sweep: dict[str, Any] = yaml.safe_load((SWEEPS / f"table{table}.yaml").read_text(encoding="utf-8"))
    own = [row for row in sweep["rows"] if row.get("group", "") == group]
    return {plain(row["label"]): row["published"] for row in own if row["label"] != "M3Diff, LLaVA-OneVision-7B"}


@pytest.mark.parametrize("table", DATA)
def test_a_headline_table_has_every_row_of_the_paper(table: str) -> None:
    assert rows(table) == printed(table, DATA[table])
    assert "M3Diff" in rows(table)


@pytest.mark.parametrize("table", ["12", "13"])
@pytest.mark.parametrize("group", GROUPS)
def test_an_ablation_has_every_row_of_the_paper(table: str, group: str) -> None:
    assert rows(table, group) == printed(table, GROUPS[group])
