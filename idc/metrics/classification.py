"""ChangeIMTI's measures of short answers (Xue et al., ChangeVG, section V-B), and the rules that parse the answers.

======== ==================================== =====================================================================
type     answer                               measures
======== ==================================== =====================================================================
binary   "Yes", "No" (did anything change)    accuracy; precision, recall and F1 of "yes"
count    "3", of a class (road, building)     mean absolute error, class by class
location "top, left corner", "No change"      class by class: example-based accuracy (mean of intersection over union of
                                              the two sets of places), micro precision, recall and F1, subset accuracy
                                              (share of equal sets)
other    any text (CDVQA, QAG-360K, ViDiC)    accuracy by type, over all answers (OA), and the mean over the types (AA);
                                              of a type of yes and no alone, predictions are parsed as those of binary
======== ==================================== =====================================================================

A prediction that no rule can parse always counts as wrong: as the wrong one of yes and no, as a count that is off by at
least one, as a place that does not exist, as a text that differs. The paper does not define "No change" among the
places. It is a tenth place here: where at least half of the answers are "No change" (table VI), the paper's micro
recalls nearly equal its subset accuracies.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict

BINARY, COUNT, LOCATION = "binary", "count", "location"
ALIASES = {"change_or_not": BINARY}
"""Names of the three types in other data sets (CDVQA, QAG-360K)."""

NOTHING = "no change"
PLACES = (
    *("top left corner", "top", "top right corner"),
    *("left", "center", "right"),
    *("lower left corner", "lower", "lower right corner"),
)
"""ChangeIMTI's names of the cells of a 3 x 3 grid, row by row."""

_PLACE_OF = {frozenset(name.removesuffix(" corner").split()): name for name in PLACES}
_PLACE_WORDS = {
    **dict.fromkeys(("top", "upper", "up"), "top"),
    **dict.fromkeys(("lower", "bottom", "down"), "lower"),
    **dict.fromkeys(("center", "centre", "middle", "central"), "center"),
    **{"left": "left", "right": "right"},
}
_YES_OR_NO: dict[bool | None, str] = {True: "yes", False: "no"}
_FILLING = frozenset(("the", "a", "in", "at", "on", "of", "to", "corner", "side", "part", "edge", "area", "image"))
_NUMBER_WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven")


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid")


class ScoredAnswer(_Record):
    """A question's true answer and the predicted one."""

    type: str
    answer: str
    prediction: str
    of: str = ""
    """The class that is counted or located."""


class Measures(_Record):
    """The measures of one type of question, of one class."""

    type: str
    of: str = ""
    questions: int
    unreadable: int = 0
    """Predictions that no rule could parse."""
    scores: dict[str, float]
    baseline: dict[str, float]
    """Scores of a constant prediction, the most frequent true answer."""
    baseline_answer: str


def yes_or_no(text: str) -> bool | None:
    """Yes or no: the first word that is one of them if it opens the answer, else if it closes it; else ``None``."""
    words = re.findall(r"[a-z]+", text.lower())
    for word in (*words[:1], *words[-1:]):
        if word in ("yes", "no"):
            return word == "yes"
    return None


def count_in(text: str) -> int | None:
    """The one whole number in the answer, in digits or as a word up to eleven; "no ..." and "none" are 0.

    ``None`` if there is no number, a negative one, or several different ones.
    """
    # A minus is a sign unless it follows a letter or digit ("A-1", "3-4"); U+2212 is the typographic minus.
    words = re.findall(r"(?:(?<!\w)[-\u2212])?\d+(?:\.\d+)?|[a-z]+", text.lower())
    numbers = {word for word in words if not word.isalpha()}
    if not numbers:
        numbers = {str(_NUMBER_WORDS.index(word)) for word in words if word in _NUMBER_WORDS}
    if not numbers and words[:1] in (["no"], ["none"], ["nothing"]):
        numbers = {"0"}
    if len(numbers) != 1 or not (number := numbers.pop()).isdecimal():
        return None
    return int(number)


