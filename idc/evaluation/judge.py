"""A language model as the judge of captions, at any endpoint with OpenAI's chat completions.

The criteria are those of OmniDiff's prompt (Liu et al., supplementary material, figure 6): an impartial judge finds the
aspects of the reference caption, counts which of them the predicted caption covers, exactly or in part, each with equal
weight, and gives the share as a score from 0 to 100 with a short justification. The wording here is our own, because
the licence of the figure's forbids changes; for the paper's exact wording give it as ``prompt``, with the figure's two
placeholders.

Every answer is appended to ``answers.jsonl`` under a hash of everything it depends on, so that an interrupted run is
continued and nothing is paid for twice. The baselines are judged too: a judge that prefers a constant caption is
useless.
"""

from __future__ import annotations

import hashlib
import json
import re
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from idc.config import missing
from idc.endpoint.answer_log import AnswerLog
from idc.endpoint.ask_many import ask_many
from idc.endpoint.chat_endpoint import ChatEndpoint, Reply, RequestConfig, without_credentials
from idc.evaluation.record import CONSTANT, NEAREST, Evaluation, ScoredCaption, load_evaluation, load_predictions
from idc.util.atomic import write_text
from idc.util.option_values import DiskPath
from idc.util.progress import Progress

PROMPT_NAME = "omnidiff-criteria-1"
"""Name of :data:`PROMPT`; it changes with the wording."""

PROMPT = """\
You compare two texts without favouring either. Both say what differs between two images: the first was written by a \
person who saw them and is taken as true, the second was made by a program.

Proceed as follows.
1. Read both texts with care.
2. List the aspects of the true text: every statement of what changed, where, and how it looks.
3. Find which of these aspects the program's text covers, word for word or in its own words; an aspect may be covered \
in part.
4. Every aspect weighs the same. The score is the covered percentage of the aspects, from 0 to 100.

Answer with a first line of the form "Score: <number>", and a second line with a short reason.

True text: {standard_answer}
Program's text: {assistant_response}
"""

PLACEHOLDERS = ("{standard_answer}", "{assistant_response}")
ANSWERS, RESULT = "answers.jsonl", "judge.json"
MODEL = "model"
"""Name of the evaluated captions; the others are baselines."""


class JudgeSettings(RequestConfig):
    """How a judge is asked."""

    temperature: float = Field(0.0, ge=0)
    """Sampling temperature of the judge."""
    max_tokens: int = Field(300, ge=1)
    """Maximum length of an answer."""
    concurrency: int = Field(4, ge=1, le=256)
    """Most requests in flight."""


class JudgeJob(JudgeSettings):
    """Let a language model judge the captions of an evaluation."""

    evaluation: str
    """Output folder of `jobs/evaluate.py`: captions with their references."""
    out: DiskPath = Field(min_length=1)
    """Folder for `answers.jsonl` (kept between runs) and `judge.json`."""
    url: str = Field(min_length=1)
    """Base URL of the endpoint, without `/chat/completions`: `https://api.openai.com/v1`, `http://localhost:8000/v1`."""
    judge: str = Field(min_length=1)
    """Name of the judging model at the endpoint."""
    prompt: str | None = None
    """Text file with another prompt; {standard_answer} and {assistant_response} in it are replaced."""
    baselines: bool = True
    """Also judge the constant caption and the nearest training pair's caption, where the evaluation has them: up to
    three requests per pair instead of one."""
    max_pairs: int | None = Field(None, ge=1)
    """Number of pairs, from the first on. Default: all."""

    def preflight(self) -> Iterator[str]:
        yield from missing(self.evaluation, "evaluation")
        yield from prompt_faults(self.prompt, PLACEHOLDERS)


class JudgeSection(JudgeJob):
    """A judgement inside another job, which sets its evaluation and its output."""

    SET_OUTSIDE: ClassVar = ("evaluation", "out")

    evaluation: str = ""
    out: str = ""


class JudgeQuestion(NamedTuple):
    """A caption of ``system`` (``model`` or a baseline) to be compared with a reference; ``key`` is the hash of
    everything that the answer depends on."""

    system: str
    pair_id: str
    prompt: str
    key: str


