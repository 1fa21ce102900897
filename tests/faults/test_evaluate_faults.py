"""What cannot be scored is named by the command, with a status that is not 0, and leaves no evaluation behind."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import Command

REFERENCES = {"a": ["the red ball moved", "someone moved the red ball"], "b": ["nothing has changed", "no change"]}


@pytest.mark.parametrize(
    ("java", "caption", "message"),
    [
        ("/nonexistent/java", "no change", "Java does not work: /nonexistent/java"),
        ("", " ", "the predicted caption is empty: 'b'"),
    ],
)
def test_a_fault_is_named_and_nothing_is_scored(
    java: str, caption: str, message: str, tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "references.json").write_text(json.dumps(REFERENCES))
    (tmp_path / "said.json").write_text(json.dumps({"a": "it moved", "b": caption}))
    monkeypatch.setenv("IDC_JAVA", java)
    settings = [f"references={tmp_path / 'references.json'}", f"predictions={tmp_path / 'said.json'}"]
    done = command("evaluate", *settings, f"out={tmp_path / 'out'}", "metrics=[BLEU, ROUGE-L, CIDEr]", "resamples=10")
    assert done.returncode in (1, 2)
    assert message in done.stdout + done.stderr
    assert not (tmp_path / "out" / "evaluation.json").exists(), "never a silent score"
