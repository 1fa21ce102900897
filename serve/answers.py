"""Answer: the response of ``/v1/captions`` to an admitted job, as JSON or as server-sent events."""

from __future__ import annotations

import re
import time
from contextlib import aclosing
from typing import Any

from pydantic_core import to_json
from starlette.responses import Response

from serve.backend import PairResult, png_url
from serve.errors import ApiError
from serve.schema import PairAnswer
from serve.service import AdmittedJob, versions
from serve.streaming import Events, respond, server_sent_event

_UNDESCRIBED = PairAnswer(index=0).model_dump(exclude={"index", "error"})
"""The fields of a pair without a caption."""


async def caption_answer(admitted: AdmittedJob) -> Response:
    """Caption an admitted job and respond with a :class:`~serve.schema.CaptionAnswer` or its stream.

    Raises:
        ApiError: no pair could be captioned.
    """
    if admitted.job.stream:
        return await respond(admitted.context, _events(admitted), "error")
    results = await admitted.results()
    await admitted.context.cleanup.aclose()  # its places in the queue, before a slow client takes the response
    answers = [pair_answer(index, result) for index, result in enumerate(results)]
    return Response(to_json({**_summary(admitted, results), "results": answers}), media_type="application/json")


async def _events(admitted: AdmittedJob) -> Events:
    """An event ``result`` per pair as soon as it is done, then ``done`` with the rest of a ``CaptionAnswer``."""
    results: list[PairResult] = []
    async with aclosing(admitted.iter_completed()) as completed:
        async for index, result in completed:
            results.append(result)
            if len(results) == len(admitted.images):  # before the last event: the fault of one pair is a status
                summary = _summary(admitted, results)
            yield server_sent_event(pair_answer(index, result), "result")
    yield server_sent_event(summary, "done")


def _summary(admitted: AdmittedJob, results: list[PairResult]) -> dict[str, Any]:
    """A :class:`~serve.schema.StreamEnd`.

    Raises:
        ApiError: 400, no pair could be captioned.
    """
    context = admitted.context
    if all(result.error for result in results):
        message = results[0].error or ""
        side = re.match(r"(pairs\.\d+\.)?(before|after)(?=:)", message)  # else the fault is the whole pair's
        field = side and (side[0] if side[1] or admitted.job.single else f"pairs.0.{side[0]}")
        raise ApiError(400, "no_pair_captioned", message, field)
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
        "change_map": None if result.change_map is None else png_url(result.change_map),
        "classes": result.classes,
        "scene": result.scene,
        "error": result.error,
    }
