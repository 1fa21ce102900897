"""Every speed against the authors' forward pass, in small: equal captions, and processes that end."""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path

import pytest

from benchmarks.against_official import HUGE_PAGES, OfficialConfig, measure_official, steps
from idc.nn.packed import bfloat16_is_native
from tests.systems.procap.world import World

SIZES = {
    "channels": 32, "mult": (1, 2), "res": 1, "z": 8, "codes": 32, "grid": 4, "width": 24, "heads": 3, "blocks": 2,
    "bpe": 60, "words": 20, "decoder": 16, "decoder_heads": 2, "decoder_layers": 2, "feedforward": 32,
}  # fmt: skip


def test_each_speed_is_measured_with_its_captions(captioner_artifact: Path, world: World) -> None:
    config = OfficialConfig(
        sizes=SIZES, num_pairs=6, batch_size=2, artifact=str(captioner_artifact), pairs=str(world.pairs), split="all",
        max_pairs=6, artifact_batch_size=3, threads=1,
    )  # fmt: skip
    before = os.environ.get(HUGE_PAGES)
    rows = list(measure_official(config))
    assert os.environ.get(HUGE_PAGES) == before
    assert multiprocessing.active_children() == []
    titles = [row.title for row in rows]
    speeds = ["exact", "fast", *(["bf16"] if bfloat16_is_native() else [])]
    for authors in ("authors'", "naive"):
        found = [row for row in rows if f"{authors} forward pass" in row.title or f"the {authors} forward" in row.title]
        assert [row.title.split()[1] for row in found] == speeds
        for row in found[:2]:
            assert row.more["equal_captions"] == row.more["captions"] == 6, row.title
    assert rows[0].more["distinct_captions"] > 1
    assert len(rows[0].ratios) == 3
    named = [name for name in steps("cpu") if name not in ("exact", "fast")]
    for name in named:
        assert sum(title.startswith(f"captioning, {name} over without") for title in titles) == 1
    trained = next(row for row in rows if "trained" in row.title and "fast" in row.title)
    assert trained.more["cider"] == pytest.approx(trained.more["cider_official"])


def test_too_few_pairs_are_refused() -> None:
    with pytest.raises(ValueError, match="3 pairs are less than a batch of 4"):
        list(measure_official(OfficialConfig(sizes=SIZES, num_pairs=3, batch_size=4)))
