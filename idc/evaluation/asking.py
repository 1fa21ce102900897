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
from idc.evaluation.answers import AnswerScores, AnswersJob, run_answers
from idc.evaluation.config import AskJob
from idc.metrics.classification import BINARY, COUNT, LOCATION
from idc.training.artifact import captioning_identity
from idc.util.atomic import write_json, write_text

ANSWERS = "answers.jsonl"
"""File of the answers, as :func:`idc.evaluation.answers.read_answers` reads it."""
DIALOGUES = "dialogues"
"""Folder in the job's for the answers in dialogues of several questions."""
_STATE, _PARTIAL = "asked.json", "asked.partial.jsonl"
_SCORED = (BINARY, COUNT, LOCATION)
_VERSION = 2
"""Incremented when the same inputs would give other answers."""


class AskedScores(NamedTuple):
    """The scores of single questions, and of the questions in dialogues; None where there are none."""

    single: AnswerScores | None
    dialogues: AnswerScores | None


@dataclass
class _Asked:
    """A dialogue that is being asked.

    Attributes:
        types: of the answers that are scored; empty: all.
        answers: the true ones, each with its question, up to the last one that is scored.
        several: the row has several answers, scored or not.
        history: turns so far, with the captioner's own answers.
        records: of the scored answers so far.
    """

    row: Instruction
    types: Sequence[str]
    images: Sequence[np.ndarray]
    answers: Sequence[tuple[Turn, Turn]]
    several: bool
    history: list[Turn]
    records: list[dict[str, str]] = field(default_factory=list)

    @classmethod
    def of(cls, row: Instruction, types: Sequence[str]) -> _Asked:
        system = [turn for turn in row.turns if turn.role == "system"]
        turns = row.turns[len(system) :]
        answers = list(zip(turns[::2], turns[1::2], strict=True))
        several = len(answers) > 1
        while answers and not _is_scored(answers[-1][1], types):  # after the last one that is scored nothing is asked
            answers.pop()
        images: Any = row.images  # in a folder they are bytes
        return cls(row, types, [_decoded(image) for image in images] if answers else [], answers, several, system)

    def take(self, number: int, prediction: str) -> None:
        """Add the captioner's answer to a question."""
        question, answer = self.answers[number]
        self.history.append(Turn("assistant", prediction))
        if not _is_scored(answer, self.types):
            return
        record = {
            "id": f"{self.row.row_id}/{number}", "type": str(answer.task), "answer": answer.text,
            "prediction": prediction,
        }  # fmt: skip
        if answer.task in (COUNT, LOCATION):
            record["class"] = _class_of(self.row, question.text)
        self.records.append(record)


def _is_scored(answer: Turn, types: Sequence[str]) -> bool:
    return not types or answer.task in types


@lru_cache(maxsize=2)
def _decoded(data: bytes) -> np.ndarray:
    """The pixels of an image; a pair's questions come one after another."""
    return decode_image(data)


def ask_questions(job: AskJob, load: LoadCaptioner | None = None, overwrite: bool = False) -> AskedScores:
    """Ask and score, or go on where an interrupted job stopped.

    Args:
        load: loads the captioner; by default that of the artifact.
        overwrite: discard the answers of other inputs or settings.

    Raises:
        ValueError: the folder has no questions, a row has other than two images or names no class to count or locate,
            the captioner answers no questions, or ``job.out`` has answers of other inputs or settings.
    """
    out = Path(job.out)
    manifest = complete_manifest(job.instructions)
    settings = _settings(job, manifest)
    identity = fingerprint(
        _VERSION, captioning_identity(artifact_folder(job.artifact)), manifest.fingerprint, settings,
        job.loading_identity(),
    )  # fmt: skip
    rows = _resumed(out, identity, overwrite)
    types = job.types or (_SCORED if manifest.kind == "instructions" else ())  # empty: all
    captioner: Captioner | None = None
    with (out / _PARTIAL).open("a", encoding="utf-8") as stream:
        for batch in _batches(job, manifest.kind, types, rows):
            if captioner is None:
                captioner = require((load or CaptionerLoader(job.artifact, job))(), "answer")
            _ask_batch(captioner, batch, job.max_tokens)
            for asked in batch:
                rows[asked.row.row_id] = asked.several, asked.records
                stream.write(json.dumps([asked.row.row_id, rows[asked.row.row_id]]) + "\n")
            stream.flush()
    single, several = (
        [record for in_dialogue, records in rows.values() if in_dialogue == wanted for record in records]
        for wanted in (False, True)
    )
    if not single and not several:
        what = f" of the types {', '.join(types)}" if types else " with an answer (meta.questions)"
        raise ValueError(f"{job.instructions}: split {job.split!r} has no questions{what}")
    return AskedScores(_scored(job, out, single), _scored(job, out / DIALOGUES, several))


