"""Captions against a checklist: the rule for captions without a change, a judge for the others, and what is counted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from idc.config import ConfigError, load
from idc.evaluation.answers import ANSWERS
from idc.evaluation.checklist import ChecklistJob, ChecklistScores, checklist_table, run_checklist
from tests.chat_server import serving
from tests.conftest import Command
from tests.data.readers.test_more_readers import vidic
from tests.data.readers.test_own import prepare

SAID = {"0": "There is no difference.", "1": "In B a second person appeared."}
THEIRS = """"Output: {{\\"answer\\": \\"yes/no\\"}}\\n" [Description]\\n{description}\\n [Question]\\n{question}"""


def scored(tmp_path: Path, captions: Any = SAID, **settings: Any) -> ChecklistScores:
    if not (tmp_path / "pairs").exists():
        prepare(vidic(tmp_path / "in"), tmp_path / "pairs", "vidic")
    (tmp_path / "captions.json").write_text(json.dumps(captions))
    values = {"checklist": str(tmp_path / "pairs"), "predictions": str(tmp_path / "captions.json"),
              "out": str(tmp_path / "out")}  # fmt: skip
    return run_checklist(load(ChecklistJob, None, values | settings))


def test_without_a_judge_captions_that_say_that_nothing_changed_are_scored(tmp_path: Path) -> None:
    result = scored(tmp_path)
    assert result.right == {"Similarities": (1, 1), "Differences": (0, 2)}
    assert (result.by_rule, result.left) == (3, 3)
    assert result.answers is not None
    assert result.answers.overall_accuracy == pytest.approx(1 / 3)
    assert "3 items of other captions have no answer: give judge= and url=" in checklist_table(result)
    nothing = scored(tmp_path, {"0": "a car left", "1": "a car left"})
    assert (nothing.answers, nothing.left) == (None, 6)


def test_a_judge_reads_the_others_by_the_description_alone_and_is_asked_once(tmp_path: Path) -> None:
    with serving() as server:
        server.answer = lambda number, prompt: (
            200, json.dumps({"answer": "Yes" if "two people" in prompt else "no", "explanation": "it says so"})
        )  # fmt: skip
        first, again = (scored(tmp_path, url=server.url, judge="reader") for _ in range(2))
    assert first.right == again.right == {"Similarities": (2, 2), "Differences": (2, 4)}
    assert len(server.requests) == 2, "two items of one pair are the same question"
    prompts = [request["messages"][0]["content"] for request in server.requests]
    assert all("In B a second person appeared." in prompt and SAID["0"] not in prompt for prompt in prompts)
    lines = [json.loads(line) for line in (tmp_path / "out" / ANSWERS).read_text().splitlines()]
    assert lines[-1] == {"id": "1/Differences/1", "type": "subject", "answer": "yes", "prediction": "yes"}


def test_responses_and_prompt_of_the_benchmark(tmp_path: Path) -> None:
    """Their numbers count from 1; a response belongs to its videos."""
    (tmp_path / "prompt_judge.txt").write_text(THEIRS)
    responses = [
        {"index": n + 1, "video1_path": f"data/add/{n}_src.mp4", "video2_path": f"data/add/{n}_tgt.mp4",
         "response": SAID[str(n)]} for n in range(2)
    ]  # fmt: skip
    with serving() as server:
        server.answer = lambda number, prompt: (200, "no idea" if number == 1 else 'answer: "no"')
        result = scored(
            tmp_path,
            responses,
            url=server.url,
            judge="reader",
            concurrency=1,
            prompt=str(tmp_path / "prompt_judge.txt"),
        )
    assert result.left == 1, "an answer that is none is not kept"
    prompt = server.requests[0]["messages"][0]["content"]
    assert '{\\"answer\\": \\"yes/no\\"}' in prompt
    assert "[Description]\\nIn B a second person appeared.\\n" in prompt
    with pytest.raises(ValueError, match="has no caption of the pair '1'"):
        scored(tmp_path, responses[:1])


def test_wrong_settings(tmp_path: Path, command: Command) -> None:
    (tmp_path / "p.txt").write_text("{description}")
    prepare(vidic(tmp_path / "in"), tmp_path / "pairs", "vidic")
    with pytest.raises(ConfigError, match="judge, url: give both, or neither"):
        scored(tmp_path, judge="reader")
    done = command("evaluate", f"checklist={tmp_path / 'pairs'}", f"predictions={tmp_path / 'none'}",
                   f"out={tmp_path / 'out'}", f"prompt={tmp_path / 'p.txt'}")  # fmt: skip
    assert done.returncode == 2
    assert "has no {question}" in done.stderr
    assert "predictions" in done.stderr
