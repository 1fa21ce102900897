"""Score a file of short answers about changes by ChangeIMTI's measures (:mod:`idc.metrics.classification`)."""

from __future__ import annotations

import os
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from idc.config import ConfigModel, missing
from idc.data.textfiles import decode_text, parse_json, split_lines
from idc.evaluation.provenance import origin
from idc.metrics.classification import (
    ALIASES,
    BINARY,
    COUNT,
    LOCATION,
    Measures,
    ScoredAnswer,
    read_answer,
    score_answers,
)
from idc.util.atomic import write_text

RESULT = "answers.json"
_MOST_NAMED = 20
"""Maximum number of faulty lines that an error names."""


class AnswersJob(ConfigModel):
    """Score answers to questions about changes."""

    answers: str
    """JSONL, one question per line: `type` (binary, count, location, or another), `answer`, `prediction`; `class`
    (road, building, ...) for count and location; `id`, if given, must be unique."""
    out: str = Field(min_length=1)
    """Folder for `answers.json`."""
    data_set: str = "changeimti"
    """Data set of the questions: the page of the leaderboard that shows the result."""
    allow_unreadable: bool = False
    """Score predictions that no rule can parse as wrong, and count them; otherwise they are errors."""

    def preflight(self) -> Iterator[str]:
        yield from missing(self.answers, "answers")


class AnswerScores(BaseModel):
    """The result of a file of answers."""

    model_config = ConfigDict(extra="forbid")
    data_set: str
    answers: str
    """Path of the scored file."""
    questions: int
    measures: list[Measures]
    overall_accuracy: float | None = None
    """OA of the questions of other types than ChangeIMTI's."""
    average_accuracy: float | None = None
    """AA: the mean over their types."""
    command: str = ""
    commit: str = ""
    """Commit of the scoring program (:mod:`idc.evaluation.provenance`)."""


def read_answers(path: str | os.PathLike[str], allow_unreadable: bool = False) -> list[ScoredAnswer]:
    """Read a file of answers.

    Raises:
        ValueError: names every line of another form, with a repeated id, with a true answer that no rule can parse, or,
            unless allowed, with such a prediction.
    """
    rows: list[ScoredAnswer] = []
    faults: list[str] = []
    seen: dict[str, int] = {}
    try:
        lines = split_lines(decode_text(Path(path).read_bytes()))
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from None
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = _answer(record := parse_json(line))
            if (name := str(record.get("id", f"line {number}"))) in seen:
                raise ValueError(f"id {name!r} is in line {seen[name]} too")
            seen[name] = number
            if read_answer(row.type, row.answer) is None:
                raise ValueError(f"the answer {row.answer!r} does not fit a {row.type} question")
            if not allow_unreadable and read_answer(row.type, row.prediction) is None:
                raise ValueError(
                    f"the prediction {row.prediction!r} cannot be read as the answer to a {row.type} question "
                    "(allow_unreadable=true scores it as wrong)"
                )
            rows.append(row)
        except ValueError as error:
            faults.append(f"{path}, line {number}: {error}")
    if faults:
        more = [f"and {len(faults) - _MOST_NAMED} more lines"] if len(faults) > _MOST_NAMED else []
        raise ValueError("\n".join([*faults[:_MOST_NAMED], *more]))
    if not rows:
        raise ValueError(f"{path}: the file has no answers")
    return rows


def _answer(record: Any) -> ScoredAnswer:
    if not isinstance(record, dict):
        raise ValueError("not a JSON object")
    if lacking := [key for key in ("type", "answer", "prediction") if key not in record]:
        raise ValueError(f"lacks {', '.join(lacking)}")
    texts = {key: record.get(key, "") for key in ("type", "answer", "prediction", "class")}
    for key, value in texts.items():
        if isinstance(value, bool) or not isinstance(value, str | int):
            raise ValueError(f"{key} must be text, got {value!r}")
    kind = ALIASES.get(str(texts["type"]), str(texts["type"]))
    if not kind:
        raise ValueError("type is empty")
    of = str(texts["class"]) if kind in (COUNT, LOCATION) else ""
    if kind in (COUNT, LOCATION) and not of:
        raise ValueError(f"lacks class: a {kind} question has one (road, building)")
    return ScoredAnswer(type=kind, answer=str(texts["answer"]), prediction=str(texts["prediction"]), of=of)


def run_answers(job: AnswersJob) -> AnswerScores:
    """Score the file and write ``answers.json``.

    Raises:
        ValueError: as :func:`read_answers`.
    """
    rows = read_answers(job.answers, job.allow_unreadable)
    measures = score_answers(rows)
    others = [measure for measure in measures if measure.type not in (BINARY, COUNT, LOCATION)]
    right = sum(measure.scores["Accuracy"] * measure.questions for measure in others)
    result = AnswerScores(
        data_set=job.data_set,
        answers=job.answers,
        questions=len(rows),
        measures=measures,
        overall_accuracy=right / sum(measure.questions for measure in others) if others else None,
        average_accuracy=statistics.fmean(measure.scores["Accuracy"] for measure in others) if others else None,
        **origin(None),
    )
    write_text(Path(job.out) / RESULT, result.model_dump_json(indent=1) + "\n")
    return result


def answers_table(result: AnswerScores) -> str:
    """The measures and their baselines as plain text."""
    lines = [f"{result.questions} answers; fractions, as ChangeIMTI's tables"]
    for measure in result.measures:
        of = f", {measure.of}" if measure.of else ""
        unreadable = f", {measure.unreadable} predictions unreadable and so wrong" if measure.unreadable else ""
        lines.append(f"{measure.type}{of}: {measure.questions} questions{unreadable}")
        rows = {f"baseline: always {measure.baseline_answer!r}": measure.baseline, "predictions": measure.scores}
        lines.append(f"  {'':34}" + "".join(f"{name:>24}" for name in measure.scores))
        for label, scores in rows.items():
            lines.append(f"  {label:34}" + "".join(f"{scores[name]:24.4f}" for name in measure.scores))
    if result.overall_accuracy is not None and result.average_accuracy is not None:
        lines.append(f"other questions: OA {result.overall_accuracy:.4f}, AA {result.average_accuracy:.4f}")
    return "\n".join(lines)
