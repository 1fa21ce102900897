"""METEOR's table of English paraphrases, cut down to the words that occur in the scored sentences.

The table of ``pycocoevalcap`` has 5.3 million entries. Reading it takes a METEOR process several seconds of a core and
a gigabyte of memory, often more than all sentences of an evaluation. An entry (a phrase and its paraphrase) can match
only if all its words occur in the sentences, so without the others METEOR gives the same numbers.
"""

from __future__ import annotations

import gzip
import re
import string
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

_RUNS = re.compile(r"[a-z0-9]+|[^a-z0-9]")
_LONGEST = 16
"""Runs of letters and of other characters in a word, at most."""
_BLOCK = 2**23
_ALWAYS = frozenset([*string.punctuation, "''", "``", "--", "..."])
"""Marks that METEOR may make from others."""


def words_of(sentences: Iterable[str], strict: bool = True) -> frozenset[str] | None:
    """At least the words that METEOR (``-norm``) sees in tokenised sentences.

    METEOR lower-cases, and splits words at marks (``it's``): all pieces of a word with marks are in the result.

    Args:
        strict: None if a word has characters that METEOR may rewrite otherwise; else such a word is left out.
    """
    words = set(_ALWAYS)
    for word in {word for sentence in sentences for word in sentence.lower().split()}:
        runs = _RUNS.findall(word)
        if not word.isascii() or ("&" in word and word != "&") or len(runs) > _LONGEST:
            if strict:
                return None
            continue
        words.update("".join(runs[i:j]) for i in range(len(runs)) for j in range(i + 1, len(runs) + 1))
    return frozenset(words)


@dataclass(frozen=True)
class Paraphrases:
    """A part of the table.

    Attributes:
        words: all entries of these words are in it.
        text: as METEOR reads it: a probability, a phrase and its paraphrase, a line each.
    """

    words: frozenset[str]
    text: str

    def cover(self, sentences: Iterable[str]) -> bool:
        """Whether METEOR scores these sentences with it as with the whole table."""
        words = words_of(sentences)
        return words is not None and words <= self.words


def cut(table: Path, words: frozenset[str]) -> Paraphrases:
    """The entries of a table (gzip) all of whose words are in ``words``, in their order."""
    wanted = {word.encode() for word in words}

    def kept(phrase: bytes) -> bool:
        return wanted.issuperset(phrase.split())

    entries: list[bytes] = []
    for lines in _entries(table):
        right = _Remembered(kept)  # the table is sorted by phrase: the same ones follow each other
        for i, phrase in enumerate(lines[1::3]):
            if right[phrase] and kept(lines[3 * i + 2]):
                entries += lines[3 * i : 3 * i + 3]
    return Paraphrases(words, b"".join(line + b"\n" for line in entries).decode())


class _Remembered(dict[bytes, bool]):
    """A function of phrases, called once for each."""

    def __init__(self, function: Callable[[bytes], bool]) -> None:
        self._function = function

    def __missing__(self, phrase: bytes) -> bool:
        self[phrase] = value = self._function(phrase)
        return value


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
