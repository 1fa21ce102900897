"""``/v1/captions``: a form becomes a job, and the results of its pairs become JSON or server-sent events."""

from __future__ import annotations

import base64
import time
from collections.abc import Mapping
from contextlib import aclosing
from typing import Any

from starlette.responses import Response

from idc.captioning.contract import SearchOptions
from serve.backend import Options, PairResult
from serve.errors import ApiError
from serve.intake import PairSource, ParsedRequest
from serve.schema import CaptionForm, PairAnswer
from serve.service import AdmittedJob, versions
from serve.streaming import Events, respond, respond_events, server_sent_event

_UNDESCRIBED = PairAnswer(index=0).model_dump(exclude={"index", "error"})


def of_form(form: CaptionForm) -> ParsedRequest:
    """The job of a form: as many images before as after, in the same order.

    Raises:
        ApiError: 422, the numbers differ, or there are fewer beams than candidates.
    """
    before, after, least = form.before, form.after, form.candidates
    if len(before) != len(after):
        counts = f"{len(before)} files before and {len(after)} after"
        raise ApiError(422, "unequal_pairs", f"{counts}; send the same number of each", "after")
    if form.beams is not None and form.beams < least:
        message = f"beams: {form.beams} is less than candidates={least}; set beams={least} or leave it out"
        raise ApiError(422, "too_few_beams", message, "beams")
    prefixes = [""] if len(before) == 1 else [f"pairs.{index}." for index in range(len(before))]
    pairs = tuple(
        PairSource(first, second, (f"{prefix}before", f"{prefix}after"))
        for prefix, first, second in zip(prefixes, before, after, strict=True)
    )
    search = SearchOptions(form.beams, least, form.change_map, form.counts, form.criteria)
    options = Options(search, form.objects, form.polygons)
    return ParsedRequest(form.model, options, pairs, form.stream, ignore=form.ignore, only=form.only)


async def caption_answer(admitted: AdmittedJob) -> Response:
    """Caption an admitted job and respond with a :class:`~serve.schema.CaptionAnswer` or its stream."""
    if admitted.job.stream:
        return await respond_events(admitted.context, _events(admitted), "error")
    results = await admitted.results()
    answers = [pair_answer(index, result) for index, result in enumerate(results)]
    return await respond(admitted.context, {**_summary(admitted, results), "results": answers})


async def _events(admitted: AdmittedJob) -> Events:
    """An event ``result`` per pair as soon as it is done, then ``done`` with the rest of a ``CaptionAnswer``."""
    results: dict[int, PairResult] = {}
    async with aclosing(admitted.iter_completed()) as completed:
        async for index, result in completed:
            results[index] = result
            if len(results) == len(admitted.images):  # before the last event: the fault of one pair is a status
                summary = _summary(admitted, [results[number] for number in sorted(results)])
            yield server_sent_event(pair_answer(index, result), "result")
    yield server_sent_event(summary, "done")


def _summary(admitted: AdmittedJob, results: list[PairResult]) -> dict[str, Any]:
    """A :class:`~serve.schema.StreamEnd`.

    Raises:
        ApiError: 400, no pair could be captioned.
    """
    if all(result.error for result in results):
        message = results[0].error or ""
        raise ApiError(400, "no_pair_captioned", message, admitted.job.pairs[0].field_of(message))
    context = admitted.context
    return {
        "request_id": context.request_id,
        "model": context.model,
        "version": versions(results),
        "timing": {
            "total_ms": round(1000 * (time.perf_counter() - context.parsed), 2),
            "model_ms": round(max(result.model_ms for result in results), 2),
            "largest_batch": max(result.batch for result in results),
        },
    }


def pair_answer(index: int, result: PairResult) -> dict[str, Any]:
    """The JSON of a :class:`~serve.schema.PairAnswer`, without the cost of validating our own values."""
    return {
        "index": index,
        **(_UNDESCRIBED if result.description is None else result.description.to_dict()),
        "change_map": result.change_map and png_url(result.change_map),
        "classes": result.classes and _with_urls(result.classes),
        "scene": result.scene and _with_urls(result.scene),
        "error": result.error,
    }


def _with_urls(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: png_url(value) if isinstance(value, bytes) else value for name, value in fields.items()}


def png_url(data: bytes) -> str:
    """A PNG as a data URL."""
    return "data:image/png;base64," + base64.b64encode(data).decode("ascii")
