"""ChangeIMTI's measures of short answers (Xue et al., ChangeVG, section V-B), and the rules that read the answers.

======== ==================================== =====================================================================
type     answer                               measures
======== ==================================== =====================================================================
binary   "Yes", "No" (did anything change)    accuracy; precision, recall and F1 of "yes"
count    "3", of a class (road, building)     mean absolute error, class by class
location "top, left corner", "No change"      class by class: example-based accuracy (mean of intersection over union of
                                              the two sets of places), micro precision, recall and F1, subset accuracy
                                              (share of equal sets)
other    any text (CDVQA, QAG-360K)           accuracy by type, over all answers (OA), and the mean over the types (AA)
======== ==================================== =====================================================================

A prediction that no rule can read never helps: it counts as the wrong one of yes and no, as a count that is off by at
least one, as a place that is not there, as a text that differs. The paper does not say what "No change" is among the
places; see :class:`AnswersJob` for the two readings.
"""

from __future__ import annotations

import os
import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import AliasChoices, BaseModel, ConfigDict, Field

from idc.atomic import write_text
from idc.config import ConfigModel, missing
from idc.data.textfiles import decode, parse_json, split_lines
from idc.provenance import origin

BINARY, COUNT, LOCATION = "binary", "count", "location"
ALIASES = {"change_or_not": BINARY}
"""What other data sets call one of the three types (CDVQA, QAG-360K)."""

NOTHING = "no change"
PLACES = (
    *("top left corner", "top", "top right corner"),
    *("left", "center", "right"),
    *("lower left corner", "lower", "lower right corner"),
)
"""ChangeIMTI's names of the cells of a 3 x 3 grid, row by row."""

RESULT = "answers.json"

_PLACE_OF = {frozenset(name.removesuffix(" corner").split()): name for name in PLACES}
_PLACE_WORDS = {
    **dict.fromkeys(("top", "upper", "up"), "top"),
    **dict.fromkeys(("lower", "bottom", "down"), "lower"),
    **dict.fromkeys(("center", "centre", "middle", "central"), "center"),
    **{"left": "left", "right": "right"},
}
_FILLING = frozenset(("the", "a", "in", "at", "on", "of", "to", "corner", "side", "part", "edge", "area", "image"))
_NUMBER_WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven")
_MOST_NAMED = 20


class AnswersJob(ConfigModel):
    """Score answers to questions about changes."""

    answers: str
    """JSONL, a question a line: `type` (binary, count, location, or another), `answer`, `prediction`; `class` (road,
    building, ...) for count and location; `id`, if given, has to be there once."""
    out: str = Field(min_length=1)
    """Folder for `answers.json`."""
    data_set: str = "changeimti"
    """Of what data set the questions are: the page of the leaderboard on which the result stands."""
    no_change: Literal["label", "empty"] = "label"
    """What "No change" is among the places. `label`: a tenth one. `empty`: no place; two empty sets agree fully. The
    paper does not say; its micro recalls are nearly its subset accuracies where half of the answers and more are "No
    change" (table VI), which fits `label`."""
    allow_unreadable: bool = False
    """Score predictions that no rule can read as wrong, and count them; otherwise they are faults."""

    def preflight(self) -> Iterator[str]:
        yield from missing(self.answers, "answers")


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Answer(_Record):
    """A question's true answer and the predicted one."""

    type: str
    answer: str
    prediction: str
    of: str = ""
    """The class that is counted or placed."""


class Measures(_Record):
    """The measures of one type of question, of one class."""

    type: str
    of: str = ""
    questions: int
    unreadable: int = 0
    """Predictions that no rule could read."""
    scores: dict[str, float]
    baseline: dict[str, float] = Field(validation_alias=AliasChoices("baseline", "floor"))
    """What always giving the most frequent true answer scores."""
    baseline_answer: str = Field(validation_alias=AliasChoices("baseline_answer", "floor_answer"))


class AnswerScores(_Record):
    """The result of a file of answers."""

    data_set: str
    answers: str
    """The scored file."""
    no_change: str
    questions: int
    measures: list[Measures]
    overall_accuracy: float | None = None
    """OA of the questions that are none of ChangeIMTI's types."""
    average_accuracy: float | None = None
    """AA: the mean over their types."""
    command: str = ""
    commit: str = ""
    """Of the program that scored them (:mod:`idc.provenance`)."""


# ---------------------------------------------------------------------------------------------------- reading answers


def yes_or_no(text: str) -> bool | None:
    """Yes or no: the first word that is one of them if it opens the answer, else if it closes it; else ``None``."""
    words = re.findall(r"[a-z]+", text.lower())
    for word in (*words[:1], *words[-1:]):
        if word in ("yes", "no"):
            return word == "yes"
    return None