def places(text: str) -> frozenset[str] | None:
    """The named cells of :data:`PLACES`, or :data:`NOTHING` alone.

    Names are separated by commas, semicolons, slashes, lines or "and". "upper", "bottom", "middle" are accepted, and
    the word "corner" may be missing. ``None`` for any other content, or "No change" together with a place.
    """
    cells: set[str] = set()
    parts = [item.strip(" .!\"'*") for item in re.split(r"[,;/\n]|\band\b", text.lower())]
    items = [item for item in parts if item]
    if not items:
        return None
    for item in items:
        if re.fullmatch(r"(?:there (?:is|are) )?(?:no changes?|none)", item):
            cells.add(NOTHING)
            continue
        words = [word for word in re.findall(r"\S+", item) if word not in _FILLING]
        if any(word not in _PLACE_WORDS for word in words):
            return None
        named = frozenset(_PLACE_WORDS[word] for word in words)
        if len(named) > 1:
            named -= {"center"}  # "center left" is the left cell
        if named not in _PLACE_OF:
            return None
        cells.add(_PLACE_OF[named])
    return None if NOTHING in cells and len(cells) > 1 else frozenset(cells)


def plain(text: str) -> str:
    """Any other answer: lower-cased, without spaces around it and without a full stop at its end."""
    return text.strip().rstrip(".").strip().lower()


def binary_measures(truth: Sequence[bool], predicted: Sequence[bool]) -> dict[str, float]:
    """Accuracy, and precision, recall and F1 of ``True``; a measure without a denominator is 0."""
    right = sum(t == p for t, p in zip(truth, predicted, strict=True))
    hits = sum(t and p for t, p in zip(truth, predicted, strict=True))
    return {"Accuracy": _share(right, len(truth)), **_precision_recall(hits, sum(predicted), sum(truth))}


def set_measures(truth: Sequence[frozenset[str]], predicted: Sequence[frozenset[str]]) -> dict[str, float]:
    """Of non-empty sets of labels: example-based accuracy, micro precision, recall, F1, subset accuracy."""
    both = list(zip(truth, predicted, strict=True))
    overlaps = [len(t & p) / len(t | p) for t, p in both]
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


def score_answers(rows: Sequence[ScoredAnswer]) -> list[Measures]:
    """The measures of each type and class, in the order in which they come first."""
    groups: dict[tuple[str, str], list[ScoredAnswer]] = {}
    for row in rows:
        groups.setdefault((row.type, row.of), []).append(row)
    return [_measures(kind, of, group) for (kind, of), group in groups.items()]


def _measures(kind: str, of: str, rows: Sequence[ScoredAnswer]) -> Measures:
    truth = [read_answer(kind, row.answer) for row in rows]
    assert None not in truth, "faulty answers are refused when the file is read"
    predicted = [read_answer(kind, row.prediction) for row in rows]
    if set(truth) <= set(_YES_OR_NO.values()):
        predicted = [_YES_OR_NO.get(yes_or_no(row.prediction)) for row in rows]
    most = max(dict.fromkeys(truth), key=truth.count)
    return Measures(
        type=kind,
        of=of,
        questions=len(rows),
        unreadable=predicted.count(None),
        scores=_scores(kind, truth, predicted),
        baseline=_scores(kind, truth, [most] * len(truth)),
        baseline_answer=_text(most),
    )


def _scores(kind: str, truth: Sequence[Any], predicted: Sequence[Any]) -> dict[str, float]:
    if kind == BINARY:
        return binary_measures(truth, [not t if p is None else p for t, p in zip(truth, predicted, strict=True)])
    if kind == COUNT:
        errors = (max(t, 1) if p is None else abs(t - p) for t, p in zip(truth, predicted, strict=True))
        return {"MAE": statistics.fmean(errors)}
    if kind == LOCATION:
        return set_measures(truth, [frozenset({"unreadable"}) if p is None else p for p in predicted])
    return {"Accuracy": _share(sum(t == p for t, p in zip(truth, predicted, strict=True)), len(truth))}


def read_answer(kind: str, text: str) -> bool | int | frozenset[str] | str | None:
    """An answer by the rule of its type; ``None`` if the rule cannot read it."""
    if kind == BINARY:
        return yes_or_no(text)
    if kind == COUNT:
        return count_in(text)
    if kind == LOCATION:
        return places(text)
    return plain(text) or None


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, frozenset):
        return ", ".join(name for name in (*PLACES, NOTHING) if name in value)
    return str(value)
