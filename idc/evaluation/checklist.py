"""Captions against a checklist of yes and no about their pairs (ViDiC, Wu et al. 2025): what a reader of the caption
alone would answer.

A caption that says that nothing changed answers every item by the benchmark's own rule, "default to same": no. Of all
others a language model behind an endpoint reads the answers. The principles of its prompt are those of the benchmark's
(prompt/prompt_judge.txt, MIT) in our wording; their file itself may be given as ``prompt``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import Field

from idc.config import missing
from idc.data.manifest import missing_pairs
from idc.data.readers.question_sets import SECTIONS
from idc.data.schema import ChangePair
from idc.data.stored_rows import iter_rows
from idc.data.textfiles import decode_text, parse_json
from idc.endpoint.answer_log import AnswerLog
from idc.endpoint.chat_endpoint import Reply
from idc.evaluation.answers import AnswerScores, answers_table, scored_records
from idc.evaluation.judge import JudgeSettings, ask_judge, filled_prompt, prompt_faults, request_key
from idc.evaluation.references import read_captions
from idc.metrics.change_types import says_no_change
from idc.util.option_values import DiskPath

PROMPT = """\
A program described how two videos, A and B, differ. Answer the question by this description alone.

Whatever the description does not say to differ is the same in both; answer accordingly. A difference counts if it is \
stated, or follows from what is stated, and not if you would have to guess. A question about something general or \
overall is about the whole and not about details.

Answer with a JSON object: {"answer": "yes" or "no", "explanation": "a short reason"}

Description: {description}
Question: {question}
"""
PLACEHOLDERS = ("{description}", "{question}")
_LOG = "judged.jsonl"
_ANSWER = re.compile(r"\banswer\b\W*(yes|no)\b", re.IGNORECASE)


class ChecklistJob(JudgeSettings):
    """Score captions by the yes and no questions of a data set (ViDiC)."""

    checklist: str = Field(min_length=1)
    """Folder of pairs with questions (`jobs/import_dataset.py format=vidic`); images are not needed."""
    predictions: str = Field(min_length=1)
    """Captions of these pairs: as of an evaluation, or the responses of the benchmark's own programs (a JSON list of
    video1_path, video2_path and response)."""
    out: DiskPath = Field(min_length=1)
    """Folder for `answers.jsonl`, `answers.json` and the judge's replies (`judged.jsonl`, kept between runs)."""
    judge: str | None = None
    """Name of the judging model at `url`. Default: only captions that say that nothing changed are scored."""
    prompt: str | None = None
    """Text file with another prompt; {description} and {question} in it are replaced, and doubled braces are halved."""

    def errors(self) -> Iterator[str]:
        yield from super().errors()
        if (self.judge is None) != (not self.url):
            yield "judge, url: give both, or neither"

    def preflight(self) -> Iterator[str]:
        yield from missing_pairs(self.checklist, "checklist")
        yield from missing(self.predictions, "predictions")
        yield from prompt_faults(self.prompt, PLACEHOLDERS)


class _Item(NamedTuple):
    """A question about the pair ``name``; ``key``: of the request, None if the rule answers it."""

    name: str
    record: Mapping[str, str]
    prompt: str
    key: str | None


class ChecklistScores(NamedTuple):
    """``answers``: of all items that were answered, None if there are none; ``right``: section -> numbers of right
    answers and of items; ``by_rule``, ``left``: items that the rule answered, and that nobody did."""

    answers: AnswerScores | None
    right: dict[str, tuple[int, int]]
    by_rule: int
    left: int


def run_checklist(job: ChecklistJob) -> ChecklistScores:
    """Answer the items and score the answers. Those that a judge gave are kept in ``judged.jsonl``.

    Raises:
        ValueError: a pair has no caption.
        EndpointError: the endpoint fails; the same command continues.
    """
    items, log = list(_items(job)), AnswerLog(Path(job.out) / _LOG)
    unanswered = {item.key: item.prompt for item in items if item.key is not None and item.key not in log.known}
    if job.judge is not None:
        ask_judge(job, job.judge, unanswered, log, _answer)
    records: list[dict[str, str]] = []
    right = dict.fromkeys(SECTIONS, (0, 0))
    for item in items:
        if item.key is not None and item.key not in log.known:
            continue
        said = "no" if item.key is None else str(log.known[item.key]["answer"])
        section = item.record["id"].partition("/")[0]
        hits, number = right[section]
        right[section] = hits + (said == item.record["answer"]), number + 1
        kept = {"type": item.record["type"], "answer": item.record["answer"], "prediction": said}
        records.append({"id": f"{item.name}/{item.record['id']}", **kept})
    by_rule = sum(item.key is None for item in items)
    scores = scored_records(Path(job.out), records, "vidic")
    return ChecklistScores(scores, right, by_rule, len(items) - len(records))


def checklist_table(result: ChecklistScores) -> str:
    """The scores as plain text."""
    sections = [f"{name.lower()} {hits}/{number}" for name, (hits, number) in result.right.items()]
    lines = [f"right: {', '.join(sections)}; {result.by_rule} answers by the rule for captions without a change"]
    if result.left:
        lines.append(f"{result.left} items of other captions have no answer: give judge= and url=, or ask again")
    return "\n".join([*([answers_table(result.answers)] if result.answers else []), *lines])


def _items(job: ChecklistJob) -> Iterator[_Item]:
    template = PROMPT
    if job.prompt is not None:
        text = Path(job.prompt).read_text(encoding="utf-8")
        template = text.replace("{{", "{").replace("}}", "}")
    captions = _captions(job.predictions)
    for row in iter_rows(job.checklist):
        pair = ChangePair.from_row(row)
        caption = captions.get(_videos(*pair.meta.get("videos", ())), captions.get(pair.pair_id))
        if caption is None:
            raise ValueError(f"{job.predictions} has no caption of the pair {pair.pair_id!r}")
        rule = says_no_change(caption)
        for record in pair.meta.get("questions", ()):
            prompt = filled_prompt(template, dict(zip(PLACEHOLDERS, (caption, record["question"]), strict=True)))
            yield _Item(pair.pair_id, record, prompt, None if rule else request_key(job, job.judge or "", prompt))


def _videos(*paths: str) -> str:
    return "\n".join(paths)


def _captions(path: str) -> dict[str, str]:
    """Captions by the id of their pair, or, of the benchmark's own programs, by its two videos."""
    if path.endswith(".json"):
        rows = parse_json(decode_text(Path(path).read_bytes()))
        if isinstance(rows, list) and all(isinstance(row, dict) and "response" in row for row in rows):
            return {_videos(row["video1_path"], row["video2_path"]): str(row["response"]) for row in rows}
    return read_captions(path)


def _answer(key: str, reply: Reply) -> dict[str, Any] | None:
    match = _ANSWER.search(reply.text)
    return None if match is None else {"answer": match[1].lower(), "reply": reply.text, "model": reply.model}
