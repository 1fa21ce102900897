"""The command that builds ChangeIMTI: rows and counts."""

from __future__ import annotations

from pathlib import Path

from idc.changeimti.changeimti_counts import COUNTS_FILE, ChangeImtiCounts
from tests.changeimti.small_mci import PIXEL, ROAD_CENTER, ROAD_LEFT, ROOF_LOW_RIGHT, ROOF_TOP, MciFolder, label_of
from tests.conftest import Command


def pairs_with_all(folder: Path) -> str:
    mci = MciFolder()
    mci.pair(1, 1, ROAD_LEFT, ROAD_CENTER, ROOF_TOP, PIXEL)
    mci.pair(2, 0)
    mci.pair(3, 0, ROOF_LOW_RIGHT, split="val")
    mci.pair(4, 1, label=label_of(ROAD_LEFT, size=30))
    return mci.imported(folder)


def test_the_command_writes_rows_and_counts(tmp_path: Path, command: Command) -> None:
    out = tmp_path / "out"
    settings = (f"pairs={pairs_with_all(tmp_path)}", f"out={out}", "max_reject_share=0.5", "--local", "workers=1")
    said = command("build_changeimti", *settings).stdout
    assert "29 samples of 3 pairs, 1 of them changed" in said
    assert "caption          7   paper: 24,444" in said
    assert "2 changed roads in 1 pair; 0 without an area are not counted" in said
    assert "not made: 15 samples of 1 pair: train_000004/caption-0: unequal sizes: train/label/train_000004.png" in said
    assert "next: python jobs/finetune_sft.py name=mine-changeimti" in said
    counts = ChangeImtiCounts.model_validate_json((out / COUNTS_FILE).read_bytes())
    assert counts.samples == {"caption": 7, "binary": 3, "count": 6, "location": 6, "dialogue": 7}
    assert counts.regions == {"road": {0: 2, 2: 1}, "building": {0: 1, 1: 2}}
    assert counts.positions["road"]["center"] == counts.positions["road"]["left"] == 1
    assert counts.not_counted == {"road": 0, "building": 1}
