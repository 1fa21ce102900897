"""Asking a model until every pair has a description or no question is left, with all answers kept on disk.

The pairs are asked for in rounds: those whose answers were refused again in the next one. Each answer is appended to a
log the moment it arrives, under a key of everything that it depends on: the model, its sampling, the instruction, the
content of the folder of pairs, the pair and the number of the question. A job that is killed loses what was in flight;
what is in the log is never asked again, neither by the same command nor by another one with the same log.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any, NamedTuple

from PIL import ExifTags

from idc.data.images import ImageError, decode_image, encode_png, open_image, resize_image
from idc.data.pipeline import FolderSource
from idc.data.store import fingerprint
from idc.endpoint.answer_log import AnswerLog
from idc.endpoint.chat_endpoint import (
    EndpointError,
    NotAnswered,
    Reply,
    RequestRefused,
    image_part,
    without_credentials,
)
from idc.mining.descriptions.config import DescribeJob
from idc.mining.descriptions.instructions import NO_CAPTIONS, ImageCaptions, instruct
from idc.mining.descriptions.template import parse_description
from idc.util.progress import Progress

VERSION = 1
"""Part of the answers' keys; to be raised when the same settings would ask something else."""

_TRIAL = 20
"""Answers after which a model is not asked further if more than half of its answers are refused."""

_SENT_FORMATS = {"PNG": "image/png", "JPEG": "image/jpeg", "WEBP": "image/webp"}


class Question(NamedTuple):
    """A question about a pair; the images are data URLs."""

    key: str
    pair_id: str
    text: str
    before: str
    after: str

    def content(self) -> list[dict[str, Any]]:
        """The message in the format of OpenAI: both images, then the text."""
        return [image_part(self.before), image_part(self.after), {"type": "text", "text": self.text}]


@dataclass(frozen=True)
class Questions:
    """The open questions of one round; picklable, so that workers read their own chunks.

    Attributes:
        number: of the round, from 1 on.
        wanted: chunk of ``source`` -> the pairs to ask for.
    """

    job: DescribeJob
    source: FolderSource
    captions: Mapping[str, ImageCaptions]
    number: int
    wanted: Mapping[int, frozenset[str]]

    def read(self, chunk: int) -> tuple[list[Question], dict[str, str]]:
        """The questions of a chunk; and the pairs that cannot be asked for, with the reasons."""
        batch = self.source.read(chunk)
        questions: list[Question] = []
        bad: dict[str, str] = {}
        for i, pair_id in enumerate(batch["pair_id"]):
            if pair_id not in self.wanted[chunk]:
                continue
            row = {name: batch[name][i] for name in ("source", "captions", "meta")}
            image_captions = self.captions.get(pair_id, NO_CAPTIONS)
            role = "before"
            try:
                before = data_url(batch["before"][i], self.job.max_side)
                role = "after"
                after = data_url(batch["after"][i], self.job.max_side)
            except ImageError as error:
                bad[pair_id] = f"{error.code}: {role}, {error.detail}"
                continue
            key = key_of(self.job, self.source, pair_id, self.number, image_captions)
            questions.append(Question(key, pair_id, instruct(self.job, row, image_captions), before, after))
        return questions, bad


Outcomes = Generator[tuple[str, EndpointError | None], None, None]
Ask = Callable[[Questions, Callable[[Question, Reply], None]], Outcomes]
"""Puts the questions of a round to a model. It hands every answer to the second argument the moment it arrives, and
yields each pair with None if it was answered, or with the reason why not. Closed early, it puts no further question."""


def asked_with(job: DescribeJob) -> list[Any]:
    """All that every answer depends on. An address is part of it: one name may denote other models elsewhere."""
    where = without_credentials(job.endpoint.url).rstrip("/")
    return [where, job.endpoint.model, job.prompt, job.instruction, job.temperature, job.max_tokens, job.max_side]


def key_of(job: DescribeJob, source: FolderSource, pair_id: str, number: int, image_captions: ImageCaptions) -> str:
    """The key of an answer in the log. The folder's fingerprint stands for the content of the pair."""
    return fingerprint(VERSION, asked_with(job), source.manifest.fingerprint, pair_id, number, image_captions)


def data_url(image: bytes, max_side: int | None) -> str:
    """An encoded image as a data URL, downscaled to ``max_side`` pixels; formats that models do not take become PNG.

    Raises:
        ImageError: the image cannot be read.
    """
    with open_image(image) as opened:
        name, large = opened.format or "", max_side is not None and max(opened.size) > max_side
        turned = opened.getexif().get(ExifTags.Base.Orientation, 1) != 1  # not every model's server turns it
    if large or turned or name not in _SENT_FORMATS:
        pixels = decode_image(image)
        if large:
            assert max_side is not None
            scale = max_side / max(pixels.shape[:2])
            height, width = (max(1, round(side * scale)) for side in pixels.shape[:2])
            pixels = resize_image(pixels, (height, width))
        image, name = encode_png(pixels), "PNG"
    return f"data:{_SENT_FORMATS[name]};base64,{base64.b64encode(image).decode()}"


def accepted(job: DescribeJob, record: Mapping[str, Any]) -> str:
    """The description in a logged answer.

    Raises:
        ValueError: with the reason of the refusal, which begins with its code.
    """
    text = " ".join(str(record["answer"]).split())
    if not text:
        raise ValueError("empty: the answer has no text")
    if record["cut_off"]:
        raise ValueError(f"cut off: the answer is longer than max_tokens={job.max_tokens}: {text[:80]!r}")
    return parse_description(text).sentence() if job.prompt == "structured" else text


