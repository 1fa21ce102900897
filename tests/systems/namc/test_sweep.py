"""NAMC's chain for sweeps: steps are named by what they read, and share what they have in common."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from idc.config import ConfigError, load
from idc.systems.namc.sweep import Trial
from tests.systems.namc.tiny import MODEL
from tests.systems.procap.world import World


def names(world: World, settings: dict[str, Any]) -> list[str]:
    base = {"pairs": world.pairs, "tokenizer": world.tokenizer, "pretrain.model": MODEL}
    return [step.name for step in load(Trial, None, {**base, **settings}).steps("store").work]


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
        ({"described": described}, r"tokenizer: required; MIR reconstructs"),
        ({"more_described": [described]}, r"more_described: given without described"),
    ):
        with pytest.raises(ConfigError, match=fault):
            load(Trial, None, {"pairs": world.pairs, **settings})
    gone = {"pairs": world.pairs, "tokenizer": world.tokenizer, "pretrain.caption_pairs": "gone"}
    assert not list(load(Trial, None, gone).preflight()), "without pre-training it is not read"
    (fault,) = load(Trial, None, {**gone, "described": described}).preflight()
    assert fault.startswith("pretrain.caption_pairs:")