def _resumed(out: Path, identity: str, overwrite: bool) -> dict[str, tuple[bool, list[dict[str, str]]]]:
    """Row -> whether it is a dialogue of several questions, and its scored answers; of the same inputs and settings."""
    out.mkdir(parents=True, exist_ok=True)
    state, partial = out / _STATE, out / _PARTIAL
    if state.exists() and json.loads(state.read_text(encoding="utf-8"))["fingerprint"] != identity:
        if not overwrite:
            raise ValueError(
                f"{out} has answers of another artifact, of other questions or settings; choose another folder, or "
                "pass --overwrite"
            )
        partial.unlink(missing_ok=True)
    write_json(state, {"fingerprint": identity})
    rows: dict[str, tuple[bool, list[dict[str, str]]]] = {}
    if partial.exists():
        lines = partial.read_text(encoding="utf-8").splitlines(keepends=True)
        whole = [line for line in lines if line.endswith("\n")]  # a kill may have torn the last one
        if len(whole) < len(lines):
            write_text(partial, "".join(whole))
        rows.update(json.loads(line) for line in whole)
    return rows


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


def _batches(job: AskJob, kind: str, types: Sequence[str], done: Mapping[str, Any]) -> Iterator[list[_Asked]]:
    """The dialogues that are not yet asked, each with a question that is scored."""
    batch: list[_Asked] = []
    for row in islice(_dialogues(job, kind), job.max_rows):
        if row.row_id in done:
            continue
        asked = _Asked.of(row, types)
        if not asked.answers:
            continue
        if len(asked.images) != 2:
            raise ValueError(
                f"{job.instructions}, row {asked.row.row_id!r}: has {len(asked.images)} images; a captioner answers "
                "questions about two, before and after"
            )
        batch.append(asked)
        if len(batch) == job.batch_size:
            yield batch
            batch = []
    if batch:
        yield batch


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


def _ask_batch(captioner: Captioner, batch: Sequence[_Asked], max_tokens: int) -> None:
    """Ask the first question of all dialogues together, then the second of those that have one, and so on."""
    for number in range(max(len(asked.answers) for asked in batch)):
        asking = [asked for asked in batch if number < len(asked.answers)]
        for asked in asking:
            asked.history.append(asked.answers[number][0])
        for asked, reply in zip(asking, _replies(captioner, asking, max_tokens), strict=True):
            asked.take(number, reply.text)


def _replies(captioner: Captioner, asking: Sequence[_Asked], max_tokens: int) -> list[Answer]:
    """The captioner's next messages.

    Raises:
        ValueError: it refuses one of the rows, which the message names.
    """
    befores, afters = zip(*(asked.images for asked in asking), strict=True)
    try:
        return captioner.answer(befores, afters, [asked.history for asked in asking], max_tokens=max_tokens)
    except ValueError as error:
        if len(asking) == 1:
            raise ValueError(f"row {asking[0].row.row_id!r}: {error}") from None
    return [reply for asked in asking for reply in _replies(captioner, [asked], max_tokens)]


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
    return run_answers(
        AnswersJob(
            answers=str(path), out=str(out), data_set=job.data_set, no_change=job.no_change, allow_unreadable=True
        )
    )
