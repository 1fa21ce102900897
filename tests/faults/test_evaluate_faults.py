"""What cannot be scored is named by the command, with a status that is not 0, and leaves no evaluation behind. What is
wrong in a file of references or predictions: ``tests/evaluation/test_references.py``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Command

REFERENCES = {"a": ["the red ball moved", "someone moved the red ball"], "b": ["nothing has changed", "no change"]}

CASES: dict[str, tuple[dict[str, Any], str]] = {
    "no java": ({"java": "/nonexistent/java"}, "Java does not work: /nonexistent/java"),
    "empty prediction": ({"caption": " "}, "the predicted caption is empty: 'b'"),
    "no file": ({"settings": ["references=absent.json"]}, "references: no such file or folder: 'absent.json'"),
}
"""Name -> (what is different, what the message must say)."""


@pytest.mark.parametrize("name", CASES)
def test_a_fault_is_named_and_nothing_is_scored(
    name: str, tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    different, message = CASES[name]
    (tmp_path / "references.json").write_text(different.get("references", json.dumps(REFERENCES)))
    (tmp_path / "said.json").write_text(json.dumps({"a": "it moved", "b": different.get("caption", "no change")}))
    monkeypatch.setenv("IDC_JAVA", different.get("java", ""))
    done = command(
        "evaluate", f"references={tmp_path / 'references.json'}", f"predictions={tmp_path / 'said.json'}",
        f"out={tmp_path / 'out'}", "metrics=[BLEU, ROUGE-L, CIDEr]", "resamples=10", *different.get("settings", []),
    )  # fmt: skip
    assert done.returncode in (1, 2)
    assert message in done.stdout + done.stderr
    assert not (tmp_path / "out" / "evaluation.json").exists(), "never a silent score"
