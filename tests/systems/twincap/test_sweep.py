"""TwinCap's chain for sweeps: a step is named by what it reads."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from idc.config import load
from idc.systems.twincap.sweep import Trial
from tests.systems.procap.world import World
from tests.systems.twincap.tiny import MODEL


def name(pairs: str, **settings: Any) -> str:
    (step,) = load(Trial, None, {"pairs": pairs, "twincap": {"model": MODEL}, **settings}).steps("store").work
    return step.name


def test_a_step_is_named_by_settings_and_contents_of_its_pairs(world: World, tmp_path: Path) -> None:
    first = name(world.pairs)
    shutil.copytree(world.pairs, tmp_path / "copy")
    assert name(str(tmp_path / "copy")) == first
    others = [name(world.pairs, more_pairs=[str(tmp_path / "copy")]), name(world.pairs, **{"twincap.ema": 0.5})]
    assert len({first, *others}) == 3
