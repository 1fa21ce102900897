"""The HTTP interface: routes over a :class:`~serve.schema.Backend`. No Ray here; ``serve/app.py`` runs it on Ray Serve.

What a request passes: ``serve/gate.py`` (who asks, how much, its id and log line), a route here, ``serve/intake.py``
(body to image files), ``serve/service.py`` (queues, time-outs), and the backend, which holds the models.
"""

from __future__ import annotations

import base64
import hashlib
import mimetypes
from collections.abc import Awaitable, Callable
from contextlib import ExitStack, aclosing
from functools import cache
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from pydantic import ValidationError
from pydantic_core import to_json
from starlette.datastructures import FormData
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response

from serve import chat
from serve.auth import Doorkeeper
from serve.config import ServeConfig
from serve.docs import page
from serve.drain import Drain
from serve.gate import ALIVE, Gate, Visit, visit_of
from serve.intake import Source, content_type, faults
from serve.metrics import Metrics
from serve.openapi import document
from serve.origins import Origins
from serve.schema import (
    ApiError,
    AssessedAnswer,
    Backend,
    CaptionAnswer,
    Captioned,
    CaptionOptions,
    CaptionRequest,
    EncodedPair,
    Options,
    Served,
    State,
)
from serve.service import Service
from serve.streaming import Events, as_done, event, respond

WEB = Path(__file__).parent / "web"
"""The page: ``index.html`` is answered at ``/``, every file of the folder at ``/web/<its path>``."""
_UNASSESSED = AssessedAnswer().model_dump()
"""Fields of a pair without a caption."""


def create_api(config: ServeConfig, backend: Backend, drain: Drain | None = None) -> FastAPI:
    """The application of one front replica (or of a test), which ``drain`` can end."""
    metrics = Metrics()
    service = Service(config, backend, metrics)
    api = FastAPI(title="Image difference captioning", version="1", docs_url=None, redoc_url=None)
    pages = _pages()
    closed = {"/v1/captions", "/v1/chat/completions", "/v1/models", "/metrics"}
    opened = {ALIVE, "/readyz", "/openapi.json", "/docs", *pages}
    api.add_middleware(
        Gate,
        doorkeeper=Doorkeeper(config.auth),
        origins=Origins(config.auth.origins),
        drain=drain or Drain(),
        metrics=metrics,
        limits=config.limits,
        open_paths=opened,
        routes=closed | {ALIVE, "/readyz", "/openapi.json"},
    )

    @api.exception_handler(HTTPException)
    async def plain(request: Request, error: HTTPException) -> Response:
        """The framework's own errors (no such path, wrong method) in our shape."""
        visit = visit_of(request.scope)
        allowed = (error.headers or {}).get("Allow", "another method")
        visit.error, message = {
            404: ("no_such_path", "there is nothing here; GET /docs lists what there is"),
            405: ("method_not_allowed", f"this path takes {allowed}"),
        }.get(error.status_code, ("refused", str(error.detail)))
        body = ApiError(error.status_code, visit.error, message).body(visit.request_id)
        return JSONResponse(body, error.status_code, error.headers)

    @api.post(
        "/v1/captions",
        summary="Say what changed between two images",
        responses={200: {"model": CaptionAnswer}},
        tags=["captions"],
    )
    async def captions(request: Request) -> Response:
        """One pair or several, as JSON or as multipart form.

        With `stream` the answer is server-sent events: `result` (a `PairAnswer`) for each pair as soon as it is done,
        its `index` telling which, then `done` (a `StreamEnd`); or `error` (an `ErrorAnswer`), if it fails after more
        than a second. Before that, an error has its status, as without `stream`.

        Of several pairs, one that cannot be read has its `error` in its result, and the others their captions.
        """
        return await _captions(request, service)

    api.include_router(chat.router(service))

    @api.get(ALIVE, summary="Whether this process lives", responses={200: {"model": State}}, tags=["operation"])
    async def healthz() -> Response:
        """Status 200 as long as the process can answer at all."""
        return JSONResponse({"status": "ok"})

    @api.get("/readyz", summary="Whether requests can be served", responses={200: {"model": State}}, tags=["operation"])
    async def readyz() -> Response:
        """Status 503 with the reason until they can."""
        if reason := await backend.ready():
            raise ApiError(503, "not_ready", reason, retry_after_s=5)
        return JSONResponse({"status": "ready"})

    @api.get("/metrics", summary="Numbers for Prometheus", response_class=PlainTextResponse, tags=["operation"])
    async def numbers() -> Response:
        """Prometheus' text format."""
        text = metrics.text(backend.models(), await backend.replicas())
        return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")

    described = cache(lambda: document(api, config))
    api.openapi = described  # type: ignore[method-assign]
    told = cache(lambda: page(described()))

    @api.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        """The interface for people."""
        return HTMLResponse(told())

    for path, (data, kind) in pages.items():
        api.add_route(path, _file(data, kind), methods=["GET", "HEAD"], include_in_schema=False)
    return api


async def _captions(request: Request, service: Service) -> Response:
    visit, intake = visit_of(request.scope), service.intake
    if content_type(request) == "multipart/form-data":
        form = await intake.form(request)
        try:
            asked, sources = _of_form(form)
            return await _captioned(visit, service, asked, sources, [None] * len(sources), len(sources) == 1)
        finally:
            await form.close()
    body = await intake.json(request, CaptionRequest)
    if body.pairs is None:
        return await _captioned(visit, service, body, [(body.before or "", body.after or "")], [None], True)
    sources = [(pair.before, pair.after) for pair in body.pairs]
    return await _captioned(visit, service, body, sources, [pair.id for pair in body.pairs], False)


