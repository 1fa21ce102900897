"""Evaluations of several settings as a table: means over seeds, intervals, baselines, differences from one of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from idc.config import ConfigError, load
from idc.report.config import TabulateJob
from idc.report.evaluations_table import evaluations_table
from tests.report.test_paper_claims import PAIRS, write_evaluation, write_rendered


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """SFT with three seeds, ADPO with two that are .02 of CIDEr and about all 7 objects better, DPO with one."""
    pairs = write_rendered(tmp_path / "pairs")
    for name, seeds, right, more in (("sft", 3, 2, 0.0), ("adpo", 2, 7, 0.02), ("dpo", 1, 2, 0.01)):
        for seed in range(seeds):
            cider = [0.1 * number + 0.01 * seed + more for number in range(PAIRS)]
            write_evaluation(tmp_path / f"{name}-{seed}", pairs, right, cider, scores={"CIDEr": sum(cider) / PAIRS})
    return tmp_path


def table_of(folder: Path, **settings: object) -> list[list[str]]:
    rows = {name.upper(): f"{folder}/{name}-{{seed}}" for name in ("sft", "adpo", "dpo", "more")}
    job = load(TabulateJob, None, {"rows": rows, "metrics": ["CIDEr"], **settings})
    lines = evaluations_table(job).splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]


def test_a_row_has_the_mean_of_its_seeds_and_a_missing_one_is_empty(folder: Path) -> None:
    rows = table_of(folder)
    assert rows[0] == ["", "seeds", "CIDEr"]
    assert rows[2:] == [
        ["SFT", "3", "36.0 ± 1.0"], ["ADPO", "2", "37.5 ± 0.7"], ["DPO", "1", "36.0"], ["MORE", "–", "–"],
        ["baseline, nearest", "", "0.1"],
    ]  # fmt: skip


def test_differences_are_of_the_seeds_of_both(folder: Path) -> None:
    rows = table_of(folder, against="SFT", metrics=["right_object", "CIDEr"])[7:]
    assert rows[0][:4] == ["minus SFT", "seeds", "right object", "CIDEr"]
    (adpo, dpo) = rows[2:]
    assert adpo[:2] == ["ADPO", "2"]
    assert adpo[3] == "+2.0 (+2.0 to +2.0)", "seeds 0 and 1; the mean of all three would be 1.5 apart"
    assert adpo[2].startswith("+71.4 (")
    assert dpo[:2] == ["DPO", "1"]
    assert dpo[3] == "+1.0 (+1.0 to +1.0)"
    sft = table_of(folder, against="ADPO")[9]
    assert sft[:3] == ["SFT", "2", "-2.0 (-2.0 to -2.0)"]


def test_the_pairs_for_two_percent_follow_the_spread(folder: Path) -> None:
    """Of a difference that is the same for all pairs one pair shows it; half of another takes four times as many."""
    pairs = str(folder / "pairs")
    narrow = table_of(folder, against="SFT", percent=10)[-1][-1]
    assert narrow in ("0", "1"), "no spread but rounding"
    write_evaluation(folder / "dpo-0", pairs, 2, [0.1 * number + 0.05 * (-1) ** number for number in range(PAIRS)])
    wide, wider = (int(table_of(folder, against="SFT", percent=share)[-1][-1].replace(",", "")) for share in (10, 5))
    assert wide > 1
    assert wider == pytest.approx(4 * wide, abs=4)
    assert "seeds" in table_of(folder, against="SFT")[-2][-1]


def test_what_cannot_stand_in_one_table_is_refused(folder: Path) -> None:
    other = {"name": "coco", "data": {"fingerprint": "-"}}
    write_evaluation(folder / "dpo-0", str(folder / "pairs"), 2, [0.1] * PAIRS, protocol=other)
    with pytest.raises(ValueError, match=r"evaluated by other rules or on other data \(data\)"):
        table_of(folder)
    with pytest.raises(ValueError, match="there is no evaluation nowhere"):
        evaluations_table(load(TabulateJob, None, {"rows": {"a": "nowhere"}}))
    with pytest.raises(ConfigError, match="no row is called 'SFR'; did you mean 'SFT'"):
        table_of(folder, against="SFR")
    with pytest.raises(ConfigError, match="more than once"):
        table_of(folder, rows={"a": "runs/{seed}/{seed}"})
