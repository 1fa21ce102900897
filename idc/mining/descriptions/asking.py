"""Asking a model until every pair has a description or no question is left, with all answers kept on disk.

The pairs are asked for in rounds: those whose answers were refused again in the next one. Each answer is appended to a
log the moment it arrives, under a key of everything that it depends on: the model, its sampling, the instruction, the
content of the folder of pairs, the pair and the number of the question. A job that is killed loses what was in flight;
what is in the log is never asked again, neither by the same command nor by another one with the same log.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from typing import Any

from PIL import ExifTags

from idc.data.images import ImageError, decode_image, encode_png, open_image, resize_image
from idc.data.pipeline import FolderSource
from idc.data.store import fingerprint
from idc.endpoint.answer_log import AnswerLog
from idc.endpoint.ask_many import ask_many
from idc.endpoint.chat_endpoint import (
    ChatEndpoint,
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


def answer_key_inputs(job: DescribeJob) -> list[Any]:
    """All that every answer depends on. An address is part of it: one name may denote other models elsewhere."""
    where = without_credentials(job.endpoint.url).rstrip("/")
    return [where, job.endpoint.model, job.prompt, job.instruction, job.temperature, job.max_tokens, job.max_side]


def key_of(job: DescribeJob, source: FolderSource, pair_id: str, number: int, image_captions: ImageCaptions) -> str:
    """The key of an answer in the log. The folder's fingerprint stands for the content of the pair."""
    return fingerprint(VERSION, answer_key_inputs(job), source.manifest.fingerprint, pair_id, number, image_captions)


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


def refusal_of(job: DescribeJob, record: Mapping[str, Any]) -> str | None:
    """Why a logged answer is no description, beginning with a code; None if it is one."""
    try:
        accepted(job, record)
    except ValueError as reason:
        return str(reason)
    return None


def ask_for_descriptions(
    job: DescribeJob, source: FolderSource, captions: Mapping[str, ImageCaptions], log: AnswerLog
) -> dict[str, str]:
    """Ask until no question is open. Returns the pairs that cannot be described for another reason than their refused
    answers, with the reason."""
    ids = FolderSource(
        job.pairs, chunk_size=job.chunk_size, columns=["pair_id", "split"], splits=job.splits, limit=job.max_pairs
    )
    left = {chunk: list(ids.read(chunk)["pair_id"]) for chunk in range(ids.num_chunks)}
    progress = _Progress(job, sum(map(len, left.values())))
    endpoint = ChatEndpoint(job.endpoint, job.endpoint.model, temperature=job.temperature, max_tokens=job.max_tokens)
    for number in range(1, job.asks + 1):
        keys = {
            pair_id: key_of(job, source, pair_id, number, captions.get(pair_id, NO_CAPTIONS))
            for pairs in left.values()
            for pair_id in pairs
        }
        wanted = {pair_id: key for pair_id, key in keys.items() if key not in log.known}
        pair_of = {key: pair_id for pair_id, key in wanted.items()}

        def parse(key: str, reply: Reply, number: int = number, pair_of: Mapping[str, str] = pair_of) -> dict[str, Any]:
            answer = {"answer" if name == "text" else name: value for name, value in reply._asdict().items()}
            return {"pair_id": pair_of[key], "number": number, **answer}

        if wanted:
            chunks = [chunk for chunk, pairs in left.items() if not wanted.keys().isdisjoint(pairs)]
            questions = _questions(job, source, captions, wanted, chunks, progress)
            outcomes = ask_many(endpoint, questions, log, parse, job.endpoint.concurrency)
            with progress.round(number, len(wanted)), closing(outcomes):
                for key, error in outcomes:
                    if isinstance(error, RequestRefused):
                        error = RequestRefused(f"refused by the endpoint: {error}")
                    progress.count(pair_of[key], error, None if error is not None else log.known[key])
        refused = {pair_id for pair_id, key in keys.items() if key in log.known and refusal_of(job, log.known[key])}
        left = {chunk: [pair_id for pair_id in pairs if pair_id in refused] for chunk, pairs in left.items()}
    return progress.end()


def _questions(
    job: DescribeJob,
    source: FolderSource,
    captions: Mapping[str, ImageCaptions],
    wanted: Mapping[str, str],
    chunks: Iterable[int],
    progress: _Progress,
) -> Iterator[tuple[str, list[Any]]]:
    """Keys and messages of the pairs in ``wanted`` (pair -> key); one whose images cannot be read is counted as refused
    instead."""
    for chunk in chunks:
        batch = source.read(chunk)
        for i, pair_id in enumerate(batch["pair_id"]):
            if pair_id not in wanted:
                continue
            try:
                content = _content(job, {name: column[i] for name, column in batch.items()}, captions)
            except ImageError as error:
                progress.count(pair_id, RequestRefused(str(error)), None)
            else:
                yield wanted[pair_id], content


def _content(job: DescribeJob, row: Mapping[str, Any], captions: Mapping[str, ImageCaptions]) -> list[dict[str, Any]]:
    """A message in the format of OpenAI; an ImageError has the reason of a reject."""
    images = []
    for role in ("before", "after"):
        try:
            images.append(image_part(data_url(row[role], job.max_side)))
        except ImageError as error:
            raise ImageError(error.code, f"{role}, {error.detail}") from None
    text = instruct(job, row, captions.get(row["pair_id"], NO_CAPTIONS))
    return [*images, {"type": "text", "text": text}]


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
        if (reason := refusal_of(self.job, record)) is None:
            return
        self.refusals += 1
        if self.number == 1 and self.answers >= _TRIAL and 2 * self.refusals > self.answers:
            raise EndpointError(
                f"{self.refusals} of {self.answers} answers were refused, the last one because of {reason}. The "
                "model does not follow the instruction; try another one, or prompt=conventional"
            )

    def end(self) -> dict[str, str]:
        """The pairs that cannot be described, with reasons.

        Raises:
            NotAnswered: pairs are without an answer.
        """
        if self.unanswered:
            pair_id, reason = next(iter(self.unanswered.items()))
            raise NotAnswered(
                f"{len(self.unanswered)} of {self.total} pairs have no answer, the first one, {pair_id}: {reason}"
            )
        return self.rejected


def answers_to(
    job: DescribeJob, source: FolderSource, captions: Mapping[str, ImageCaptions], log: AnswerLog, pair_id: str
) -> Iterator[dict[str, Any]]:
    """The logged answers for a pair, in the order of its questions."""
    for number in range(1, job.asks + 1):
        record = log.known.get(key_of(job, source, pair_id, number, captions.get(pair_id, NO_CAPTIONS)))
        if record is None:
            return
        yield record
