"""Questions about changes: put to a captioner (:func:`ask_questions`), and answers scored (:func:`run_answers`) by
ChangeIMTI's measures (:mod:`idc.metrics.classification`).

The questions are those of a folder of instructions, or of pairs with questions in ``meta["questions"]`` (CDVQA,
QAG-360K). A dialogue is asked turn by turn, each after the captioner's own earlier answers. Captions are not scored
here but by an evaluation, against all references of a pair.
"""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from pydantic import BaseModel, ConfigDict

from idc.captioning.contract import Answer, Captioner, require
from idc.captioning.loading import CaptionerLoader, LoadCaptioner
from idc.captioning.sources import artifact_folder
from idc.data.change_masks import CHANGED
from idc.data.images import decode_image
from idc.data.manifest import complete_manifest, fingerprint
from idc.data.schema import ChangePair, Instruction, Turn
from idc.data.stored_rows import iter_rows
from idc.data.textfiles import decode_text, parse_json, split_lines
from idc.endpoint.answer_log import AnswerLog
from idc.evaluation.config import AnswersJob, AskJob
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
from idc.training.artifact import captioning_identity
from idc.util.atomic import write_text

ANSWERS, DIALOGUES, RESULT = "answers.jsonl", "dialogues", "answers.json"
"""In a job's folder: the answers as :func:`read_answers` reads them, the folder of those in dialogues of several
questions, and the scores."""
_LOG = "asked.jsonl"
"""File of the answers by what they depend on, which an interrupted job goes on from."""
_SCORED = (BINARY, COUNT, LOCATION)
_VERSION = 2
"""Incremented when the same inputs would give other answers."""
_MOST_NAMED = 20
"""Maximum number of faulty lines that an error names."""


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


class AskedScores(NamedTuple):
    """The scores of single questions, and of the questions in dialogues; None where there are none."""

    single: AnswerScores | None
    dialogues: AnswerScores | None


@dataclass
class _Dialogue:
    """A dialogue that is being asked.

    Attributes:
        answers: the true ones, each with its question, up to the last one that is scored.
        single: the row has no further answer, scored or not.
        history: turns so far, with the captioner's own answers.
        records: of the scored answers so far.
    """

    row: Instruction
    answers: Sequence[tuple[Turn, Turn]]
    single: bool
    history: list[Turn]
    records: list[dict[str, str]] = field(default_factory=list)


def _started(row: Instruction, types: Sequence[str]) -> _Dialogue:
    system = [turn for turn in row.turns if turn.role == "system"]
    turns = row.turns[len(system) :]
    answers = list(zip(turns[::2], turns[1::2], strict=True))
    scored = [number for number, (_, answer) in enumerate(answers, start=1) if not types or answer.task in types]
    return _Dialogue(row, answers[: max(scored, default=0)], len(answers) <= 1, system)


@lru_cache(maxsize=2)
def _decoded(data: bytes) -> np.ndarray:
    """The pixels of an image; a pair's questions come one after another."""
    return decode_image(data)


def ask_questions(job: AskJob, load: LoadCaptioner | None = None) -> AskedScores:
    """Ask and score. What is asked already, with the same captioner and settings, is not asked again.

    Args:
        load: loads the captioner; by default that of the artifact.

    Raises:
        ValueError: the folder has no questions, a row has other than two images or names no class to count or locate,
            or the captioner answers no questions.
    """
    out = Path(job.out)
    manifest = complete_manifest(job.instructions)
    types = job.types or (_SCORED if manifest.kind == "instructions" else ())  # empty: all
    artifact = artifact_folder(job.artifact, job.objects)
    identity = (
        _VERSION, captioning_identity(artifact), manifest.fingerprint, _settings(job, manifest.kind),
        job.loading_identity(),
    )  # fmt: skip
    log = AnswerLog(out / _LOG)
    captioner: Captioner | None = None
    records: dict[bool, list[dict[str, str]]] = {True: [], False: []}
    rows = (_started(row, types) for row in islice(_dialogues(job, manifest.kind), job.max_rows))
    dialogues = (dialogue for dialogue in rows if dialogue.answers)
    while batch := list(islice(dialogues, job.batch_size)):
        keys = [fingerprint(*identity, dialogue.row.row_id) for dialogue in batch]
        if unasked := [dialogue for key, dialogue in zip(keys, batch, strict=True) if key not in log.known]:
            captioner = captioner or require((load or CaptionerLoader(artifact, job))(), "answer")
            _ask_batch(captioner, unasked, types, job)
        for key, dialogue in zip(keys, batch, strict=True):
            if key not in log.known:
                log.add({"key": key, "records": dialogue.records})
            records[dialogue.single] += log.known[key]["records"]
    if not records[True] and not records[False]:
        what = f" of the types {', '.join(types)}" if types else " with an answer (meta.questions)"
        raise ValueError(f"{job.instructions}: split {job.split!r} has no questions{what}")
    single = scored_records(out, records[True], job.data_set)
    return AskedScores(single, scored_records(out / DIALOGUES, records[False], job.data_set))


