"""The OpenAPI document: requests, responses and errors of all routes, with examples that can be sent unchanged.

The routes read their bodies themselves, to refuse large ones before they are parsed. The framework therefore has
no information on bodies and errors; it is added here, from the models that the routes use.
"""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic.json_schema import models_json_schema

from idc.captioning.contract import Candidate, Description, Seen
from idc.data.images import encode_png
from serve.answers import pair_answer
from serve.backend import PairResult
from serve.chat_answers import END_OF_STREAM, completion_of
from serve.chat_schema import ChatRequest, Chunk, ChunkChoice, Delta, LastChunk
from serve.config import ServeConfig
from serve.errors import ApiError
from serve.gate import ALIVE
from serve.schema import CaptionOptions, CaptionRequest, ErrorAnswer, StreamEnd, Timing
from serve.streaming import server_sent_event

_REFS = "#/components/schemas/{model}"
_ERRORS = {
    400: "The body is not valid JSON or not a valid form, or an image cannot be used.",
    401: "Missing or unknown access token.",
    403: "Only requests from localhost are accepted, or the request comes from a web page of another origin.",
    404: "Unknown model.",
    405: "The path does not accept this method.",
    408: "The body did not arrive in time.",
    413: "The body, an image or the number of images is too large.",
    415: "The content type is neither JSON nor, where forms are accepted, a multipart form.",
    422: "A field is missing, unknown, of the wrong type, or outside its limits.",
    429: "Too many of your pairs are waiting; try again after `Retry-After` seconds.",
    500: "Internal error.",
    502: "The server that runs the language model fails; see the server log.",
    503: "Busy, shutting down, or the model is unavailable; try again after `Retry-After` seconds.",
    504: "No caption was available in time.",
}
_CAPTIONING = (400, 404, 408, 413, 415, 422, 429, 502, 503, 504)
"""Error statuses of requests for captions, in addition to those of all requests."""
_CAPTION = "the small red cube has moved to the right"


def document(api: FastAPI, config: ServeConfig) -> dict[str, Any]:
    """The document of an application made by ``serve.api.create_api``."""
    schema = get_openapi(
        title=api.title,
        version=api.version,
        description=_description(config),
        tags=api.openapi_tags,
        routes=api.routes,
    )
    components = schema.setdefault("components", {})
    _, schemas = models_json_schema(
        [
            (CaptionRequest, "validation"),
            (CaptionOptions, "validation"),
            (ChatRequest, "validation"),
            (StreamEnd, "serialization"),
            (Chunk, "serialization"),
            (LastChunk, "serialization"),
            (ErrorAnswer, "serialization"),
        ],
        ref_template=_REFS,
    )
    components["schemas"].update(schemas["$defs"])
    for unused in ("HTTPValidationError", "ValidationError"):  # the framework's own, which are never sent
        components["schemas"].pop(unused, None)
    if config.auth.mode == "token":
        components["securitySchemes"] = {
            "token": {"type": "http", "scheme": "bearer", "description": "An access token."}
        }
    components["headers"] = {
        "X-Request-ID": {"description": "Id of the request, also in the log.", "schema": {"type": "string"}},
        "Retry-After": {"description": "Seconds until the client may try again.", "schema": {"type": "integer"}},
    }
    components["schemas"]["ErrorAnswer"]["examples"] = [_ERROR]
    before, after = _pictures()
    paths = schema["paths"]
    paths["/v1/captions"]["post"]["requestBody"] = _captions_body(components["schemas"], before, after)
    paths["/v1/chat/completions"]["post"]["requestBody"] = _chat_body(before, after)
    for path, operations in paths.items():
        for operation in operations.values():
            _answers(operation, path, config)
    return schema


def _answers(operation: dict[str, Any], path: str, config: ServeConfig) -> None:
    """Add the error responses of an operation, and the headers of all its responses."""
    answers = operation["responses"]
    answers.pop("422", None)  # the framework's assumption
    if path in ("/v1/captions", "/v1/chat/completions"):
        answer, events = _answer_examples(path, config.default_model)
        answers["200"]["content"]["text/event-stream"] = {
            "itemSchema": {"anyOf": _STREAMS[path]},
            "example": events,
        }
        answers["200"]["content"]["application/json"]["example"] = answer
        refusals: tuple[int, ...] = _CAPTIONING
    else:
        refusals = (404,) if path == "/v1/models/{name}" else ()
    if path != ALIVE:  # all others are refused during shutdown
        refusals = (*refusals, 503)
    closed = path.startswith("/v1/") or path == "/metrics"
    if config.auth.mode == "token" and closed:
        operation["security"] = [{"token": []}]
        refusals = (*refusals, 401)
    if config.auth.mode == "loopback" or closed:
        refusals = (*refusals, 403)
    for status in sorted({*refusals, 405, 413, 500}):
        content = {"application/json": {"schema": {"$ref": _REFS.format(model="ErrorAnswer")}}}
        answers[str(status)] = {"description": _ERRORS[status], "content": content}
    for status, answer in answers.items():
        answer["headers"] = {"X-Request-ID": {"$ref": "#/components/headers/X-Request-ID"}}
        if status in ("429", "503"):
            answer["headers"]["Retry-After"] = {"$ref": "#/components/headers/Retry-After"}


