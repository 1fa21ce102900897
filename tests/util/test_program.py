"""Commands and presets of the program, from any folder and by any of its names."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from idc.util.program import PROGRAM, as_started, shipped

ROOT = Path(__file__).resolve().parents[2]
TEXT = "run python jobs/train_twincap.py --config jobs/configs/twincap/demo.yaml, see jobs/demo.py; python -m serve.app"
IDC = "run idc train-twincap --config jobs/configs/twincap/demo.yaml, see idc demo; idc serve"


@pytest.mark.parametrize(
    ("program", "script", "shown"),
    [("idc", "/usr/lib/x/jobs/render.py", IDC), (None, "jobs/render.py", TEXT), (None, "-c", TEXT),
     (None, "/a b/jobs/render.py", TEXT.replace("python jobs/train_twincap.py", "python '/a b/jobs/train_twincap.py'")),
     (None, "../jobs/render.py", TEXT.replace("python jobs/", "python ../jobs/"))],
)  # fmt: skip
def test_commands_are_written_as_this_process_was_started(
    program: str | None, script: str, shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", [script])
    if program is not None:
        monkeypatch.setenv(PROGRAM, program)
    assert as_started(TEXT) == shown


def test_only_scripts_and_presets_are_taken_from_the_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    preset = "jobs/configs/twincap/demo.yaml"
    assert shipped(preset) == str(ROOT / preset)
    assert shipped("README.md") == "README.md"
    monkeypatch.chdir(tmp_path)
    (tmp_path / preset).parent.mkdir(parents=True)
    (tmp_path / preset).touch()
    assert shipped(preset) == preset, "the user's own"
