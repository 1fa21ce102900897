"""The small bases that come with the program: by name, and whole."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from idc.training.base import BaseName, full_hash
from idc.util import shipped_weights
from idc.util.shipped_weights import BASES
from idc.vlm.base import find_base
from idc.vlm.config import BaseConfig

ROOT = Path(__file__).parents[2]
every_base = pytest.mark.parametrize("name", BASES)


@every_base
def test_a_base_is_found_by_its_name_from_everywhere(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also by an artifact, which names it without a path of this machine; a folder of that name is not taken for it."""
    (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path)
    base = find_base(BaseConfig(source=name))
    assert full_hash(base.folder) == json.loads((base.folder / "pretraining.json").read_text())["sha256"]
    assert base.name.source == name
    assert BaseName(**base.name.to_dict()).folder() == base.folder == ROOT / "idc/weights" / BASES[name]


def test_where_an_upload_left_the_weights_out_the_error_names_the_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shipped_weights, "_HERE", tmp_path / "none")
    monkeypatch.delenv(shipped_weights.WEIGHTS, raising=False)
    with pytest.raises(ValueError, match=r"the base model that comes with .* set IDC_WEIGHTS .* base\.source"):
        find_base(BaseConfig(source="shipped"))
    monkeypatch.setenv(shipped_weights.WEIGHTS, str(ROOT / "idc/weights"))
    assert find_base(BaseConfig(source="shipped")).folder.parent == ROOT / "idc/weights"
