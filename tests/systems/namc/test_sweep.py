"""NAMC's chain for sweeps: steps are named by what they read, and share what they have in common."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from idc.config import ConfigError, load
from idc.systems.namc.sweep import Trial, steps
from tests.systems.namc.tiny import MODEL, described_pairs
from tests.systems.procap.world import World


@pytest.fixture(scope="module")
def described(world: World, tmp_path_factory: pytest.TempPathFactory) -> str:
    return described_pairs(world, tmp_path_factory.mktemp("described") / "pairs")


def names(world: World, settings: dict[str, Any]) -> list[str]:
    base = {"pairs": world.pairs, "tokenizer": world.tokenizer, "pretrain.model": MODEL}
    return [step.name for step in steps(load(Trial, None, {**base, **settings}), "store").work]


def test_a_chain_pretrains_and_finetunes_on_the_contents_of_its_folders(
    world: World, described: str, tmp_path: Path
) -> None:
    first = names(world, {"described": described})
    assert [name.rsplit("-", 1)[0] for name in first] == ["namc-pretrain", "namc-finetune"]
    shutil.copytree(described, tmp_path / "copy")
    assert names(world, {"described": str(tmp_path / "copy")}) == first
    other_tuning = names(world, {"described": described, "finetune.optim.lr": 1e-5})
    assert other_tuning[0] == first[0]
    assert other_tuning[1] != first[1]
    for settings in ({"pretrain.nim.text_ratio": 0.3}, {"more_described": [str(tmp_path / "copy")]}):
        assert not set(names(world, {"described": described, **settings})) & set(first)
    (scratch,) = names(world, {})
    assert scratch not in first


def test_settings_that_the_chain_fills_in_and_a_missing_tokenizer_are_refused(world: World, described: str) -> None:
    with pytest.raises(ConfigError, match=r"pretrain\.tokenizer: the sweep sets it"):
        load(Trial, None, {"pairs": world.pairs, "described": described, "pretrain.tokenizer": "x"})
    with pytest.raises(ConfigError, match=r"tokenizer: required; MIR reconstructs"):
        load(Trial, None, {"pairs": world.pairs, "described": described})
    with pytest.raises(ConfigError, match=r"more_described: given without described"):
        load(Trial, None, {"pairs": world.pairs, "more_described": [described]})


def test_without_mir_the_tokenizer_does_not_count(world: World, described: str, tmp_path: Path) -> None:
    off = {"described": described, "pretrain.mir.enabled": False}
    assert names(world, off) == names(world, {**off, "tokenizer": None})
