"""A language model behind OpenAI's chat completions: a conversation in, its answers out. Retries are those of
``openai``."""

from __future__ import annotations

import math
import os
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

from pydantic import Field

from idc.config import ConfigModel
from idc.data.textfiles import parse_json
from idc.endpoint.stop_texts import settled
from idc.util.loopback import is_loopback
from idc.util.redaction import redacted, variable_fault

if TYPE_CHECKING:
    import asyncio

    import httpx2
    from openai import AsyncOpenAI

_MOST_MIB = 8
"""Of an answer: some 20 captions of 2,000 tokens with their log-probabilities."""


class RequestConfig(ConfigModel):
    """Requests to an endpoint with OpenAI's chat completions: OpenAI's own, vLLM, and many others."""

    url: str = ""
    """Base URL, without `/chat/completions`: `https://api.openai.com/v1`, `http://localhost:8000/v1`."""
    api_key_variable: str = "OPENAI_API_KEY"
    """Environment variable with the key, if the endpoint needs one. The key itself is never a setting and is written
    nowhere."""
    concurrency: int = Field(default=8, ge=1, le=256)
    """Most requests in flight."""
    attempts: int = Field(default=6, ge=1)
    """Most attempts per request: it is sent again after a refused connection, a time-out, and the statuses 429 and 5xx,
    after 0.5, 1, 2, ... seconds, at most 8, or as long as the server requests (Retry-After, at most two minutes)."""
    timeout_s: float = Field(default=120.0, gt=0)
    """Time-out of an attempt until the last byte of its answer, in seconds. An endpoint may charge for a request that
    timed out."""

    def errors(self) -> Iterator[str]:
        yield from variable_fault(self.api_key_variable)
        if self.url and urlsplit(self.url).scheme not in ("http", "https"):
            yield f"url: {self.url!r} is not of the form http://... or https://..."


class EndpointConfig(RequestConfig):
    """A model behind OpenAI's chat completions that takes images."""

    url: str = Field("", json_schema_extra={"option": "--endpoint"})
    """Base URL, without `/chat/completions`, as of `vllm serve`: `http://localhost:8000/v1`."""
    model: str = ""
    """Name of the model there. Default for captions: the base of the artifact."""


class EndpointError(OSError):
    """The endpoint cannot be used as it is configured (key, model, address). Earlier answers are kept."""


class NotAnswered(EndpointError):
    """No usable answer to one request within the attempts: a refused connection, a time-out, 429, 5xx, or something
    that is no chat completion. The same request may be answered later. ``status``: of the last response, if there was
    one."""

    def __init__(self, message: str, timed_out: bool = False, status: int | None = None) -> None:
        super().__init__(message)
        self.timed_out, self.status = timed_out, status


class RequestRefused(EndpointError):
    """The endpoint refuses one request for its content, such as an image it cannot read. It will do so again."""


class Reply(NamedTuple):
    """An answer, and the name under which the model gave it. ``cut_off``: it ended at ``max_tokens``. The tokens are
    counted by the endpoint; None if it does not. ``log_probabilities``: natural logarithms, one for each generated
    token; empty unless requested."""

    text: str
    model: str
    cut_off: bool = False
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    log_probabilities: tuple[float, ...] = ()


