"""Counts of the descriptions, their tokens, and how often they repeat (Guo et al., table 14)."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable

from pydantic import BaseModel, ConfigDict

from idc.data.pipeline import FolderSource
from idc.data.store import complete_manifest, iter_rows, read_rejects
from idc.data.text import words
from idc.endpoint.answer_log import AnswerLog
from idc.mining.descriptions.asking import answers_to, refusal_of
from idc.mining.descriptions.config import DescribeJob
from idc.mining.descriptions.describing import ORIGIN, log_path, origin_of
from idc.mining.descriptions.instructions import read_image_captions
from idc.mining.descriptions.template import parse_description

RESULT = "descriptions.json"
ALL = "all"

PUBLISHED = {
    "instruct_pix2pix": (311_499, 297_485),
    "cc3m": (449_194, 440_204),
    "spot_the_diff": (7_004, 6_439),
    ALL: (767_697, 744_128),
}
"""Instruction -> total and unique descriptions of the paper (table 14)."""


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Repetition(_Record):
    """A row of table 14."""

    total: int
    unique: int
    """Different sentences, letter for letter."""

    @property
    def repeated(self) -> int:
        return self.total - self.unique

    @property
    def share(self) -> float:
        return self.repeated / self.total if self.total else 0.0


class AskedStatistics(_Record):
    """The answers of a model that the folder stands on, also those of earlier runs and the refused ones."""

    answers: int
    refused: dict[str, int]
    """Reason -> answers."""
    by_question: dict[int, int]
    """Number of the question that was accepted -> pairs."""
    prompt_tokens: int
    completion_tokens: int
    examples: dict[str, list[str]]
    """Reason -> some refused answers."""

    @property
    def refused_share(self) -> float:
        """Share of the answers (paper: 0.2 %)."""
        return sum(self.refused.values()) / self.answers if self.answers else 0.0


class DescriptionSummary(_Record):
    """All that is counted; ``descriptions.json``."""

    describer: str
    prompt: str
    pairs: int
    described: int
    rejected: dict[str, int]
    """Reason -> pairs without a description."""
    asked: AskedStatistics | None
    """None of the oracle."""
    repetition: dict[str, Repetition]
    """Instruction (of the oracle: ``rendered``) -> its row, and ``all``."""
    verbs: dict[str, int]
    """Of the template, the most frequent first; empty for the conventional prompt."""
    words_per_image: float | None
    """Mean length of the description of an image; None for the conventional prompt."""
    words_per_caption: float


def summarise_descriptions(job: DescribeJob) -> DescriptionSummary:
    """Count the complete folder ``job.out``.

    Raises:
        ValueError: it is not complete.
    """
    manifest = complete_manifest(job.out, "pairs")
    sentences: dict[str, Counter[str]] = {}
    verbs: Counter[str] = Counter()
    by_question: Counter[int] = Counter()
    lengths = described_words = 0
    names = [reject.row_id for reject in read_rejects(job.out)]
    for row in iter_rows(job.out, ["pair_id", "captions", "meta"], batch_size=1024):
        (caption,), meta = row["captions"], json.loads(row["meta"])
        origin = meta.get(ORIGIN, {"instruction": "rendered", "question": 1})
        names.append(row["pair_id"])
        sentences.setdefault(origin["instruction"], Counter())[caption] += 1
        by_question[origin["question"]] += 1
        lengths += _count(caption)
        if job.prompt == "structured":
            description = parse_description(caption)
            verbs.update((description.verb_before, description.verb_after))
            described_words += _count(description.before) + _count(description.after)
    rows = max(1, manifest.num_rows)
    return DescriptionSummary(
        describer=origin_of(job),
        prompt=job.prompt,
        pairs=manifest.num_rows + manifest.num_rejected,
        described=manifest.num_rows,
        rejected=manifest.reject_reasons,
        asked=None if job.describer == "oracle" else _asked(job, names, by_question),
        repetition={
            **{name: _repetition(counts) for name, counts in sorted(sentences.items())},
            ALL: _repetition(sum(sentences.values(), Counter())),
        },
        verbs=dict(verbs.most_common()),
        words_per_image=described_words / (2 * rows) if job.prompt == "structured" else None,
        words_per_caption=lengths / rows,
    )


def _asked(job: DescribeJob, names: Iterable[str], by_question: Counter[int]) -> AskedStatistics:
    source = FolderSource(job.pairs, chunk_size=job.chunk_size, columns=["pair_id"])
    captions, log = read_image_captions(job.image_captions), AnswerLog(log_path(job))
    refused: Counter[str] = Counter()
    examples: dict[str, list[str]] = {}
    answers = prompt = completion = 0
    for pair_id in names:
        for record in answers_to(job, source, captions, log, pair_id):
            answers += 1
            prompt += record["prompt_tokens"] or 0
            completion += record["completion_tokens"] or 0
            if reason := refusal_of(job, record):
                code = reason.partition(":")[0]
                refused[code] += 1
                if len(shown := examples.setdefault(code, [])) < 5:
                    shown.append(f"{pair_id}: {record['answer'][:300]}")
    return AskedStatistics(
        answers=answers,
        refused=dict(refused.most_common()),
        by_question=dict(sorted(by_question.items())),
        prompt_tokens=prompt,
        completion_tokens=completion,
        examples=examples,
    )


def _repetition(sentences: Counter[str]) -> Repetition:
    return Repetition(total=sentences.total(), unique=len(sentences))


def _count(text: str) -> int:
    return sum(word not in (",", ";") for word in words(text))


def description_table(summary: DescriptionSummary) -> str:
    """The counts as plain text."""
    lines = [f"{summary.described:,} of {summary.pairs:,} pairs described by {summary.describer}"]
    if summary.rejected:
        lines.append(f"rejected: {_listed(summary.rejected)}")
    if (asked := summary.asked) is not None:
        lines.append(
            f"{asked.answers:,} answers, {asked.refused_share:.2%} of them refused ({_listed(asked.refused)}); "
            f"{asked.prompt_tokens:,} prompt and {asked.completion_tokens:,} completion tokens"
        )
    for name, row in summary.repetition.items():
        lines.append(f"  {name:18}{row.total:10,} sentences, {row.unique:,} different, {row.share:.2%} repeated")
    return "\n".join(lines)


def _listed(counts: dict[str, int]) -> str:
    return ", ".join(f"{count:,} x {name.replace('_', ' ')}" for name, count in counts.items()) or "none"
