"""What each preset says and leaves out, of 20 pairs whose truth is known by eye or by construction."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

import idc
from idc.captioning.counts import presets
from tests.captioning.counted_pairs import drawn_or_photographed

TABLE: dict[str, Any] = yaml.safe_load((Path(__file__).parent / "counts.yaml").read_text(encoding="utf-8"))
ROWS = [
    pytest.param(preset, pair, marks=[pytest.mark.slow] if "name" in TABLE["pairs"][pair][0] else [])
    for preset, rows in TABLE["presets"].items()
    for pair in rows
]
"""Photographs, in which objects are named, take a second each."""


def test_every_preset_has_twenty_pairs() -> None:
    assert {name: len(rows) for name, rows in TABLE["presets"].items()} == dict.fromkeys(presets(), 20)


@pytest.mark.parametrize(("preset", "pair"), ROWS)
def test_a_caption_says_what_counts_and_counts_the_rest(preset: str, pair: str) -> None:
    row = TABLE["presets"][preset][pair]
    before, after = (drawn_or_photographed(**side) for side in TABLE["pairs"][pair])
    described = idc.load("objects")(before, after, counts=preset)
    text = described.caption
    assert [said for said in row["must"] if not re.search(said, text)] == [], text
    assert [said for said in row["must_not"] if re.search(said, text)] == [], text
    assert described.verdict == row["verdict"], text
