"""The job that scores files of answers: faulty lines, unreadable predictions, the result."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from idc.evaluation import answers as ans
from tests.conftest import Command


def write(path: Path, rows: list[object]) -> Path:
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


def test_every_faulty_line_is_named(tmp_path: Path) -> None:
    path = write(
        tmp_path / "answers.jsonl",
        [
            {"type": "binary", "answer": "Yes", "prediction": "no", "id": 1},
            "{broken",
            "",
            {"type": "binary", "answer": "Yes"},
            {"type": "binary", "answer": "perhaps", "prediction": "no"},
            {"type": "count", "answer": "1", "prediction": "1"},
            {"type": "count", "class": "road", "answer": "1", "prediction": "many"},
            {"type": "binary", "answer": "No", "prediction": "no", "id": 1},
            {"type": "binary", "answer": True, "prediction": "no"},
            [],
            '{"type": "binary", "answer": "Yes", "prediction": "no", "prediction": "yes"}',
        ],
    )
    with pytest.raises(ValueError, match="line 2: not JSON") as caught:
        ans.read_answers(path)
    lines = [line.removeprefix(f"{path}, ") for line in str(caught.value).split("\n")]
    assert [line.partition(":")[0] for line in lines] == [f"line {n}" for n in (2, 4, 5, 6, 7, 8, 9, 10, 11)]
    assert "lacks prediction" in lines[1]
    assert "'perhaps' does not fit a binary question" in lines[2]
    assert "lacks class" in lines[3]
    assert "allow_unreadable=true" in lines[4]
    assert "in line 1 too" in lines[5]
    assert "answer must be text, got True" in lines[6]


def test_the_job(tmp_path: Path, command: Command) -> None:
    rows = [
        {"type": "binary", "answer": "Yes", "prediction": "Yes."},
        {"type": "change_or_not", "answer": "no", "prediction": "yes"},
        {"type": "count", "class": "road", "answer": 2, "prediction": "3"},
        {"type": "location", "class": "road", "answer": "top", "prediction": "somewhere"},
        {"type": "change_to_what", "answer": "Trees", "prediction": "trees."},
        {"type": "change_ratio", "answer": "0_to_10", "prediction": "10_to_20"},
        {"type": "change_ratio", "answer": "0", "prediction": "10_to_20"},
    ]
    settings = f"answers={write(tmp_path / 'answers.jsonl', [*rows])}", f"out={tmp_path / 'out'}"
    refused = command("evaluate", *settings)
    assert refused.returncode == 1
    assert "line 4: the prediction 'somewhere' cannot be read" in refused.stderr
    assert not (tmp_path / "out").exists()
    done = command("evaluate", *settings, "allow_unreadable=true")
    assert done.returncode == 0, done.stderr
    result = ans.AnswerScores.model_validate_json((tmp_path / "out" / ans.RESULT).read_text())
    assert [(one.type, one.questions, one.unreadable) for one in result.measures] == [
        ("binary", 2, 0), ("count", 1, 0), ("location", 1, 1), ("change_to_what", 1, 0), ("change_ratio", 2, 0),
    ]  # fmt: skip
    assert result.overall_accuracy == pytest.approx(1 / 3)
    assert result.average_accuracy == pytest.approx(1 / 2)
    assert "count, road: 1 questions" in done.stdout
    assert "baseline: always 'yes'" in done.stdout