class ChatEndpoint:
    """Sends one request at a time to a model there; safe to call from several threads and event loops. Its
    :class:`idc.endpoint.bounded_client.BoundedClient` bounds the answers."""

    def __init__(self, config: RequestConfig, model: str, *, temperature: float, max_tokens: int) -> None:
        from openai import Omit

        key = self._key = os.environ.get(config.api_key_variable)
        self._name = f"{without_credentials(config.url).rstrip('/')}/chat/completions, model {model}"
        self._config, self._model = config, model
        self._headers = {} if key else {"Authorization": Omit()}
        self._defaults = {"model": model, "temperature": temperature, "max_tokens": max_tokens}
        host = urlsplit(config.url).hostname or ""
        # URLs that bypass the proxies of the environment: this machine, which a proxy elsewhere cannot reach.
        self._direct = [f"all://[{host}]" if ":" in host else f"all://{host}"] if is_loopback(host) else []
        self._clients: dict[asyncio.AbstractEventLoop, AsyncOpenAI] = {}

    def ask(self, content: str | list[Any]) -> Reply:
        """The answer to one message of the user, a text or a list of parts with images (:func:`image_part`). Raises as
        :meth:`chat`."""
        return self.chat([{"role": "user", "content": content}])[0]

    def chat(
        self,
        messages: Sequence[dict[str, Any]],
        *,
        log_probabilities: bool = False,
        on_text: Callable[[str], None] | None = None,
        **options: Any,
    ) -> list[Reply]:
        """The answers to a conversation, which are several with the option ``n``. ``on_text``: ask for a stream, and
        call this with each piece of the answer's text when it comes. ``options`` of the request replace those of this
        object (``max_tokens``, ``temperature``). Raises RequestRefused, NotAnswered or EndpointError."""
        from idc.endpoint.bounded_client import wait_for

        return wait_for(self._chat(messages, log_probabilities, on_text, options))

    async def _chat(
        self,
        messages: Sequence[dict[str, Any]],
        log_probabilities: bool,
        on_text: Callable[[str], None] | None,
        options: dict[str, Any],
    ) -> list[Reply]:
        sent = {**self._defaults, **options, "messages": list(messages), "extra_headers": self._headers}
        if log_probabilities:
            sent["logprobs"] = True
        if on_text is not None:
            sent |= {"stream": True, "stream_options": {"include_usage": True}}
        try:
            answer = await self._client().chat.completions.with_raw_response.create(**sent)
            if on_text is not None:
                return [await self._streamed(answer.http_response, log_probabilities, on_text)]
        except Exception as error:
            raise self._failure(error) from None
        return self._replies(answer.content, log_probabilities)

    def _client(self) -> AsyncOpenAI:
        """The client of the running event loop, to which its connections belong."""
        import asyncio  # slow to import, and the settings of most commands import this module

        loop = asyncio.get_running_loop()
        if loop not in self._clients:
            from openai import AsyncOpenAI

            from idc.endpoint.bounded_client import BoundedClient

            client = BoundedClient(_MOST_MIB, mounts=dict.fromkeys(self._direct))
            self._clients[loop] = AsyncOpenAI(
                base_url=self._config.url, api_key=self._key or "none", timeout=self._config.timeout_s,
                max_retries=self._config.attempts - 1, http_client=client,
            )  # fmt: skip
        return self._clients[loop]

    def _failure(self, error: Exception) -> Exception:
        """An error of the package as one of ours; others unchanged."""
        from httpx2 import RequestError, TimeoutException
        from openai import APIConnectionError, APIError, APIStatusError, APITimeoutError

        if isinstance(error, RequestError):  # in the middle of a stream
            message = redacted(f"{self._name}: the answer broke off: {error}", self._key)
            return NotAnswered(message, timed_out=isinstance(error, TimeoutException))
        gave_up = f"; gave up after {self._config.attempts} attempts"
        if isinstance(error, APIConnectionError):
            message = redacted(f"{self._name}: {_reason(error)}{gave_up}", self._key)
            return NotAnswered(message, timed_out=isinstance(error, APITimeoutError))
        if isinstance(error, APIStatusError):
            code, text = error.status_code, self._shown(error.response.content)
            line = f"{self._name}: {code} {error.response.reason_phrase}: {text}"
            if code in (408, 409, 429) or code >= 500:
                return NotAnswered(line + gave_up, status=code)
            if code in (401, 403):
                return EndpointError(f"{line}; the key is read from ${self._config.api_key_variable}")
            return (EndpointError if code < 400 or code in (404, 405) else RequestRefused)(line)
        if isinstance(error, (APIError, ValueError)):  # of no use to the client, see BoundedClient
            return NotAnswered(redacted(f"{self._name}: not a chat completion: {error}", self._key))
        return error

    def _shown(self, body: bytes) -> str:
        return redacted(body[:3000].decode(errors="replace").strip(), self._key)[:300]

    def _replies(self, body: bytes, log_probabilities: bool) -> list[Reply]:
        try:
            answer = parse_json(body.decode())
            if not answer["choices"]:
                raise ValueError
            return [self._reply(answer, choice, log_probabilities) for choice in answer["choices"]]
        except (AttributeError, LookupError, OverflowError, TypeError, ValueError):
            raise NotAnswered(f"{self._name}: not a chat completion: {self._shown(body)}") from None

    async def _streamed(
        self, response: httpx2.Response, log_probabilities: bool, on_text: Callable[[str], None]
    ) -> Reply:
        """The whole of a streamed answer. A ValueError: it is no stream of a chat completion, or has no end; an
        httpx2.RequestError: it broke off."""
        whole: dict[str, Any] = {}
        tokens: list[Any] = []
        reason, text, heard = None, "", ""
        keys = [self._key] if self._key else []  # an endpoint may return what it was sent
        try:
            async for data in _events(response):
                if data == b"[DONE]":
                    break
                chunk = parse_json(data.decode())
                whole |= {name: chunk[name] for name in ("model", "usage") if chunk.get(name)}
                for choice in chunk["choices"]:
                    text += choice["delta"].get("content") or ""
                    tokens += (choice.get("logprobs") or {}).get("content") or []
                    reason = choice.get("finish_reason") or reason
                if piece := settled(text, keys)[len(heard) :]:
                    heard += piece
                    on_text(piece)
            if reason is None:
                raise ValueError("the stream has no end")
            end = {"message": {"content": text}, "finish_reason": reason, "logprobs": {"content": tokens}}
            return self._reply(whole, end, log_probabilities)
        except (AttributeError, LookupError, OverflowError, TypeError) as error:
            raise ValueError(f"{type(error).__name__} in the stream") from None
        finally:
            await response.aclose()

    def _reply(self, answer: dict[str, Any], choice: dict[str, Any], log_probabilities: bool) -> Reply:
        text, model = choice["message"].get("content") or "", answer.get("model") or self._model
        if not isinstance(text, str) or not isinstance(model, str):
            raise TypeError
        logs = self._log_probabilities(choice) if log_probabilities else ()
        counts = [(answer.get("usage") or {}).get(name) for name in ("prompt_tokens", "completion_tokens")]
        tokens = [count if isinstance(count, int) and count >= 0 else None for count in counts]
        if self._key and self._key in text + model:  # an endpoint may return what it was sent
            text, model = redacted(text, self._key), redacted(model, self._key)
        cut_off = choice.get("finish_reason") == "length"
        return Reply(text, model, cut_off, tokens[0], tokens[1], logs)

    def _log_probabilities(self, choice: dict[str, Any]) -> tuple[float, ...]:
        """Those of the generated tokens; an EndpointError if there are none, other errors if they are no logarithms of
        probabilities."""
        content = (choice.get("logprobs") or {}).get("content")
        if not content:
            raise EndpointError(
                f"{self._name}: the answer has no log-probabilities of its tokens, without which a caption has no "
                "confidence; choose an endpoint that supports `logprobs` of chat completions"
            )
        log_probabilities = tuple(float(token["logprob"]) for token in content)
        # Rounding may leave the logarithm of a probability of 1 a little above 0.
        if not all(math.isfinite(value) and value <= 1e-6 for value in log_probabilities):
            raise ValueError
        return log_probabilities


async def _events(response: httpx2.Response) -> AsyncIterator[bytes]:
    """The data of server-sent events, each of one line as those of chat completions are."""
    rest = bytearray()
    async for piece in response.aiter_raw():
        rest += piece
        if b"\n" in piece:
            *lines, rest = rest.split(b"\n")
            for line in lines:
                if line.startswith(b"data:"):
                    yield bytes(line[5:].strip())


def _reason(error: BaseException) -> str:
    """The text of the error that caused this one, the innermost that has one."""
    inner = error.exceptions[0] if isinstance(error, BaseExceptionGroup) else error.__cause__ or error.__context__
    return (inner and _reason(inner)) or str(error)


def image_part(url: str) -> dict[str, Any]:
    """An image, by its URL or as a data URL, as a part of a message."""
    return {"type": "image_url", "image_url": {"url": url}}


def without_credentials(url: str) -> str:
    """A URL without a user name, a password and a query."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="").geturl()
