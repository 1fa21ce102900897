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
TABLE_6 = {
    "w/o OmniDiff & MDP": "0.1 3.3 11.5 1.1 0.0 2.9 10.0 0.7 31.5 26.0 59.6 133.5 25.7",
    "w/o OmniDiff": "0.1 3.8 12.7 1.9 0.1 3.7 11.9 1.1 32.3 26.3 59.7 132.8 27.0",
    "w/o MDP": "12.2 17.1 32.3 35.3 15.5 18.6 34.3 25.4 33.5 26.3 59.7 135.2 26.5",
    "M3Diff": "14.3 18.9 32.9 31.3 15.7 19.9 35.3 28.3 33.6 26.5 59.7 136.6 27.5",
}
"""As the paper prints it; the leaderboard has no rows of an ablation."""


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


def test_table_6() -> None:
    titles = [*(f"{part} {metric}" for part in ("Real", "Render") for metric in "BMRC"), *"BMRCS"]
    for label, line in TABLE_6.items():
        expected = dict(zip(titles, map(float, line.split()), strict=True))
        found = {**rows("06", "OmniDiff")[label], **rows("06", "Image-Editing-Request")[label]}
        assert found == expected
    assert TABLE_6["M3Diff"].split()[8:] == [
        f"{printed('05', GROUPS['Image-Editing-Request'])['M3Diff'][m]}" for m in "BMRCS"
    ]