def _settings(job: AskJob, kind: str) -> dict[str, Any]:
    if kind not in ("instructions", "pairs"):
        raise ValueError(f"{job.instructions} has {kind}; give instructions, or pairs with questions")
    if kind == "instructions" and job.wording != AskJob.model_fields["wording"].default:
        raise ValueError(f"wording: the instructions of {job.instructions} are asked as they are; leave it out")
    include = {"split", "max_rows", "max_tokens"} | ({"wording"} if kind == "pairs" else set())
    return job.model_dump(mode="json", include=include | ({"types"} if job.types else set()))


def _dialogues(job: AskJob, kind: str) -> Iterator[Instruction]:
    """All dialogues of the split; of pairs, each question that has an answer is one."""
    for stored in iter_rows(job.instructions, split=None if job.split == "all" else job.split):
        if kind == "instructions":
            yield Instruction.from_row(stored)
            continue
        pair = ChangePair.from_row(stored)
        for record in pair.meta.get("questions", ()):
            try:
                name, question, kind_of, answer = (record[key] for key in ("id", "question", "type", "answer"))
            except (TypeError, KeyError) as error:
                raise ValueError(f"{job.instructions}, pair {pair.pair_id!r}: meta.questions has no {error}") from None
            if answer is not None:  # else withheld by the authors
                turns = (Turn("user", job.wording.replace("{question}", question)), Turn("assistant", answer, kind_of))
                yield Instruction(f"{pair.pair_id}/{name}", (pair.before, pair.after), turns, split=pair.split)


def _ask_batch(captioner: Captioner, batch: Sequence[_Dialogue], types: Sequence[str], job: AskJob) -> None:
    """Ask the first question of all dialogues together, then the second of those that have one, and so on."""
    for dialogue in batch:
        if (count := len(dialogue.row.images)) != 2:
            raise ValueError(
                f"{job.instructions}, row {dialogue.row.row_id!r}: has {count} images; a captioner answers questions "
                "about two, before and after"
            )
    shown = [(dialogue, [_decoded(image) for image in dialogue.row.images]) for dialogue in batch]
    for number in range(max(len(dialogue.answers) for dialogue in batch)):
        asking = [(dialogue, images) for dialogue, images in shown if number < len(dialogue.answers)]
        for dialogue, _ in asking:
            dialogue.history.append(dialogue.answers[number][0])
        for (dialogue, _), reply in zip(asking, _replies(captioner, asking, job.max_tokens), strict=True):
            question, answer = dialogue.answers[number]
            dialogue.history.append(Turn("assistant", reply.text))
            if not types or answer.task in types:
                record = {"id": f"{dialogue.row.row_id}/{number}", "type": str(answer.task), "answer": answer.text}
                named = {"class": _class_of(dialogue.row, question.text)} if answer.task in (COUNT, LOCATION) else {}
                dialogue.records.append({**record, **named, "prediction": reply.text})


def _replies(captioner: Captioner, asking: Sequence[tuple[_Dialogue, Any]], max_tokens: int) -> list[Answer]:
    """The captioner's next messages in dialogues, each with its two images; a refusal names its row."""
    befores, afters = zip(*(images for _, images in asking), strict=True)
    try:
        return captioner.answer(befores, afters, [dialogue.history for dialogue, _ in asking], max_tokens=max_tokens)
    except ValueError as error:
        if len(asking) == 1:
            raise ValueError(f"row {asking[0][0].row.row_id!r}: {error}") from None
    return [reply for single in asking for reply in _replies(captioner, [single], max_tokens)]


