"""Error responses: one exception, and one JSON shape for every refusal."""

from __future__ import annotations

from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from idc.config import did_you_mean
from serve.config import LimitsConfig
from serve.context import context_of
from serve.schema import ErrorAnswer, ErrorBody

SAFE_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
}
"""Headers of every response: the page may load nothing from elsewhere, and no other page may frame it."""


class ApiError(Exception):
    """Ends a request with an :class:`~serve.schema.ErrorAnswer`."""

    def __init__(
        self, status: int, code: str, message: str, param: str | None = None, retry_after_s: int | None = None
    ):
        super().__init__(message)
        self.status, self.code, self.message, self.param = status, code, message, param
        self.retry_after_s = retry_after_s

    def body(self, request_id: str) -> dict[str, Any]:
        """The JSON of the response."""
        kinds = {
            401: "authentication_error",
            403: "authentication_error",
            404: "not_found_error",
            429: "rate_limit_error",
        }
        kind = kinds.get(self.status, "server_error" if self.status >= 500 else "invalid_request_error")
        error = ErrorBody(message=self.message, type=kind, param=self.param, code=self.code)
        return ErrorAnswer(error=error, request_id=request_id).model_dump()


def error_response(error: ApiError, request_id: str) -> JSONResponse:
    """The response to a refused request."""
    headers = {**SAFE_HEADERS, "X-Request-ID": request_id}
    if error.retry_after_s:
        headers["Retry-After"] = str(error.retry_after_s)
    if error.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return JSONResponse(error.body(request_id), error.status, headers)


async def framework_error(request: Request, error: Exception) -> Response:
    """The framework's own errors (unknown path, wrong method) in the shape of all others."""
    assert isinstance(error, HTTPException)
    context = context_of(request.scope)
    allowed = (error.headers or {}).get("Allow", "another method")
    context.error, message = {
        404: ("no_such_path", f"no such path{_instead(request)}; GET /docs lists all paths"),
        405: ("method_not_allowed", f"this path accepts only {allowed}"),
    }.get(error.status_code, ("refused", str(error.detail)))
    body = ApiError(error.status_code, context.error, message).body(context.request_id)
    return JSONResponse(body, error.status_code, error.headers)


def _instead(request: Request) -> str:
    """What to use in place of an unknown path."""
    path = request.url.path
    if path.rstrip("/").endswith(("/responses", "/completions")) and path != "/v1/chat/completions":
        return ": of OpenAI's interface, only POST /v1/chat/completions is served (client.chat.completions.create)"
    return did_you_mean(path[:80], [route.path for route in request.app.routes])


def internal_error() -> ApiError:
    """The response to a fault of the server itself."""
    message = "Internal error. Quote the request id; details are in the server log."
    return ApiError(500, "internal_error", message)


def body_too_large(limits: LimitsConfig) -> ApiError:
    """The refusal of a body above the limit."""
    message = f"the request body exceeds the limit of {limits.body_mib:g} MiB; send fewer pairs per request"
    return ApiError(413, "body_too_large", message)


def too_many_bodies() -> ApiError:
    """The refusal of a body for which no memory is left."""
    return ApiError(503, "busy", "too many large requests are in progress; try again", retry_after_s=1)


def too_many_pairs(limits: LimitsConfig) -> ApiError:
    """The refusal of a request with more pairs than allowed."""
    message = f"a request may contain at most {limits.pairs} pairs; split it into several requests"
    return ApiError(413, "too_many_pairs", message, "pairs")
