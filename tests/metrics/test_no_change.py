"""Captions that state that nothing changed: sentences with which the rules were written, and sentences that measure
them. The latter are written anew, once the rules are fixed, and no rule is changed for them: when one is, they join the
former and others are written. A line is "= " or "! " (nothing changed, something did) and a sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from idc.metrics.changes import named_type, says_no_change
from idc.metrics.no_change import READ, clauses, states_no_change

HERE = Path(__file__).parent


def sentences(name: str) -> list[tuple[bool, str]]:
    lines = (HERE / f"{name}.txt").read_text(encoding="utf-8").splitlines()
    return [({"=": True, "!": False}[line[0]], line[2:]) for line in lines]


@pytest.mark.parametrize(("name", "most"), [("no_change_sentences", 0.0), ("no_change_held_out", 0.03)])
def test_the_error_on_a_list_of_sentences(name: str, most: float) -> None:
    rows = sentences(name)
    assert min(sum(same for same, _ in rows), sum(not same for same, _ in rows)) >= 100
    wrong = [text for same, text in rows if states_no_change(text) != same]
    assert len(wrong) <= most * len(rows), wrong
    assert all(says_no_change(text) == (named_type(text) == "none") == states_no_change(text) for _, text in rows)


def test_the_kinds_of_clauses() -> None:
    assert clauses("The camera moved, but nothing was added except for a lamp on the table.") == [
        ("the camera moved", "distractor"),
        ("nothing was added", "same"),
        ("a lamp on the table", "change"),
    ]
    assert clauses("As far as I can tell, the rest is unchanged") == [
        ("as far as i can tell", "other"),
        ("the rest is unchanged", "rest"),
    ]


def test_only_the_beginning_of_an_endless_caption_is_read() -> None:
    assert states_no_change("no change. " + "x" * READ + " a house was built")
    assert not states_no_change("x" * READ + " no change")
