"""Small folders that several modules tune models on."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.vlm.folders import write_instructions, write_pairs


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("data")
    return {"pairs": write_pairs(root / "pairs"), "instructions": write_instructions(root / "instructions")}
