"""The judge of sentences on pages with one property changed: right ones, and one mistake each."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.screens import OPERATORS, TIERS, judge, screens_report
from idc.captioning.contract import Candidate, Claim, Description

BOX = (100, 100, 300, 140)
FAR = (700, 600, 800, 640)


def judged(operator: str, direction: str, sentence: str, box: Any = BOX, **fields: str) -> str:
    row = {"operator": operator, "direction": direction, "text": "Start chat", "new": "Start chat", "boxes": [BOX]}
    claims = (Claim("changed", "region", 1, "in the middle", box, box, 1.0),) if box else ()
    return judge(Description((Candidate(sentence, 0.0),), claims=claims), {**row, **fields})[0]


RIGHT = [
    ("font_weight", "more", 'The words "Start chat" became bolder.'),
    ("font_size", "less", 'The words "Start chat" became smaller, and what follows moved up by 4 px.'),
    ("letter_spacing", "more", 'The words "Start chat" got more space between the letters.'),
    ("line_height", "less", 'The words "Start chat" got less space between the lines, by 4 px.'),
    ("color", "other", 'The words "Start chat" changed from black to blue.'),
    ("gradient", "other", 'The gradient of the part with the words "Start" changed from red to blue.'),
    ("opacity", "less", 'The button "Start chat" became fainter (50 % opaque).'),
    ("position", "left", 'The button "Start chat" moved left by 12 px.'),
    ("spacing", "more", 'There is more space above the button "Start chat", which moved down by 6 px.'),
    ("justify", "other", 'The button "Start chat" moved right by 80 px.'),
    ("border", "dashed", 'The border of the button "Start chat" is dashed now.'),
    ("rounded", "more", 'The corners of the button "Start chat" became rounder.'),
]


@pytest.mark.parametrize(("operator", "direction", "sentence"), RIGHT)
def test_the_effect_in_its_direction_at_its_place_is_right(operator: str, direction: str, sentence: str) -> None:
    assert judged(operator, direction, sentence) == "right"
    assert judged(operator, direction, sentence, FAR) == "missed"
    assert judged(operator, direction, "Nothing changed.", None) == "missed"
    assert judged(operator, direction, "A region of 200 x 40 px in the middle looks different.") == "partly"
    false = 'the word "chat" became "cat" on the left' if operator != "text" else "the button became bolder"
    assert judged(operator, direction, f"{sentence[:-1]}; {false}.") == "invented"


@pytest.mark.parametrize(
    ("operator", "direction", "sentence"),
    [
        ("font_weight", "more", 'The words "Start chat" became less bold.'),
        ("font_size", "less", 'The words "Start chat" became larger (letters by 20 %).'),
        ("color", "other", 'The words "Start chat" changed from blue to blue.'),
        ("rounded", "less", 'The corners of the button "Start chat" became rounder.'),
    ],
)
def test_the_other_direction_is_invented(operator: str, direction: str, sentence: str) -> None:
    assert judged(operator, direction, sentence) == "invented"


def test_a_true_consequence_does_not_hide_a_false_clause() -> None:
    false = 'The words "Start chat" became less bold, and what is next to it moved right by 4 px.'
    assert judged("border", "more", false) == "invented"
    assert (
        judged("border", "more", 'The button "Start chat" got a red border, and what follows moved down by 4 px.')
        == "right"
    )


def test_other_words_are_those_of_the_text() -> None:
    assert judged("text", "other", 'The word "chat" became "talk" on the left.', new="Start talk") == "right"
    assert judged("text", "other", 'The words "copper meadow" became "river" here.', new="Start talk") == "invented"


def test_an_unchanged_page_is_kept_only_without_a_claim() -> None:
    assert judged("none", "", "The two images are identical.", None) == "right"
    assert judged("none", "", 'The button "Start chat" became bolder.') == "invented"


def test_the_report_weighs_changed_and_unchanged_pairs_by_39_to_5() -> None:
    common = {"wrong": [], "clauses": 1, "seconds": 1.0}
    rows = [{"operator": OPERATORS[0], "tier": tier, "verdict": verdict, **common}
            for tier, verdict in zip(TIERS, ("right", "right", "missed"), strict=True)]  # fmt: skip
    lines = screens_report([*rows, {"operator": "none", "tier": "none", "verdict": "invented", **common}])
    assert lines[2] == "| font_weight | 3 | 2 | 0 | 1 | 0 | 100 | 100 | 0 |"
    assert "right 66.7 %, specificity 0.0 %, overall 59.1" in lines[-1]