def _of_form(form: FormData) -> tuple[CaptionOptions, list[tuple[Source, Source]]]:
    """Options and files of a form: as many ``before`` as ``after``, in the same order."""
    files = {name: form.getlist(name) for name in ("before", "after")}
    try:
        asked = CaptionOptions.model_validate({name: value for name, value in form.items() if name not in files})
    except ValidationError as error:
        raise faults(error, CaptionOptions) from None
    for name, values in files.items():
        if not values or any(isinstance(value, str) for value in values):
            raise ApiError(422, "not_a_file", f"{name}: send it as a file, as curl -F {name}=@image.png does", name)
    if len(files["before"]) != len(files["after"]):
        found = f"{len(files['before'])} files before and {len(files['after'])} after"
        raise ApiError(422, "unequal_pairs", f"{found}; give as many of each", "after")
    return asked, list(zip(files["before"], files["after"], strict=True))


async def _captioned(
    visit: Visit,
    service: Service,
    asked: CaptionOptions,
    sources: list[tuple[Source, Source]],
    ids: list[str | None],
    single: bool,
) -> Response:
    visit.arrived_whole()
    model = service.model(asked.model)
    options = service.options(Options(asked.beams, asked.candidates, asked.change_map, asked.imagine))
    visit.pairs = len(sources)
    with ExitStack() as queue:
        queue.enter_context(service.queued(visit, len(sources)))
        images = await service.intake.pairs(sources, single)
        if asked.stream:
            return await respond(
                visit,
                _events(visit, service, model, options, images, ids, single),
                lambda error: event(error.body(visit.request_id), "error"),
                queue.pop_all(),
            )
        good = [image for image in images if isinstance(image, EncodedPair)]
        found = iter(await service.caption(visit, good, model, options) if good else ())
    results = [Captioned(error=image) if isinstance(image, str) else next(found) for image in images]
    answers = [pair_answer(place, name, result) for place, (name, result) in enumerate(zip(ids, results, strict=True))]
    summary = _summary(visit, model, results, single)
    return json_response({**summary, "results": answers})


async def _events(
    visit: Visit,
    service: Service,
    model: Served,
    options: Options,
    images: list[EncodedPair | str],
    ids: list[str | None],
    single: bool,
) -> Events:
    """An event ``result`` a pair as soon as it is done, then ``done`` with the rest of a :class:`CaptionAnswer`."""

    async def caption(image: EncodedPair | str) -> Captioned:
        if isinstance(image, str):
            return Captioned(error=image)
        return (await service.caption(visit, [image], model, options))[0]

    results: list[Captioned] = []
    async with aclosing(as_done([caption(image) for image in images])) as pieces:
        async for place, result in pieces:
            results.append(result)
            if len(results) == len(images):  # before the last result: of one pair alone the error is a status
                summary = _summary(visit, model, results, single)
            yield event(pair_answer(place, ids[place], result), "result")
    yield event(summary, "done")


def _summary(visit: Visit, model: Served, results: list[Captioned], single: bool) -> dict[str, Any]:
    """A :class:`~serve.schema.StreamEnd`.

    Raises:
        ApiError: 400 no pair could be captioned.
    """
    if all(result.error for result in results):
        message = results[0].error or ""
        param = message.partition(":")[0]
        raise ApiError(400, "no_pair_captioned", message, param if single or "." in param else f"pairs.0.{param}")
    return {
        "request_id": visit.request_id,
        "model": model.name,
        "version": model.version,
        "timing": {
            "total_ms": round(visit.ms(), 2),
            "model_ms": round(max(result.model_ms for result in results), 2),
            "largest_batch": max(result.batch for result in results),
        },
    }


def pair_answer(index: int, name: str | None, result: Captioned) -> dict[str, Any]:
    """The JSON of a :class:`~serve.schema.PairAnswer`, made by hand: validating what we made ourselves costs time."""
    candidates = [one.to_dict() for one in result.captions]
    best = candidates[0] if candidates else {"caption": None, "confidence": None, "log_probability": None}
    return {
        "index": index,
        "id": name,
        **best,
        **(_UNASSESSED if result.assessment is None else result.assessment.to_dict()),
        "candidates": candidates,
        "change_map": None if result.change_map is None else png_url(result.change_map),
        "frames": None if result.frames is None else [png_url(frame) for frame in result.frames],
        "error": result.error,
    }


def png_url(data: bytes) -> str:
    """A PNG as data URL."""
    return "data:image/png;base64," + base64.b64encode(data).decode("ascii")


def json_response(content: Any) -> Response:
    """``content`` as JSON."""
    return Response(to_json(content), media_type="application/json")


def _pages() -> dict[str, tuple[bytes, str]]:
    """Path -> content and media type of the page's files, read once; nothing else of the disk can be asked for."""
    pages = {}
    for file in sorted(path for path in WEB.rglob("*") if path.is_file()):
        kind = mimetypes.guess_type(file.name)[0] or "application/octet-stream"
        pages[f"/web/{file.relative_to(WEB).as_posix()}"] = (file.read_bytes(), kind)
    if "/web/index.html" in pages:
        pages["/"] = pages["/web/index.html"]
    return pages


def _file(data: bytes, kind: str) -> Callable[[Request], Awaitable[Response]]:
    tag = f'"{hashlib.sha256(data).hexdigest()[:16]}"'

    async def file(request: Request) -> Response:
        headers = {"ETag": tag, "Cache-Control": "no-cache"}
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers=headers)
        return Response(data, media_type=kind, headers=headers)

    return file