class Judged(BaseModel):
    """Scores of one system's captions, 0 to 100."""

    model_config = ConfigDict(extra="forbid")
    pairs: int
    mean: float
    std: float
    """Over the pairs (n - 1)."""


class JudgeResult(BaseModel):
    """The result of a judge."""

    model_config = ConfigDict(extra="forbid")
    judge: str
    """Requested name of the model."""
    answered_by: list[str]
    """Names of the model in the endpoint's answers."""
    prompt: str
    """Name of the prompt, or of its file."""
    prompt_sha256: str
    endpoint: str
    temperature: float
    evaluation: str
    evaluation_fingerprint: str
    split: str
    scores: dict[str, Judged]
    """``model`` and the baselines."""
    per_pair: dict[str, float]
    """Pair -> score of the model's caption."""
    baselines_per_pair: dict[str, dict[str, float]] = {}
    """Baseline -> pair -> score of its caption."""
    unreadable: dict[str, str]
    """Pair -> an answer without a score. If there are any, the result lacks these pairs, and the job fails."""
    asked: int
    """Number of requests of this run; the others were answered before."""


def prompt_faults(path: str | None, placeholders: Sequence[str]) -> Iterator[str]:
    """Faults of the setting ``prompt``: there is no such file, or it lacks a placeholder."""
    yield from missing(path, "prompt")
    if path is not None and Path(path).is_file():
        text = Path(path).read_text(encoding="utf-8")
        yield from (f"prompt: {path!r} has no {name}" for name in placeholders if name not in text)


def questions(job: JudgeJob, rows: Sequence[ScoredCaption], evaluation: Evaluation) -> list[JudgeQuestion]:
    """All questions, those about the model's captions first; a nearest caption may be missing.

    Raises:
        ValueError: pairs without references.
    """
    if bare := [row.pair_id for row in rows if not row.references]:
        raise ValueError(f"{len(bare)} pairs have no reference to judge against: {', '.join(bare[:5])}; leave them out")
    captions: dict[str, list[str | None]] = {MODEL: [row.caption for row in rows]}
    if job.baselines and CONSTANT in evaluation.baselines:
        captions[CONSTANT] = [evaluation.baselines[CONSTANT].caption] * len(rows)
    if job.baselines and NEAREST in evaluation.baselines:
        captions[NEAREST] = [row.nearest for row in rows]
    asked, template = [], _template(job)
    for system, texts in captions.items():
        for row, caption in zip(rows, texts, strict=True):
            reference = next((reference for reference in row.references if reference.split()), None)
            if reference is not None and caption is not None:
                prompt = filled_prompt(template, dict(zip(PLACEHOLDERS, (reference, caption), strict=True)))
                asked.append(JudgeQuestion(system, row.pair_id, prompt, request_key(job, job.judge, prompt)))
    return asked


def request_key(job: JudgeSettings, judge: str, prompt: str) -> str:
    """Hash of everything that an answer depends on."""
    where = without_credentials(job.url).rstrip("/")  # one name may denote other models at other endpoints
    inputs = json.dumps([where, judge, job.temperature, job.max_tokens, prompt])
    return hashlib.sha256(inputs.encode()).hexdigest()


def filled_prompt(template: str, texts: Mapping[str, str]) -> str:
    """Replaces all placeholders at once: a caption may contain text that looks like one."""
    return re.sub("|".join(map(re.escape, texts)), lambda match: texts[match.group()], template)


_NUMBER = r"(?<![\d.-])(\d+(?:\.\d+)?)(?!\.?\d)"
_SAID = re.compile(rf"\bscore\b\W*(?:is|of|=)?\W*{_NUMBER}\s*(%|(?:/|out of|of)\s*\d+)?", re.IGNORECASE)
_ALONE = re.compile(rf"[\s*_`#]*{_NUMBER}\s*(%|(?:/|out of|of)\s*\d+)?[\s*_`]*$", re.IGNORECASE)


def read_score(reply: str) -> float | None:
    """The number after "score", else the first line if it is a number and nothing else ("1. Read both" is a list).
    ``None`` if there is none from 0 to 100, or if it is on another scale: "3/5", "0.8"."""
    match = _SAID.search(reply) or _ALONE.match(reply.strip().split("\n", 1)[0])
    if match is None:
        return None
    value, scale = float(match[1]), re.findall(r"\d+", match[2] or "100")
    return value if value <= 100 and not 0 < value < 1 and scale in ([], ["100"]) else None


