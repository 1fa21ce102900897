"""METEOR with a part of its table of paraphrases, in several processes: the same numbers."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np

from idc.metrics import java
from idc.metrics.java import Meteor
from idc.metrics.paraphrases import Paraphrases, cut, words_of

REFERENCES = {
    "a": ["the large red cube has been moved to the left of the ball", "the big red block is no longer at its place"],
    "b": ["there is no difference between the two images", "the scene remains the same as before"],
    "c": ["it 's a left-most car , which is n't there any more", "the person 's u.s. flag is not in the picture"],
    "d": ["remove the man \\/ woman & crop at 50 %", "take out the people in the background"],
    "e": ["the shiny object changed its location", "the metallic thing was relocated"],
}
HYPOTHESES = {
    "a": "the big red cube was shifted to the left side of the sphere",
    "b": "the two images are identical",
    "c": "the leftmost vehicle isn't there anymore",
    "d": "remove the persons and crop the photo",
    "e": "the metal object changed location",
}


def test_numbers_with_the_covering_part_of_the_table_are_those_with_the_whole(meteor: Meteor) -> None:
    words = words_of([*(text for own in REFERENCES.values() for text in own), *HYPOTHESES.values()])
    assert words is not None
    table = java.paraphrases(words)
    assert 0 < len(table.text) < 2**20
    expected = meteor.statistics(REFERENCES, HYPOTHESES)
    assert expected[:, 16:20].any(), "paraphrases match"
    for processes in (1, 2):
        part = Meteor(table, processes)
        try:
            assert np.array_equal(part.statistics(REFERENCES, HYPOTHESES), expected)
            assert len(part._processes) == processes
            assert part._table is table, "the whole table was not needed"
        finally:
            part.close()


def test_sentences_that_a_table_does_not_cover_are_scored_with_the_whole(meteor: Meteor) -> None:
    expected = meteor.statistics(REFERENCES, HYPOTHESES)
    words = words_of(["the red cube"])
    assert words is not None
    part = Meteor(Paraphrases(words, ""))
    try:
        assert np.array_equal(part.statistics(REFERENCES, HYPOTHESES), expected)
    finally:
        part.close()


def test_words_with_marks_are_there_with_all_their_pieces() -> None:
    words = words_of(["It's LEFT-most", "the end ."])
    assert words is not None
    assert {"it", "'", "s", "'s", "it'", "it's", "left", "most", "left-most", "-most", "the", "end", "."} <= words
    assert words_of(["a café"]) is None
    assert words_of(["&quot; a"]) is None
    assert words_of(["a café"], strict=False) == words_of(["a"])


def test_entries_are_kept_in_order_across_blocks(tmp_path: Path) -> None:
    entries = ["0.5\na\nb c\n", "0.4\na\nd\n", "0.3\na b\nc\n", "0.2\ne\na\n"] * 400_000  # more than a block
    table = tmp_path / "table.gz"
    table.write_bytes(gzip.compress("".join(entries).encode(), 1))
    found = cut(table, frozenset("abc"))
    assert found.text == "0.5\na\nb c\n0.3\na b\nc\n" * 400_000