def _description(config: ServeConfig) -> str:
    limits = config.limits
    auth = {
        "token": "Send a token with every request: `Authorization: Bearer TOKEN`.",
        "loopback": "Only requests from localhost are accepted; no token is needed.",
    }[config.auth.mode]
    return (
        "Describes in words what changed between an image before and an image after.\n\n"
        f"{auth} Limits: {limits.body_mib:g} MiB and {limits.pairs} pairs per request; {limits.image_mib:g} MiB, "
        f"{limits.image_pixels:,} pixels and {limits.image_side:,} pixels per side of an image. Every error has the "
        "same shape (`ErrorAnswer`), and every response an `X-Request-ID`. Send your own id (letters, digits, `._-`, "
        "at most 64) to find the request in the log."
    )


def _pictures() -> tuple[str, str]:
    """Two small PNGs as data URLs: a red square, and the same square moved to the right."""
    urls = []
    for left in (4, 18):
        pixels = np.full((32, 32, 3), 200, np.uint8)
        pixels[12:22, left : left + 10] = (200, 30, 30)
        urls.append("data:image/png;base64," + base64.b64encode(encode_png(pixels)).decode("ascii"))
    return urls[0], urls[1]


def _captions_body(schemas: dict[str, Any], before: str, after: str) -> dict[str, Any]:
    pair = {"before": before, "after": after}
    files = {"type": "array", "minItems": 1, "items": {"type": "string", "format": "binary"}}
    form = {
        "type": "object",
        "required": ["before", "after"],
        "additionalProperties": False,
        "properties": {
            "before": {**files, "description": "The image file before; one per pair."},
            "after": {**files, "description": "The image file after; one per pair, in the same order."},
            **schemas["CaptionOptions"]["properties"],
        },
    }
    examples = {
        "one pair": pair,
        "candidates and change map": {**pair, "candidates": 3, "change_map": True},
        "several pairs": {"pairs": [{**pair, "id": "first"}, {"before": after, "after": before, "id": "back"}]},
        "as server-sent events": {"pairs": [pair, pair], "stream": True},
    }
    return {
        "required": True,
        "content": {
            "application/json": {
                "schema": {"$ref": _REFS.format(model="CaptionRequest")},
                "examples": {name: {"value": value} for name, value in examples.items()},
            },
            "multipart/form-data": {"schema": form},
        },
    }


def _chat_body(before: str, after: str) -> dict[str, Any]:
    images = [{"type": "image_url", "image_url": {"url": url}} for url in (before, after)]
    messages = [{"role": "user", "content": [{"type": "text", "text": "What changed?"}, *images]}]
    dialogue = [
        {"role": "user", "content": images},
        {"role": "assistant", "content": _CAPTION},
        {"role": "user", "content": "Describe the change in other words."},
    ]
    examples = {
        "two images": {"messages": messages},
        "three candidates": {"messages": messages, "n": 3},
        "a dialogue": {"messages": dialogue, "max_tokens": 50},
        "as a stream": {"messages": messages, "stream": True, "stream_options": {"include_usage": True}},
    }
    return {
        "required": True,
        "content": {
            "application/json": {
                "schema": {"$ref": _REFS.format(model="ChatRequest")},
                "examples": {name: {"value": value} for name, value in examples.items()},
            }
        },
    }


_ID = "3f1c9d2ab0f44a0d8f6d0d3b2c7a5e11"
_RESULT = PairResult(
    Description(
        (Candidate(_CAPTION, -0.2),), changed=0.97, familiarity=0.42, trained_on=None, seen=Seen((224, 224), (224, 224))
    )
)


def _answer_examples(path: str, model: str) -> tuple[dict[str, Any], str]:
    """An answer of the route by the model of this name, as JSON and as a stream."""
    version = "models:/captioner/7"
    if path == "/v1/captions":
        timing = Timing(total_ms=61.2, model_ms=48.0, largest_batch=1)
        end = StreamEnd(request_id=_ID, model=model, version=version, timing=timing).model_dump()
        result = pair_answer(0, None, _RESULT)
        events = server_sent_event(result, "result") + server_sent_event(end, "done")
        return {**end, "results": [result]}, events.decode()
    common = {"id": f"chatcmpl-{_ID}", "created": 1_750_000_000, "model": model, "system_fingerprint": version}
    chunk = Chunk(**common, choices=[ChunkChoice(index=0, delta=Delta(content=_CAPTION))])
    return completion_of(_RESULT, common).model_dump(), (server_sent_event(chunk) + END_OF_STREAM).decode()


def _json_text(*models: str) -> dict[str, Any]:
    """A string with the JSON of one of the models."""
    refs = [{"$ref": _REFS.format(model=model)} for model in models]
    return {"type": "string", "contentMediaType": "application/json", "contentSchema": {"anyOf": refs}}


def _event(name: str, data: dict[str, Any]) -> dict[str, Any]:
    """A server-sent event; one without a name counts as ``message``."""
    properties = {"event": {"const": name}, "data": data}
    return {"type": "object", "required": ["data"], "properties": properties}


_STREAMS: dict[str, Any] = {
    "/v1/captions": [
        _event("result", _json_text("PairAnswer")),
        _event("done", _json_text("StreamEnd")),
        _event("error", _json_text("ErrorAnswer")),
    ],
    "/v1/chat/completions": [
        _event("message", _json_text("Chunk", "LastChunk", "ErrorAnswer")),
        _event("message", {"const": "[DONE]"}),
    ],
}
_ERROR = ApiError(400, "empty_image", "before: the image is empty", "before").body(_ID)