def run_judge(job: JudgeJob) -> JudgeResult:
    """Send the questions that have no answer yet, and write ``judge.json``. Answers without a score are not kept, but
    requested again in the next run. The first failure ends the run.

    Raises:
        ValueError: the evaluation has no references.
        EndpointError: the endpoint fails; ``answers.jsonl`` holds the answers so far, and the same command continues.
    """
    evaluation, rows = load_evaluation(job.evaluation), load_predictions(job.evaluation)[: job.max_pairs]
    asked = questions(job, rows, evaluation)
    log = AnswerLog(Path(job.out) / ANSWERS)
    unanswered = {question.key: question.prompt for question in asked if question.key not in log.known}
    if empty := sum(not any(text.split() for text in row.references) for row in rows):
        print(f"note: not judged: {empty} of {len(rows)} pairs, whose references are all empty", flush=True)
    print(f"{len(asked)} judgements, {len(unanswered)} requests to {job.judge}", flush=True)
    unusable: dict[str, str] = {}

    def parse(key: str, reply: Reply) -> dict[str, Any] | None:
        if (score := read_score(reply.text)) is None:
            unusable[key] = reply.text
            return None
        return {"score": score, "reply": reply.text, "model": reply.model}

    ask_judge(job, job.judge, unanswered, log, parse)
    scores: dict[str, dict[str, float]] = {}
    for question in asked:
        if question.key not in unusable:
            score = float(log.known[question.key]["score"])
            scores.setdefault(question.system, {})[question.pair_id] = score
    judged = {}
    for system, of_pairs in scores.items():
        values = list(of_pairs.values())
        std = statistics.stdev(values) if len(values) > 1 else 0.0
        judged[system] = Judged(pairs=len(values), mean=statistics.fmean(values), std=std)
    result = JudgeResult(
        judge=job.judge,
        answered_by=sorted({str(log.known[question.key]["model"]) for question in asked if question.key in log.known}),
        prompt=Path(job.prompt).name if job.prompt is not None else PROMPT_NAME,
        prompt_sha256=hashlib.sha256(_template(job).encode()).hexdigest(),
        endpoint=without_credentials(job.url),
        temperature=job.temperature,
        evaluation=job.evaluation,
        evaluation_fingerprint=evaluation.fingerprint,
        split=evaluation.split,
        scores=judged,
        per_pair=scores.get(MODEL, {}),
        baselines_per_pair={system: of_pairs for system, of_pairs in scores.items() if system != MODEL},
        unreadable={f"{q.pair_id} ({q.system})": unusable[q.key] for q in asked if q.key in unusable},
        asked=len(unanswered),
    )
    write_text(Path(job.out) / RESULT, result.model_dump_json(indent=1) + "\n")
    return result


def ask_judge(
    job: JudgeSettings,
    judge: str,
    requests: Mapping[str, str],
    log: AnswerLog,
    parse: Callable[[str, Reply], Mapping[str, Any] | None],
) -> None:
    """Send requests, key -> prompt; arguments and EndpointError as of :func:`ask_many`."""
    endpoint = ChatEndpoint(job, judge, temperature=job.temperature, max_tokens=job.max_tokens)
    outcomes = ask_many(endpoint, requests.items(), log, parse, job.concurrency)
    with Progress(len(requests), "judge", "answer") as progress, closing(outcomes):
        for number, (_, error) in enumerate(outcomes, start=1):
            if error is not None:
                raise error
            progress.update(number)


def _template(job: JudgeJob) -> str:
    return Path(job.prompt).read_text(encoding="utf-8") if job.prompt is not None else PROMPT


def judgement_table(result: JudgeResult) -> str:
    """The scores as plain text."""
    by = ", ".join(result.answered_by) or result.judge
    lines = [f"judged by {by}, prompt {result.prompt} ({result.prompt_sha256[:12]}), 0 to 100"]
    for system, judged in result.scores.items():
        label = system if system == MODEL else f"baseline: {system}"
        lines.append(f"  {label:18}{judged.mean:7.2f}  (standard deviation over {judged.pairs} pairs {judged.std:.2f})")
    return "\n".join(lines)
