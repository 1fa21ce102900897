"""NAMC's chain for sweeps: steps are named by what they read, and share what they have in common."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from idc.config import ConfigError, load
from idc.report.leaderboard.published_rows import published_rows
from idc.systems.namc.sweep import Trial, steps
from tests.systems.namc.tiny import MODEL
from tests.systems.procap.world import World


def names(world: World, settings: dict[str, Any]) -> list[str]:
    base = {"pairs": world.pairs, "tokenizer": world.tokenizer, "pretrain.model": MODEL}
    return [step.name for step in steps(load(Trial, None, {**base, **settings}), "store").work]


def test_a_chain_pretrains_and_finetunes_on_the_contents_of_its_folders(
    world: World, described: str, tmp_path: Path
) -> None:
    first = names(world, {"described": described})
    assert [name.rsplit("-", 1)[0] for name in first] == ["namc-pretrain", "namc-finetune"]
    copy = str(shutil.copytree(described, tmp_path / "copy"))
    words, other_words = ({"pretrain.caption_pairs": pairs} for pairs in (world.pairs, described))
    off = {"pretrain.mir.enabled": False}
    cases: list[tuple[dict[str, Any], dict[str, Any], list[bool]]] = [  # which of both steps are the same
        ({}, {"described": copy}, [True, True]),
        ({}, {"finetune.optim.lr": 1e-5}, [True, False]),
        ({}, {"pairs": described}, [True, False]),
        ({}, {"pretrain.nim.text_ratio": 0.3}, [False, False]),
        ({}, {"more_described": [copy]}, [False, False]),
        ({}, words, [False, False]),
        (words, other_words, [False, False]),
        (other_words, {"pretrain.caption_pairs": copy}, [True, True]),
        (off, {**off, "tokenizer": None}, [True, True]),
    ]
    for settings, others, same in cases:
        one, other = (names(world, {"described": described, **part}) for part in (settings, others))
        assert [a == b for a, b in zip(one, other, strict=True)] == same, others
    (scratch,) = names(world, {})
    assert scratch not in first


def test_what_the_chain_fills_in_or_lacks_is_refused(world: World, described: str) -> None:
    for settings, fault in (
        ({"described": described, "pretrain.tokenizer": "x"}, r"pretrain\.tokenizer: the sweep sets it"),
        ({"described": described}, r"tokenizer: required; MIR reconstructs"),
        ({"more_described": [described]}, r"more_described: given without described"),
    ):
        with pytest.raises(ConfigError, match=fault):
            load(Trial, None, {"pairs": world.pairs, **settings})
    gone = {"pairs": world.pairs, "tokenizer": world.tokenizer, "pretrain.caption_pairs": "gone"}
    assert not list(load(Trial, None, gone).preflight()), "without pre-training it is not read"
    (fault,) = load(Trial, None, {**gone, "described": described}).preflight()
    assert fault.startswith("pretrain.caption_pairs:")


TABLES = {"01": "clevr_dc", "02": "clevr_change", "03": "image_editing_request", "04": "spot_the_diff"}


@pytest.mark.parametrize("table", TABLES)
def test_a_headline_table_has_every_row_of_the_paper(table: str) -> None:
    """By the leaderboard's transcription."""
    short = {"BLEU-4": "B", "METEOR": "M", "ROUGE-L": "R", "CIDEr": "C", "SPICE": "S"}
    printed = {
        row.method: {short[metric]: value for metric, value in row.values.items()}
        for row in published_rows(TABLES[table])
        if (row.table.paper, row.table.table) == ("namc", f"Table {int(table)}")
    }
    sweep = yaml.safe_load(Path(f"jobs/configs/namc/sweeps/table{table}.yaml").read_text(encoding="utf-8"))
    assert {row["label"]: row["published"] for row in sweep["rows"]} == printed
    assert [row["label"] for row in sweep["rows"] if not row.get("quoted")] == ["NAMC"]