def _class_of(row: Instruction, question: str) -> str:
    """The class that a question asks about: the row's own, else the one that its text names."""
    if (about := row.meta.get("about")) is not None:
        return str(about)
    named = [name for name in CHANGED if name in question.lower()]
    if len(named) != 1:
        raise ValueError(
            f"row {row.row_id!r}: {question!r} asks about no class that it names; give meta.about, one of "
            f"{', '.join(CHANGED)}"
        )
    return named[0]


def scored_records(out: Path, records: Sequence[dict[str, str]], data_set: str) -> AnswerScores | None:
    """Write :data:`ANSWERS` and score it; None without records."""
    if not records:
        return None
    out.mkdir(exist_ok=True)
    path = write_text(out / ANSWERS, "".join(json.dumps(record) + "\n" for record in records))
    return run_answers(AnswersJob(answers=str(path), out=str(out), data_set=data_set, allow_unreadable=True))


def read_answers(path: str | os.PathLike[str], allow_unreadable: bool = False) -> list[ScoredAnswer]:
    """Read a file of answers.

    Raises:
        ValueError: names every line of another form, with a repeated id, with a true answer that no rule can parse, or,
            unless allowed, with such a prediction.
    """
    rows: list[ScoredAnswer] = []
    errors: list[str] = []
    line_of: dict[str, int] = {}
    try:
        lines = split_lines(decode_text(Path(path).read_bytes()))
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from None
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = _answer(record := parse_json(line))
            name = str(record.get("id", f"line {number}"))
            if (first := line_of.setdefault(name, number)) != number:
                raise ValueError(f"id {name!r} is in line {first} too")
            if read_answer(row.type, row.answer) is None:
                raise ValueError(f"the answer {row.answer!r} does not fit a {row.type} question")
            if not allow_unreadable and read_answer(row.type, row.prediction) is None:
                raise ValueError(
                    f"the prediction {row.prediction!r} cannot be read as the answer to a {row.type} question "
                    "(allow_unreadable=true scores it as wrong)"
                )
            rows.append(row)
        except ValueError as error:
            errors.append(f"{path}, line {number}: {error}")
    if len(errors) > _MOST_NAMED:
        errors[_MOST_NAMED:] = [f"and {len(errors) - _MOST_NAMED} more lines"]
    if errors:
        raise ValueError("\n".join(errors))
    if not rows:
        raise ValueError(f"{path}: the file has no answers")
    return rows


def _answer(record: Any) -> ScoredAnswer:
    if not isinstance(record, dict):
        raise ValueError("not a JSON object")
    texts = {key: record.get(key, "") for key in ("type", "answer", "prediction", "class")}
    if lacking := [key for key in texts if key != "class" and key not in record]:
        raise ValueError(f"lacks {', '.join(lacking)}")
    if wrong := [key for key, value in texts.items() if isinstance(value, bool) or not isinstance(value, str | int)]:
        raise ValueError(f"{wrong[0]} must be text, got {texts[wrong[0]]!r}")
    kind, answer, prediction, of = map(str, texts.values())
    kind = ALIASES.get(kind, kind)
    if not kind:
        raise ValueError("type is empty")
    if kind not in (COUNT, LOCATION):
        of = ""
    elif not of:
        raise ValueError(f"lacks class: a {kind} question has one (road, building)")
    return ScoredAnswer(type=kind, answer=answer, prediction=prediction, of=of)


def run_answers(job: AnswersJob) -> AnswerScores:
    """Score the file and write ``answers.json``.

    Raises:
        ValueError: as :func:`read_answers`.
    """
    rows = read_answers(job.answers, job.allow_unreadable)
    measures = score_answers(rows)
    others = [measure for measure in measures if measure.type not in _SCORED]
    accuracies = [measure.scores["Accuracy"] for measure in others]
    overall = None
    if others:
        right = sum(measure.scores["Accuracy"] * measure.questions for measure in others)
        overall = right / sum(measure.questions for measure in others)
    result = AnswerScores(
        data_set=job.data_set,
        answers=job.answers,
        questions=len(rows),
        measures=measures,
        overall_accuracy=overall,
        average_accuracy=statistics.fmean(accuracies) if others else None,
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
