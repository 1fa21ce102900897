"""The HTTP application: its middleware and its routes over a :class:`~serve.backend.Backend`. No Ray here.

A request for captions passes ``serve/gate.py`` and FastAPI, which validates its body; ``serve/captions.py`` or
``serve/chat.py`` parses and answers it, and ``serve/service.py`` admits it in between.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Form
from fastapi.exceptions import RequestValidationError
from fastapi.security import HTTPBearer
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, PlainTextResponse, Response
from starlette.staticfiles import StaticFiles

from serve.backend import Backend
from serve.captions import caption_answer, of_form
from serve.chat import chat_answer, of_chat
from serve.config import ServeConfig
from serve.errors import ApiError, refusal
from serve.gate import ALIVE, CAPTIONS, CHAT, DOCS, METRICS, MODELS, PAGE, READY, Drain, RequestMiddleware
from serve.log import context_of
from serve.prometheus import ServingMetrics
from serve.schema import CaptionAnswer, CaptionForm, ChatAnswer, ChatRequest, ErrorAnswer, Model, ModelList
from serve.service import Service

WEB = Path(__file__).parent / "web"
"""The files of the page."""
_OPENAI, _OPERATION = "OpenAI's interface", "operation"
_STREAMS: dict[int | str, dict[str, Any]] = {200: {"content": {"text/event-stream": {}}}}
_ERRORS: dict[int | str, dict[str, Any]] = {"4XX": {"model": ErrorAnswer}, "5XX": {"model": ErrorAnswer}}


def create_api(
    config: ServeConfig, backend: Backend, drain: Drain | None = None, metrics: ServingMetrics | None = None
) -> FastAPI:
    """The application of one front replica (or of a test), which ``drain`` can end."""
    metrics = metrics or ServingMetrics()
    api = FastAPI(title="Image difference captioning", version="1", docs_url=DOCS, redoc_url=None, responses=_ERRORS)
    for kind in (HTTPException, RequestValidationError):
        api.add_exception_handler(kind, refusal)
    api.add_middleware(
        RequestMiddleware, auth=config.auth, limits=config.limits, drain=drain or Drain(), metrics=metrics
    )
    if config.auth.origins:
        api.add_middleware(
            CORSMiddleware, allow_origins=config.auth.origins, allow_methods=["GET", "POST"],
            allow_headers=["Authorization", "Content-Type", "X-Request-ID"],
            expose_headers=["Retry-After", "X-Request-ID"],
        )  # fmt: skip
    service = Service(config, backend, metrics)
    # For the document alone: the gate has checked the token before the body is read.
    token = [Depends(HTTPBearer(auto_error=False))] if config.auth.tokens else []

    @api.post(CAPTIONS, response_model=CaptionAnswer, responses=_STREAMS, tags=["captions"], dependencies=token)
    async def captions(
        request: Request, form: Annotated[CaptionForm, Form(media_type="multipart/form-data")]
    ) -> Response:
        """Caption the change between two images, or of several pairs.

        With `stream` the response is a stream of server-sent events: a `result` (with the pair's `index`) for each pair
        as soon as it is captioned, then `done` (the rest of the answer). A request that fails within a second has an
        error status, as without `stream`; after that, the stream ends with `error`.

        If one of several pairs cannot be read or captioned, its result has an `error`, and the others have their
        captions.
        """
        return await caption_answer(await service.admit(context_of(request.scope), of_form(form)))

    @api.post(CHAT, response_model=ChatAnswer, responses=_STREAMS, tags=[_OPENAI], dependencies=token)
    async def chat(request: Request, body: ChatRequest) -> Response:
        """Caption the last two images of a conversation, as OpenAI's chat completions.

        The image before comes first. A model with `can_answer` (in `GET /v1/models`) reads the text of all turns and
        answers the last one, in `max_tokens` at most; images without a text get its caption. Other models write a
        caption, whatever the text says. `n` is the number of captions. Texts are searched for, not sampled: a
        `temperature` other than 0 and 1 and penalties other than 0 are refused, as are `logprobs`, JSON formats and
        forced tools; `seed`, `top_p` and other parameters without an effect are ignored.
        """
        return await chat_answer(await service.admit(context_of(request.scope), of_chat(body, config.limits)))

    @api.get(MODELS, tags=[_OPENAI], dependencies=token)
    async def models() -> ModelList:
        """The model names that requests may use, the default first, and the current version of each."""
        return ModelList(data=[Model.of(model) for model in await backend.models()])

    @api.get(MODELS + "/{name:path}", tags=[_OPENAI], dependencies=token)
    async def model(name: str, request: Request) -> Model:
        """The current version of one model name."""
        context_of(request.scope).route = MODELS + "/{name}"
        service.check_model(name)
        return next(Model.of(model) for model in await backend.models() if model.name == name)

    @api.get(ALIVE, tags=[_OPERATION])
    async def healthz() -> dict[str, str]:
        """Status 200 as long as the process responds at all."""
        return {"status": "ok"}

    @api.get(READY, tags=[_OPERATION])
    async def readyz() -> dict[str, str]:
        """Status 200 if requests can be served, else 503 with the reason."""
        if reason := await backend.ready():
            raise ApiError(503, "not_ready", reason, retry_after_s=5)
        return {"status": "ready"}

    @api.get(METRICS, response_class=PlainTextResponse, tags=[_OPERATION])
    async def numbers() -> Response:
        """All metrics in Prometheus' text format."""
        text = metrics.text(await backend.models())
        return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")

    @api.api_route("/", methods=["GET", "HEAD"], include_in_schema=False)
    async def page() -> FileResponse:
        return FileResponse(WEB / "index.html")

    api.mount(PAGE, StaticFiles(directory=WEB))
    return api
