"""The HTTP application: its middleware and its routes over a :class:`~serve.backend.Backend`. No Ray here.

A request for captions passes ``serve/gate.py`` and a route here, which calls the stages in order: parse
(``serve/intake.py``), admit (``serve/service.py``), caption (the backend) and answer (``serve/answers.py`` or
``serve/chat_answers.py``).
"""

from __future__ import annotations

from functools import cache

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response

from serve import answers, chat_answers
from serve.auth import Authenticator
from serve.backend import Backend
from serve.chat_schema import ChatAnswer, Model, ModelList
from serve.config import ServeConfig
from serve.context import context_of
from serve.docs import page
from serve.drain import Drain
from serve.errors import ApiError, framework_error
from serve.gate import ALIVE, Gate
from serve.intake import Intake
from serve.openapi import document
from serve.origins import Origins
from serve.prometheus import ServingMetrics
from serve.schema import CaptionAnswer, State
from serve.service import Service
from serve.web_files import web_files

_CAPTIONS, _OPENAI, _OPERATION = "captions", "OpenAI's interface", "operation"
_TAGS: list[dict[str, object]] = [
    {"name": _CAPTIONS, "description": "Captions of image pairs."},
    {"name": _OPENAI, "description": "For clients of OpenAI's API."},
    {"name": _OPERATION, "description": "For probes and monitoring."},
]
"""Tags of the OpenAPI document."""


def create_api(
    config: ServeConfig, backend: Backend, drain: Drain | None = None, metrics: ServingMetrics | None = None
) -> FastAPI:
    """The application of one front replica (or of a test), which ``drain`` can end."""
    metrics = metrics or ServingMetrics()
    files = web_files()
    closed = {"/v1/captions", "/v1/chat/completions", "/v1/models", "/metrics"}
    opened = {ALIVE, "/readyz", "/openapi.json", "/docs", *files}
    api = FastAPI(title="Image difference captioning", version="1", openapi_tags=_TAGS, docs_url=None, redoc_url=None)
    api.add_exception_handler(HTTPException, framework_error)
    api.add_middleware(
        Gate,
        authenticator=Authenticator(config.auth),
        origins=Origins(config.auth.origins),
        drain=drain or Drain(),
        metrics=metrics,
        limits=config.limits,
        open_paths=opened,
        routes=closed | {ALIVE, "/readyz", "/openapi.json"},
    )
    _add_captioning(api, Intake(config.limits), Service(config, backend, metrics))
    _add_operation(api, backend, metrics)
    _add_documents(api, config)
    for path, route in files.items():
        api.add_route(path, route, methods=["GET", "HEAD"], include_in_schema=False)
    return api


def _add_captioning(api: FastAPI, intake: Intake, service: Service) -> None:
    @api.post(
        "/v1/captions",
        summary="Caption the change between two images",
        responses={200: {"model": CaptionAnswer}},
        tags=[_CAPTIONS],
    )
    async def captions(request: Request) -> Response:
        """One pair or several, as JSON or as multipart form.

        With `stream` the response is a stream of server-sent events: a `result` (a `PairAnswer` with the pair's
        `index`) for each pair as soon as it is captioned, then `done` (a `StreamEnd`). A request that fails within a
        second has an error status, as without `stream`; after that, the stream ends with `error` (an `ErrorAnswer`).

        If one of several pairs cannot be read or captioned, its result has an `error`, and the others have their
        captions.
        """
        async with intake.captions(request) as job:
            return await answers.caption_answer(await service.admit(context_of(request.scope), job))

    @api.post(
        "/v1/chat/completions",
        summary="Caption the last two images of a conversation",
        responses={200: {"model": ChatAnswer}},
        tags=[_OPENAI],
    )
    async def chat(request: Request) -> Response:
        """The interface of OpenAI's chat completions: messages in, the answer or the caption as the assistant's
        message out.

        The last two images of the conversation are the pair, the image before first. A model with `can_answer` (in
        `GET /v1/models`) reads the text of all turns and answers the last one, in `max_tokens` at most; images without
        a text get its caption. Other models write a caption, whatever the text says, and refuse a question about
        something other than the change with status 400. `n` is the number of captions. Texts are searched for, not
        sampled: a `temperature` other than 0 and 1 and penalties other than 0 are refused, as are `logprobs`, JSON
        formats and forced tools; `seed`, `top_p` and other parameters without an effect are ignored.
        """
        job = await intake.chat(request)
        return await chat_answers.chat_answer(await service.admit(context_of(request.scope), job))

    @api.get("/v1/models", summary="List the models", response_model=ModelList, tags=[_OPENAI])
    async def models() -> ModelList:
        """The model names that requests may use, the default first, and the current version of each."""
        return ModelList(data=[Model.of(model) for model in service.models()])

    @api.get("/v1/models/{name:path}", summary="Describe one model", response_model=Model, tags=[_OPENAI])
    async def model(name: str, request: Request) -> Model:
        """The current version of one model name."""
        context_of(request.scope).route = "/v1/models/{name}"
        return Model.of(service.model(name))


def _add_operation(api: FastAPI, backend: Backend, metrics: ServingMetrics) -> None:
    @api.get(ALIVE, summary="Liveness probe", responses={200: {"model": State}}, tags=[_OPERATION])
    async def healthz() -> Response:
        """Status 200 as long as the process responds at all."""
        return JSONResponse({"status": "ok"})

    @api.get("/readyz", summary="Readiness probe", responses={200: {"model": State}}, tags=[_OPERATION])
    async def readyz() -> Response:
        """Status 200 if requests can be served, else 503 with the reason."""
        if reason := await backend.ready():
            raise ApiError(503, "not_ready", reason, retry_after_s=5)
        return JSONResponse({"status": "ready"})

    @api.get("/metrics", summary="Metrics for Prometheus", response_class=PlainTextResponse, tags=[_OPERATION])
    async def numbers() -> Response:
        """All metrics in Prometheus' text format."""
        text = metrics.text(backend.models(), await backend.replicas())
        return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")


def _add_documents(api: FastAPI, config: ServeConfig) -> None:
    described = cache(lambda: document(api, config))
    api.openapi = described  # type: ignore[method-assign]
    html = cache(lambda: page(described()))

    @api.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        """The OpenAPI document as an HTML page."""
        return HTMLResponse(html())
