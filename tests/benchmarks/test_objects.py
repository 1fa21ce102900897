"""Matching of claims with truths."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks.objects import judge_description, true_changes
from idc.captioning.contract import Candidate, Claim, ClaimKind, Description

SYNONYMS = {"man": ["person"], "car": ["vehicle"]}
LEFT, RIGHT = (0, 0, 20, 50), (80, 0, 100, 50)


def claim(kind: ClaimKind, name: str, where: str, count: int = 1, **fields: object) -> Claim:
    boxes = {"box_before": None, "box_after": None, "confidence": 1.0}
    return Claim(kind=kind, object=name, count=count, where=where, **{**boxes, **fields})  # type: ignore[arg-type]


CASES: dict[str, tuple[Sequence[str], Sequence[Claim], str]] = {
    "nothing of nothing": ([], [], "true"),
    "nothing of something": (["gone car 20 50"], [], "silent"),
    "something of nothing": ([], [claim("changed", "region", "at the left")], "false"),
    "by its name": (["gone man 20 50"], [claim("gone", "man", "on the left")], "true"),
    "by a synonym, at its place": (["gone man 20 80"], [claim("gone", "person", "at the bottom left")], "true"),
    "the other way": (["gone man 20 50"], [claim("appeared", "man", "at the left")], "false"),
    "the wrong side": (["gone man 20 50"], [claim("gone", "man", "at the right")], "false"),
    "half of its place": (["gone man 20 20"], [claim("gone", "man", "at the bottom left")], "false"),
    "without a name": (["gone man 20 50"], [claim("gone", "object", "at the left")], "partly"),
    "two of two": (["gone car 20 50", "gone car 80 50"], [claim("gone", "car", "left and right", 2)], "true"),
    "two of one": (["gone car 20 50"], [claim("gone", "car", "at the left", 2)], "false"),
    "half a crowd": ([f"gone man {x} 50" for x in (5, 15, 50, 85, 95)], [claim("gone", "person", "", 3)], "true"),
    "a true and a false clause": (
        ["gone car 20 50"], [claim("gone", "car", "at the left"), claim("gone", "cup", "at the right")], "false",
    ),
    "moved": (["gone car 10 50", "appeared car 90 50"], [claim("moved", "car", "right", box_before=LEFT)], "true"),
    "moved from elsewhere": (
        ["gone car 10 50", "appeared car 90 50"], [claim("moved", "car", "right", box_before=RIGHT)], "false",
    ),
    "replaced": (
        ["gone man 20 50", "appeared car 20 50"],
        [claim("replaced", "man", "at the left", before="man", after="vehicle")], "true",
    ),
    "words": (["changed words 20 5"], [claim("replaced", "words", "at the top left", before="A", after="B")], "true"),
    "another one, said as another look": (
        ["gone man 20 50", "appeared man 20 50"], [claim("changed", "person", "at the left")], "partly",
    ),
}  # fmt: skip


def judge(caption: str, claims: Sequence[Claim], lines: Sequence[str], doubt: str | None = None) -> tuple[str, object]:
    description = Description((Candidate(caption, -0.1),), claims=tuple(claims), doubt=doubt)
    return judge_description(description, true_changes(lines), 100, SYNONYMS)


@pytest.mark.parametrize("case", CASES)
def test_verdict_of_claims(case: str) -> None:
    lines, claims, expected = CASES[case]
    verdict, wrong = judge("Something changed." if claims else "Nothing changed.", claims, lines)
    assert verdict == expected
    assert bool(wrong) == (expected == "false")


MOVED = "No change was found, but positions differ, as when the camera or what it shows moves."
REFUSED = "No single region can be named: too much of the two images differs, or their views do."


@pytest.mark.parametrize(
    ("caption", "lines", "expected"),
    [
        (REFUSED, ["changed view"], "refused"), (REFUSED, ["gone car 20 50"], "silent"), (REFUSED, [], "true"),
        ("The image after is black.", ["changed camera"], "failed camera"),
        (MOVED, ["changed view"], "true"), (MOVED, ["changed view", "gone car 20 50"], "partly"),
        (MOVED, ["gone car 20 50"], "silent"), (MOVED, [], "true"),
    ],
)  # fmt: skip
def test_verdict_where_nothing_is_claimed_and_nothing_is_sure(caption: str, lines: list[str], expected: str) -> None:
    assert judge(caption, [], lines, doubt="it is unsure")[0] == expected
    if expected != "silent":
        assert judge("Nothing changed.", [], lines)[0] == ("silent" if lines else "true")


def test_every_truth_can_be_read_and_lies_on_its_image() -> None:
    sets = json.loads(Path(__file__).parents[2].joinpath("benchmarks/object_truths.json").read_text(encoding="utf-8"))[
        "pairs"
    ]
    changes = [change for pairs in sets.values() for lines in pairs.values() for change in true_changes(lines)]
    assert len(changes) > 100
    assert all(0 <= value <= 100 for change in changes for value in change.centre or ())
    with pytest.raises(ValueError, match="vanished car"):
        true_changes(["vanished car 1 2"])