def counted(text: str) -> int | None:
    """The one whole number in the answer, in digits or as a word up to eleven; "no ..." and "none" are 0.

    ``None`` if there is no number, or several different ones.
    """
    words = re.findall(r"\d+(?:\.\d+)?|[a-z]+", text.lower())
    numbers = {word for word in words if word[0].isdigit()}
    if not numbers:
        numbers = {str(_NUMBER_WORDS.index(word)) for word in words if word in _NUMBER_WORDS}
    if not numbers and words[:1] in (["no"], ["none"], ["nothing"]):
        numbers = {"0"}
    if len(numbers) != 1 or not (number := numbers.pop()).isdecimal():
        return None
    return int(number)


def places(text: str) -> frozenset[str] | None:
    """The named cells of :data:`PLACES`; empty for "No change".

    Names stand between commas, semicolons, slashes, lines or "and". "upper", "bottom", "middle" are understood, and the
    word "corner" may be missing. ``None`` if anything else is said, or "No change" beside a place.
    """
    found: set[str] = set()
    said = [item.strip(" .!\"'*") for item in re.split(r"[,;/\n]|\band\b", text.lower())]
    items = [item for item in said if item]
    if not items:
        return None
    for item in items:
        if re.fullmatch(r"(?:there (?:is|are) )?(?:no changes?|none)", item):
            found.add(NOTHING)
            continue
        words = [word for word in re.findall(r"\S+", item) if word not in _FILLING]
        if any(word not in _PLACE_WORDS for word in words):
            return None
        named = frozenset(_PLACE_WORDS[word] for word in words)
        if len(named) > 1:
            named -= {"center"}  # "center left" is the left cell
        if named not in _PLACE_OF:
            return None
        found.add(_PLACE_OF[named])
    if NOTHING in found:
        return frozenset() if len(found) == 1 else None
    return frozenset(found)


def plain(text: str) -> str:
    """Any other answer: lower-cased, without spaces around it and without a full stop at its end."""
    return text.strip().rstrip(".").strip().lower()


# ----------------------------------------------------------------------------------------------------------- measures


def binary_measures(truth: Sequence[bool], predicted: Sequence[bool]) -> dict[str, float]:
    """Accuracy, and precision, recall and F1 of ``True``; a measure without a denominator is 0."""
    right = sum(t == p for t, p in zip(truth, predicted, strict=True))
    hits = sum(t and p for t, p in zip(truth, predicted, strict=True))
    return {"Accuracy": _share(right, len(truth)), **_precision_recall(hits, sum(predicted), sum(truth))}


def count_error(truth: Sequence[int], predicted: Sequence[int]) -> float:
    """Mean absolute error."""
    return statistics.fmean(abs(t - p) for t, p in zip(truth, predicted, strict=True))


def set_measures(truth: Sequence[frozenset[str]], predicted: Sequence[frozenset[str]]) -> dict[str, float]:
    """Of sets of labels: example-based accuracy, micro precision, recall, F1, subset accuracy.

    Two empty sets have an example-based accuracy of 1 and do not enter the micro measures.
    """
    both = list(zip(truth, predicted, strict=True))
    overlaps = [len(t & p) / len(t | p) if t | p else 1.0 for t, p in both]
    hits = sum(len(t & p) for t, p in both)
    micro = _precision_recall(hits, sum(map(len, predicted)), sum(map(len, truth)))
    return {
        "Example-based accuracy": statistics.fmean(overlaps),
        **{f"Micro {name if name == 'F1' else name.lower()}": value for name, value in micro.items()},
        "Subset accuracy": _share(sum(t == p for t, p in both), len(both)),
    }


def _precision_recall(hits: int, predicted: int, true: int) -> dict[str, float]:
    return {
        "Precision": _share(hits, predicted),
        "Recall": _share(hits, true),
        "F1": _share(2 * hits, predicted + true),
    }


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0


# ------------------------------------------------------------------------------------------------------------ scoring


def score_answers(rows: Sequence[Answer], no_change: str = "label") -> list[Measures]:
    """The measures of each type and class, in the order in which they come first."""
    groups: dict[tuple[str, str], list[Answer]] = {}
    for row in rows:
        groups.setdefault((row.type, row.of), []).append(row)
    return [_measures(kind, of, own, no_change) for (kind, of), own in groups.items()]


def _measures(kind: str, of: str, rows: Sequence[Answer], no_change: str) -> Measures:
    truth = [read_answer(kind, row.answer) for row in rows]
    assert None not in truth, "faulty answers are refused when the file is read"
    predicted = [read_answer(kind, row.prediction) for row in rows]
    most = max(dict.fromkeys(truth), key=truth.count)
    return Measures(
        type=kind,
        of=of,
        questions=len(rows),
        unreadable=predicted.count(None),
        scores=_scores(kind, truth, predicted, no_change),
        baseline=_scores(kind, truth, [most] * len(truth), no_change),
        baseline_answer=_said(most),
    )


