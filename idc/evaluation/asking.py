"""Puts the questions of a data set to a captioner, and scores its answers by ChangeIMTI's measures.

They are those of a folder of instructions, or of pairs with questions in ``meta["questions"]`` (CDVQA, QAG-360K). A
dialogue is asked turn by turn, each after the captioner's own earlier answers. Captions are not scored here but by an
evaluation, against all references of a pair.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from idc.captioning.contract import Answer, Captioner, require
from idc.captioning.loading import CaptionerLoader, LoadCaptioner, artifact_folder
from idc.changeimti.change_regions import CLASSES
from idc.data.images import decode_image
from idc.data.manifest import Manifest, complete_manifest, fingerprint
from idc.data.schema import ChangePair, Instruction, Turn
from idc.data.stored_rows import iter_rows
from idc.endpoint.answer_log import AnswerLog
from idc.evaluation.answers import AnswerScores, AnswersJob, run_answers
from idc.evaluation.config import AskJob
from idc.metrics.classification import BINARY, COUNT, LOCATION
from idc.training.artifact import captioning_identity
from idc.util.atomic import write_text

ANSWERS = "answers.jsonl"
"""File of the answers, as :func:`idc.evaluation.answers.read_answers` reads it."""
DIALOGUES = "dialogues"
"""Folder in the job's for the answers in dialogues of several questions."""
_LOG = "asked.jsonl"
"""File of the answers by what they depend on, which an interrupted job goes on from."""
_SCORED = (BINARY, COUNT, LOCATION)
_VERSION = 2
"""Incremented when the same inputs would give other answers."""


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

    @classmethod
    def of(cls, row: Instruction, types: Sequence[str]) -> _Dialogue:
        system = [turn for turn in row.turns if turn.role == "system"]
        turns = row.turns[len(system) :]
        answers = list(zip(turns[::2], turns[1::2], strict=True))
        scored = max((n for n, (_, answer) in enumerate(answers, start=1) if _is_scored(answer, types)), default=0)
        return cls(row, answers[:scored], len(answers) <= 1, system)

    def add(self, number: int, prediction: str, types: Sequence[str]) -> None:
        """Add the captioner's answer to a question."""
        question, answer = self.answers[number]
        self.history.append(Turn("assistant", prediction))
        if _is_scored(answer, types):
            record = {"id": f"{self.row.row_id}/{number}", "type": str(answer.task), "answer": answer.text}
            if answer.task in (COUNT, LOCATION):
                record["class"] = _class_of(self.row, question.text)
            self.records.append({**record, "prediction": prediction})


def _is_scored(answer: Turn, types: Sequence[str]) -> bool:
    return not types or answer.task in types


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
    identity = (
        _VERSION, captioning_identity(artifact_folder(job.artifact)), manifest.fingerprint, _settings(job, manifest),
        job.loading_identity(),
    )  # fmt: skip
    log = AnswerLog(out / _LOG)
    captioner: Captioner | None = None
    records: dict[bool, list[dict[str, str]]] = {True: [], False: []}
    rows = (_Dialogue.of(row, types) for row in islice(_dialogues(job, manifest.kind), job.max_rows))
    dialogues = (dialogue for dialogue in rows if dialogue.answers)
    while batch := list(islice(dialogues, job.batch_size)):
        keys = [fingerprint(*identity, dialogue.row.row_id) for dialogue in batch]
        if unasked := [dialogue for key, dialogue in zip(keys, batch, strict=True) if key not in log.known]:
            captioner = captioner or require((load or CaptionerLoader(job.artifact, job))(), "answer")
            _ask_batch(captioner, unasked, types, job)
        for key, dialogue in zip(keys, batch, strict=True):
            if key not in log.known:
                log.add({"key": key, "records": dialogue.records})
            records[dialogue.single] += log.known[key]["records"]
    if not records[True] and not records[False]:
        what = f" of the types {', '.join(types)}" if types else " with an answer (meta.questions)"
        raise ValueError(f"{job.instructions}: split {job.split!r} has no questions{what}")
    return AskedScores(_scored(job, out, records[True]), _scored(job, out / DIALOGUES, records[False]))


def _settings(job: AskJob, manifest: Manifest) -> dict[str, Any]:
    """The settings that the answers depend on.

    Raises:
        ValueError: the folder is of another kind, or its questions are not worded here.
    """
    settings = job.model_dump(mode="json", include={"split", "max_rows", "max_tokens"})
    if manifest.kind == "instructions":
        if job.wording != AskJob.model_fields["wording"].default:
            raise ValueError(f"wording: the instructions of {job.instructions} are asked as they are; leave it out")
    elif manifest.kind == "pairs":
        settings["wording"] = job.wording
    else:
        raise ValueError(f"{job.instructions} has {manifest.kind}; give instructions, or pairs with questions")
    return settings if job.types is None else {**settings, "types": job.types}


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
            dialogue.add(number, reply.text, types)


def _replies(captioner: Captioner, asking: Sequence[tuple[_Dialogue, Any]], max_tokens: int) -> list[Answer]:
    """The captioner's next messages in dialogues, each with its two images.

    Raises:
        ValueError: it refuses one of the rows, which the message names.
    """
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
    named = [name for name in CLASSES if name in question.lower()]
    if len(named) != 1:
        raise ValueError(
            f"row {row.row_id!r}: {question!r} asks about no class that it names; give meta.about, one of "
            f"{', '.join(CLASSES)}"
        )
    return named[0]


def _scored(job: AskJob, out: Path, records: Sequence[Mapping[str, str]]) -> AnswerScores | None:
    if not records:
        return None
    out.mkdir(exist_ok=True)
    path = write_text(out / ANSWERS, "".join(json.dumps(record) + "\n" for record in records))
    return run_answers(AnswersJob(answers=str(path), out=str(out), data_set=job.data_set, allow_unreadable=True))
