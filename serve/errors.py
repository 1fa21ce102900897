"""Error responses: one exception, and one JSON shape for every refusal."""

from __future__ import annotations

from typing import Any

from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from idc.util.model_faults import did_you_mean, location_of
from serve.log import context_of
from serve.schema import CaptionForm

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
_KINDS = dict.fromkeys((401, 403), "authentication_error") | {404: "not_found_error", 429: "rate_limit_error"}
_FAULTS = 5
"""Most faults of a body in one message."""


class ApiError(HTTPException):
    """Ends a request with an :class:`~serve.schema.ErrorAnswer`.

    Raised while a body arrives it passes through FastAPI, which knows its base class.
    """

    def __init__(
        self, status: int, code: str, message: str, param: str | None = None, retry_after_s: int | None = None
    ):
        headers = {"Retry-After": str(retry_after_s)} if retry_after_s else {}
        super().__init__(status, message, headers | ({"WWW-Authenticate": "Bearer"} if status == 401 else {}))
        self.code, self.message, self.param = code, message, param

    def body(self, request_id: str) -> dict[str, Any]:
        """The JSON of the response."""
        kind = _KINDS.get(self.status_code, "server_error" if self.status_code >= 500 else "invalid_request_error")
        error = {"message": self.message, "type": kind, "param": self.param, "code": self.code}
        return {"error": error, "request_id": request_id}


def busy(message: str) -> ApiError:
    """The refusal of a request that may be sent again."""
    return ApiError(503, "busy", message, retry_after_s=1)


def internal_error() -> ApiError:
    """The response to a fault of the server itself."""
    message = "Internal error. Quote the request id; details are in the server log."
    return ApiError(500, "internal_error", message)


def error_response(error: ApiError, request_id: str) -> JSONResponse:
    """The response to a refused request."""
    headers = {**SAFE_HEADERS, "X-Request-ID": request_id, **(error.headers or {})}
    return JSONResponse(error.body(request_id), error.status_code, headers)


async def refusal(request: Request, error: Exception) -> Response:
    """The response to what a route or the framework refuses: a body that is not the documented one, an unknown path,
    another method."""
    context = context_of(request.scope)
    if isinstance(error, RequestValidationError):
        error = _invalid(error)
    elif not isinstance(error, ApiError):
        assert isinstance(error, HTTPException)
        headers, status = error.headers, error.status_code
        instead = did_you_mean(request.url.path[:80], [route.path for route in request.app.routes])
        chat = "of OpenAI's interface there is /v1/chat/completions (client.chat.completions.create)"
        codes = {
            404: ("no_such_path", f"no such path{instead}; GET /docs lists all, {chat}"),
            405: ("method_not_allowed", f"this path accepts only {(headers or {}).get('Allow')}"),
        }
        error = ApiError(status, *codes.get(status, ("invalid_body", str(error.detail))))
        error.headers = headers
    context.error = error.code
    return error_response(error, context.request_id)


def _invalid(error: RequestValidationError) -> ApiError:
    """The first faults of a body, in words; values are left out because they may be images."""
    items = error.errors()
    if items[0]["type"] == "json_invalid":
        return ApiError(400, "invalid_json", f"the body is not valid JSON: {items[0]['ctx']['error']}")
    lines = []
    for item in items[:_FAULTS]:
        location = location_of(item, {"body": error.body})[1:]  # behind "body"
        path, message = ".".join(str(part)[:80] for part in location), item["msg"]
        if "UploadFile" in message:
            path = str(item["loc"][1])
            message = f"must be uploaded as a file, as with curl -F {path}=@image.png"
        elif item["type"] == "extra_forbidden":
            message = f"no such field{did_you_mean(path, list(CaptionForm.model_fields))}"
        lines.append(f"{path}: {message}" if path else message)
    if len(items) > _FAULTS:
        lines.append(f"and {len(items) - _FAULTS} more faults")
    param = lines[0].partition(": ")[0] if items[0]["loc"][1:] else None
    return ApiError(422, "invalid_request", "; ".join(lines), param)