def _scores(kind: str, truth: Sequence[Any], predicted: Sequence[Any], no_change: str) -> dict[str, float]:
    if kind == BINARY:
        return binary_measures(truth, [not t if p is None else p for t, p in zip(truth, predicted, strict=True)])
    if kind == COUNT:
        taken = [t + max(t, 1) if p is None else p for t, p in zip(truth, predicted, strict=True)]
        return {"MAE": count_error(truth, taken)}
    if kind == LOCATION:
        empty = frozenset({NOTHING}) if no_change == "label" else frozenset()
        wrong = frozenset({"unreadable"})
        return set_measures([t or empty for t in truth], [wrong if p is None else p or empty for p in predicted])
    return {"Accuracy": _share(sum(t == p for t, p in zip(truth, predicted, strict=True)), len(truth))}


def read_answer(kind: str, text: str) -> bool | int | frozenset[str] | str | None:
    """An answer by the rule of its type; ``None`` if the rule cannot read it."""
    if kind == BINARY:
        return yes_or_no(text)
    if kind == COUNT:
        return counted(text)
    if kind == LOCATION:
        return places(text)
    return plain(text) or None


def _said(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, frozenset):
        return ", ".join(name for name in PLACES if name in value) or NOTHING
    return str(value)


# ---------------------------------------------------------------------------------------------------------------- job


def read_answers(path: str | os.PathLike[str], allow_unreadable: bool = False) -> list[Answer]:
    """Read a file of answers.

    Raises:
        ValueError: naming every line that is not of the form, whose id is there twice, whose true answer no rule can
            read, or, if not allowed, whose prediction none can.
    """
    rows: list[Answer] = []
    faults: list[str] = []
    seen: dict[str, int] = {}
    try:
        lines = split_lines(decode(Path(path).read_bytes()))
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from None
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            record = _record(line)
            row = _answer(record)
            if (name := str(record.get("id", f"line {number}"))) in seen:
                raise ValueError(f"id {name!r} is in line {seen[name]} too")
            seen[name] = number
            if read_answer(row.type, row.answer) is None:
                raise ValueError(f"the answer {row.answer!r} is none to a {row.type} question")
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
        raise ValueError(f"{path}: there are no answers in it")
    return rows


def _record(line: str) -> dict[str, Any]:
    record = parse_json(line)
    if not isinstance(record, dict):
        raise ValueError("not a JSON object")
    return record


def _answer(record: dict[str, Any]) -> Answer:
    lacking = [key for key in ("type", "answer", "prediction") if key not in record]
    if lacking:
        raise ValueError(f"lacks {', '.join(lacking)}")
    texts = {}
    for key in ("type", "answer", "prediction", "class"):
        value = record.get(key, "")
        if isinstance(value, bool) or not isinstance(value, str | int):
            raise ValueError(f"{key} has to be text, it is {value!r}")
        texts[key] = str(value)
    kind = ALIASES.get(texts["type"], texts["type"])
    if not kind:
        raise ValueError("type is empty")
    if kind in (COUNT, LOCATION) and not texts["class"]:
        raise ValueError(f"lacks class: a {kind} question is of one (road, building)")
    of = texts["class"] if kind in (COUNT, LOCATION) else ""
    return Answer(type=kind, answer=texts["answer"], prediction=texts["prediction"], of=of)


def run(job: AnswersJob) -> AnswerScores:
    """Score the file and write ``answers.json``.

    Raises:
        ValueError: as :func:`read_answers`.
    """
    rows = read_answers(job.answers, job.allow_unreadable)
    measures = score_answers(rows, job.no_change)
    others = [one for one in measures if one.type not in (BINARY, COUNT, LOCATION)]
    asked = sum(one.questions for one in others)
    result = AnswerScores(
        data_set=job.data_set,
        answers=job.answers,
        no_change=job.no_change,
        questions=len(rows),
        measures=measures,
        overall_accuracy=sum(one.scores["Accuracy"] * one.questions for one in others) / asked if others else None,
        average_accuracy=statistics.fmean(one.scores["Accuracy"] for one in others) if others else None,
        **origin(None),
    )
    write_text(Path(job.out) / RESULT, result.model_dump_json(indent=1) + "\n")
    return result


def table(result: AnswerScores) -> str:
    """The measures beside their baselines, as plain text."""
    lines = [f"{result.questions} answers; fractions, as ChangeIMTI's tables"]
    for one in result.measures:
        of = f", {one.of}" if one.of else ""
        unreadable = f", {one.unreadable} predictions unreadable and so wrong" if one.unreadable else ""
        lines.append(f"{one.type}{of}: {one.questions} questions{unreadable}")
        lines += _columns(
            one.scores, {f"baseline: always {one.baseline_answer!r}": one.baseline, "predictions": one.scores}
        )
    if result.overall_accuracy is not None and result.average_accuracy is not None:
        lines.append(f"other questions: OA {result.overall_accuracy:.4f}, AA {result.average_accuracy:.4f}")
    return "\n".join(lines)


def _columns(names: Mapping[str, float], rows: Mapping[str, Mapping[str, float]]) -> list[str]:
    head = f"  {'':34}" + "".join(f"{name:>24}" for name in names)
    return [head, *(f"  {label:34}" + "".join(f"{own[name]:24.4f}" for name in names) for label, own in rows.items())]
