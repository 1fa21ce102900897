"""Described pairs, made once for all tests of NAMC."""

from __future__ import annotations

import pytest

from tests.systems.namc.tiny import described_pairs
from tests.systems.procap.world import World


@pytest.fixture(scope="session")
def described(world: World, tmp_path_factory: pytest.TempPathFactory) -> str:
    return described_pairs(world, tmp_path_factory.mktemp("described") / "pairs")
