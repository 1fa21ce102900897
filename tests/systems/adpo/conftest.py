"""The pairs of the tests of ADPO."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.systems.adpo.small import pairs_folder


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pairs_folder(tmp_path_factory.mktemp("data") / "pairs")
