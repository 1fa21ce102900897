"""What cannot be scored is named by the command, with a status that is not 0, and leaves no evaluation behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
REFERENCES = {"a": ["the red ball moved", "someone moved the red ball"], "b": ["nothing has changed", "no change"]}
SAID = {"a": "the ball moved", "b": "no change was made"}

CASES: dict[str, tuple[dict[str, Any], str]] = {
    "good": ({}, ""),
    "no java": ({"java": "/nonexistent/java"}, "Java does not work: /nonexistent/java"),
    "broken references": ({"references": '{"a": ["the red ball moved"'}, "references.json: not JSON"),
    "references of numbers": ({"references": '{"a": [1], "b": [2]}'}, "entry 0: not of the form"),
    "empty reference": ({"references": '{"a": [""], "b": ["x"]}'}, "pair 'a' has an empty reference"),
    "empty prediction": ({"said": {**SAID, "b": " "}}, "the predicted caption is empty: 'b'"),
    "unknown id": ({"said": {**SAID, "c": "x"}}, "1 captions are of pairs that are not in test of"),
    "not predicted": ({"said": {"a": "x"}}, "1 pairs of test have no caption in"),
    "twice": ({"lines": [{"pair_id": "a", "caption": "x"}] * 2}, "line 2: pair 'a' is there twice"),
    "broken predictions": ({"lines": ["nothing"]}, "line 1: a str and not an object"),
    "no file": ({"settings": ["references=absent.json"]}, "references: no such file or folder: 'absent.json'"),
}
"""Name -> (what is different, what the message must say)."""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, str, Path]]:
    """Status, all output, and the folder of every case; four commands at a time."""
    results: dict[str, tuple[int, str, Path]] = {}
    waiting = list(CASES)
    while waiting:
        now, waiting = waiting[:4], waiting[4:]
        started = {name: _start(tmp_path_factory.mktemp("case"), **CASES[name][0]) for name in now}
        for name, (process, out) in started.items():
            text, errors = process.communicate(timeout=300)
            results[name] = (process.returncode, text + errors, out)
    return results


def _start(
    folder: Path,
    references: str = json.dumps(REFERENCES),
    said: dict[str, str] = SAID,
    lines: list[Any] | None = None,
    java: str | None = None,
    settings: list[str] = [],  # noqa: B006  never changed
) -> tuple[subprocess.Popen[str], Path]:
    (folder / "references.json").write_text(references)
    rows = [{"pair_id": name, "caption": text} for name, text in said.items()] if lines is None else lines
    (folder / "said.jsonl").write_text("\n".join(map(json.dumps, rows)))
    command = [sys.executable, str(ROOT / "jobs" / "evaluate.py"), f"references={folder / 'references.json'}"]
    command += [f"predictions={folder / 'said.jsonl'}", f"out={folder / 'out'}", "metrics=[BLEU, ROUGE-L, CIDEr]"]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PATH": "/nonexistent"}
    env.pop("IDC_JAVA", None)
    if java is not None:
        env["IDC_JAVA"] = java
    process = subprocess.Popen(
        [*command, "resamples=10", *settings], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env
    )
    return process, folder / "out"


def test_what_is_in_order_is_scored(runs: dict[str, tuple[int, str, Path]]) -> None:
    status, text, out = runs["good"]
    assert status == 0, text
    assert "no nearest baseline: there are no images" in text
    assert json.loads((out / "evaluation.json").read_text())["scores"]["BLEU-1"] > 0


@pytest.mark.parametrize("name", [name for name in CASES if name != "good"])
def test_a_fault_is_named_and_nothing_is_scored(name: str, runs: dict[str, tuple[int, str, Path]]) -> None:
    status, text, out = runs[name]
    assert status in (1, 2), text
    assert CASES[name][1] in text
    assert "Traceback" not in text
    assert not (out / "evaluation.json").exists(), "never a silent score"
