"""The benchmark beside TRL: the same first loss, and how often each looks at the images."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks import preferences
from tests.systems.adpo.small import pairs_folder
from tests.vlm.models import tiny_folder


@pytest.fixture
def settings(tmp_path: Path) -> dict[str, Any]:
    pairs = pairs_folder(tmp_path / "pairs", sizes=[(64, 64)])
    base = {"source": str(tiny_folder("internvl"))}
    return {"pairs": str(pairs), "base": base, "batch_size": 4, "rank": 4, "repeats": 1}


def test_a_step_looks_at_a_pairs_images_once_and_trls_four_times(settings: dict[str, Any]) -> None:
    rows = {kind: preferences.measured_alone(kind, settings) for kind in preferences.KINDS}
    assert {kind: (row["passes"], row["rows"]) for kind, row in rows.items()} == {
        "ours": (1, 8), preferences.STORED: (1, 8), "TRL": (2, 32)
    }  # fmt: skip
    assert rows["ours"]["loss"] == pytest.approx(rows["TRL"]["loss"], abs=1e-3)
    assert rows["ours"]["loss"] == pytest.approx(rows[preferences.STORED]["loss"], abs=1e-6)


def test_unequal_losses_end_it(settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    assert preferences.seconds_by_turns(settings).keys() == set(preferences.KINDS)
    stepper = preferences.stepper

    def other(kind: str, *rest: Any) -> preferences.Stepper:
        parts = stepper(kind, *rest)
        return parts._replace(step=lambda: 2 * parts.step()) if kind == "ours" else parts

    monkeypatch.setattr(preferences, "stepper", other)
    with pytest.raises(ValueError, match="the losses of the first step differ"):
        preferences.seconds_by_turns(settings)