def settle(
    job: DescribeJob, source: FolderSource, captions: Mapping[str, ImageCaptions], log: AnswerLog, ask: Ask
) -> dict[str, str]:
    """Ask until no question is open. Returns the pairs that cannot be described for another reason than their refused
    answers, with the reason."""
    ids = FolderSource(
        job.pairs, chunk_size=job.chunk_size, columns=["pair_id", "split"], splits=job.splits, limit=job.max_pairs
    )
    left = {chunk: list(ids.read(chunk)["pair_id"]) for chunk in range(ids.num_chunks)}
    total = sum(map(len, left.values()))
    progress = _Progress(job, total)

    def key(pair_id: str, number: int) -> str:
        return key_of(job, source, pair_id, number, captions.get(pair_id, NO_CAPTIONS))

    def refused(pair_id: str, number: int) -> bool:
        record = log.known.get(key(pair_id, number))
        return record is not None and progress.refuses(record)

    for number in range(1, job.asks + 1):
        wanted = {
            chunk: frozenset(pair for pair in pairs if key(pair, number) not in log.known)
            for chunk, pairs in left.items()
        }
        questions = Questions(job, source, captions, number, {chunk: pairs for chunk, pairs in wanted.items() if pairs})

        def record(question: Question, reply: Reply, number: int = number) -> None:
            answer = {"answer" if name == "text" else name: value for name, value in reply._asdict().items()}
            log.add({"key": question.key, "pair_id": question.pair_id, "number": number, **answer})

        if questions.wanted:
            with progress.round(number, sum(map(len, wanted.values()))), closing(ask(questions, record)) as outcomes:
                for pair_id, error in outcomes:
                    progress.count(pair_id, error, None if error is not None else log.known[key(pair_id, number)])
        left = {chunk: [pair for pair in pairs if refused(pair, number)] for chunk, pairs in left.items()}
    return progress.end()


class _Progress:
    """Counts the outcomes, shows them, and ends a run that leads nowhere."""

    def __init__(self, job: DescribeJob, total: int) -> None:
        self.job, self.total = job, total
        self.rejected: dict[str, str] = {}
        self.unanswered: dict[str, str] = {}
        self.in_a_row = self.answers = self.refusals = self.tokens = self.number = 0
        self.shown: Progress

    def round(self, number: int, questions: int) -> Progress:
        """The progress of a round, to be closed after it."""
        self.number = number
        again = f", question {number}" if number > 1 else ""
        self.shown = Progress(questions, f"asking {self.job.endpoint.model}{again}", "pair")
        return self.shown

    def refuses(self, record: Mapping[str, Any]) -> bool:
        try:
            accepted(self.job, record)
        except ValueError:
            return True
        return False

    def count(self, pair_id: str, error: EndpointError | None, record: Mapping[str, Any] | None) -> None:
        """Take note of an outcome.

        Raises:
            EndpointError: it makes no sense to go on.
        """
        if record is not None:
            self._answered(record)
        elif isinstance(error, RequestRefused):
            self.rejected[pair_id] = str(error)
            if len(self.rejected) > self.job.max_reject_share * self.total:
                raise EndpointError(
                    f"{len(self.rejected)} of {self.total} pairs cannot be asked for, more than max_reject_share="
                    f"{self.job.max_reject_share:g} allows; the last one, {pair_id}: {error}"
                )
        elif isinstance(error, NotAnswered):
            self.unanswered[pair_id] = str(error)
            self.in_a_row += 1
            if self.in_a_row >= max(3, self.job.endpoint.concurrency):
                raise NotAnswered(f"{self.in_a_row} requests in a row without an answer, the last one: {error}")
        elif error is not None:
            raise error
        figures = {"refused": self.refusals, "unanswered": len(self.unanswered), "tokens": self.tokens}
        self.shown.update(self.shown.done + 1, **figures)

    def _answered(self, record: Mapping[str, Any]) -> None:
        self.in_a_row = 0
        self.answers += 1
        self.tokens += (record["prompt_tokens"] or 0) + (record["completion_tokens"] or 0)
        try:
            accepted(self.job, record)
        except ValueError as reason:
            self.refusals += 1
            if self.number == 1 and self.answers >= _TRIAL and 2 * self.refusals > self.answers:
                raise EndpointError(
                    f"{self.refusals} of {self.answers} answers were refused, the last one because of {reason}. The "
                    "model does not follow the instruction; try another one, or prompt=conventional"
                ) from None

    def end(self) -> dict[str, str]:
        """The pairs that cannot be described, with reasons.

        Raises:
            NotAnswered: pairs are without an answer, and the job does not give up.
        """
        if self.unanswered and not self.job.give_up:
            pair_id, reason = next(iter(self.unanswered.items()))
            raise NotAnswered(
                f"{len(self.unanswered)} of {self.total} pairs have no answer, the first one, {pair_id}: {reason}"
            )
        return {**self.rejected, **{pair: f"no answer: {reason}" for pair, reason in self.unanswered.items()}}


def answers_to(
    job: DescribeJob, source: FolderSource, captions: Mapping[str, ImageCaptions], log: AnswerLog, pair_id: str
) -> Iterator[dict[str, Any]]:
    """The logged answers for a pair, in the order of its questions."""
    for number in range(1, job.asks + 1):
        record = log.known.get(key_of(job, source, pair_id, number, captions.get(pair_id, NO_CAPTIONS)))
        if record is None:
            return
        yield record
