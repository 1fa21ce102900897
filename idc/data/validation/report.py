"""The result of a data set's validation: as a record, as JSON, and for a terminal."""

from __future__ import annotations

import json
from collections.abc import Iterator

from pydantic import BaseModel

from idc.data import files
from idc.data.config import ValidateJob
from idc.data.validation.caption_statistics import CaptionStatistics
from idc.data.validation.duplicates import Leak
from idc.data.validation.published import PUBLISHED, CountComparison

DATA_SET_FOLDER = "data set folder"
"""Name of the format of an imported folder."""

EXAMPLES = 10
"""Most examples stored of each kind of problem."""


class Problem(BaseModel):
    """One kind of fault; ``examples`` are ``"pair id: detail"``."""

    count: int
    examples: list[str]


class Validation(BaseModel):
    """Result of :func:`idc.data.validation.run.validate`.

    ``ok`` is false if pairs are unusable, repeated, contradictory, or leak between splits, or if there are none.
    """

    pairs: str
    format: str
    ok: bool
    images: bool
    """False for annotations alone: nothing that needs the images was checked."""
    num_pairs: int
    usable_pairs: int
    by_split_and_type: dict[str, dict[str, int]]
    counts: dict[str, dict[str, int]]
    """Name -> split -> number: those that :mod:`idc.data.validation.published` compares, and the reader's own."""
    published: CountComparison | None
    """None if no counts of this set are published."""
    problems: dict[str, Problem]
    warnings: dict[str, Problem]
    num_leaks: int
    """Number of images that occur in more than one split."""
    leaks: list[Leak]
    leaked_pairs: dict[str, dict[str, int]]
    """Split -> other split -> number of its pairs that share an image with the other."""
    without_captions: int
    statistics: CaptionStatistics
    statistics_by_split: dict[str, CaptionStatistics]
    different_sizes: int
    """Pairs whose before and after have different sizes; they are used, resized."""
    image_sizes: dict[str, int]
    rejected: dict[str, int]
    """Rows in the folder's rejects, by reason."""
    notes: list[str]

    @property
    def errors(self) -> dict[str, int]:
        """The errors: name -> number. Empty if ``ok``."""
        numbers = {code: problem.count for code, problem in self.problems.items()}
        if self.num_leaks:
            numbers["leak between splits"] = self.num_leaks
        return numbers or ({} if self.usable_pairs else {"no usable pair": 1})

    @property
    def num_errors(self) -> int:
        """The number of errors that the terminal and the page show."""
        return sum(self.errors.values())

    @property
    def title(self) -> str:
        """The data set's name in papers, or its path."""
        return self.published.title if self.published is not None else self.pairs


def report_path(job: ValidateJob) -> str:
    """The path of the report: ``job.report``, else next to the pairs."""
    if job.report is not None:
        return job.report
    if files.locate(job.pairs).is_file():
        return f"{job.pairs}.validation.json"
    return files.join(job.pairs, "") + "validation.json"


def write_validation_report(result: Validation, path: str) -> None:
    """Write the result as JSON."""
    files.locate(path).write((json.dumps(result.model_dump(), indent=1, ensure_ascii=False) + "\n").encode())


COLUMNS = ("pairs", "captions", "words per caption", "over 20 words", "sentences per caption", "vocabulary")
"""Those of OmniDiff's tables 1 and 2."""


def statistics_row(statistics: CaptionStatistics) -> list[str]:
    """The values under :data:`COLUMNS`."""
    if not statistics.captions:
        return [f"{statistics.pairs:,}", "0", "–", "–", "–", "–"]
    return [
        f"{statistics.pairs:,}",
        f"{statistics.captions:,}",
        f"{statistics.words_per_caption.mean:.1f}",
        f"{statistics.share_over_20_words:.1%}",
        f"{statistics.sentences_per_caption:.2f}",
        f"{statistics.vocabulary:,}",
    ]


def published_count_rows(result: Validation) -> list[list[str]]:
    """The row of OmniDiff's tables 1 and 2 about this set, if it has one: a title, and the values under
    :data:`COLUMNS`."""
    published = None if result.published is None else PUBLISHED[result.published.name]
    if published is None or (row := published.table1) is None:
        return []
    title = f"{published.title} ({'the paper, tables 1 and 2' if row.captions is not None else 'OmniDiff, table 1'})"
    counts = [f"{number:,}" if number is not None else "" for number in (row.captions, row.vocabulary)]
    sentences = "" if row.sentences is None else f"{row.sentences}"
    return [[title, f"{row.pairs:,}", counts[0], f"{row.words}", f"{row.over_20}%", sentences, counts[1]]]


def validation_table(result: Validation) -> str:
    """The result for a terminal: verdict and problems. The page and the JSON file have the tables."""
    return "\n".join(_lines(result))


def _lines(result: Validation) -> Iterator[str]:
    yield f"{result.pairs} ({result.format}): {result.usable_pairs} of {result.num_pairs} pairs are usable"
    if not result.images:
        yield "annotations alone: images were not checked"
    for split, row in result.by_split_and_type.items():
        yield f"{split}: {sum(row.values()):,} pairs ({', '.join(f'{count:,} {kind}' for kind, count in row.items())})"
    yield f"captions: {result.statistics.captions:,}; without one: {result.without_captions:,} pairs"
    if result.rejected:
        what = ", ".join(f"{count} {code}" for code, count in result.rejected.items())
        yield f"left out of the folder: {what}"
    yield from (f"note: {note}" for note in result.notes)
    for word, problems in (("warning", result.warnings), ("ERROR", result.problems)):
        for code, problem in problems.items():
            yield f"{word} {code}: {problem.count}"
            yield from (f"      {example}" for example in problem.examples)
    if result.num_leaks:
        yield f"ERROR leak between splits: {result.num_leaks} images"
        yield from (f"      {line}" for line in leaked(result))
        yield from (
            f"      {' and '.join(leak.pairs)} share one ({' and '.join(leak.splits)})" for leak in result.leaks
        )
    if result.published is not None:
        yield f"counts of {result.published.sentence()}"
    yield "ok" if result.ok else f"NOT fit for training as it is: {errors_line(result)}"


def errors_line(result: Validation) -> str:
    """``"3 errors (2 missing file, 1 leak between splits)"``."""
    kinds = ", ".join(f"{count:,} {name}" for name, count in result.errors.items())
    return f"{result.num_errors:,} {'error' if result.num_errors == 1 else 'errors'}{f' ({kinds})' if kinds else ''}"


def leaked(result: Validation) -> Iterator[str]:
    """Lines: how many pairs of each split share an image with which other."""
    for split, others in result.leaked_pairs.items():
        pairs = result.statistics_by_split[split].pairs
        yield from (
            f"{count:,} of the {pairs:,} pairs of {split} share an image with {others_name}"
            for others_name, count in others.items()
        )
