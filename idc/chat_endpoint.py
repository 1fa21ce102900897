"""A language model behind OpenAI's chat completions: one question, one answer. Retries are those of ``openai``."""

from __future__ import annotations

import os
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from idc.redaction import redacted


class EndpointError(RuntimeError):
    """The endpoint cannot be used as it is configured (key, model, address). Earlier answers are kept."""


class NotAnswered(EndpointError):
    """No usable answer to one request within the attempts: a refused connection, a time-out, 429, 5xx, or something
    that is no chat completion. The same request may be answered later."""


class RequestRefused(EndpointError):
    """The endpoint refuses one request for its content, such as an image it cannot read. It will do so again."""


class Reply(NamedTuple):
    """An answer.

    Attributes:
        model: the name under which the model answered.
        cut_off: it ended at ``max_tokens``.
        prompt_tokens, completion_tokens: as the endpoint counts them; None if it does not.
    """

    text: str
    model: str
    cut_off: bool = False
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


class ChatEndpoint:
    """Sends one question at a time; safe to call from several threads. A redirection is an error, because following it
    would send the key to another host.

    Args:
        url: base URL of the endpoint.
        model: name of the model there.
        key_variable: environment variable with the key, if the endpoint needs one.
        temperature, max_tokens: of the model's sampling.
        attempts: maximum number of times a request is sent. The client waits 0.5, 1, 2, ... seconds in between, at most
            8, or as long as the server requests by ``Retry-After``, at most two minutes.
        timeout_s: time-out of a request.
    """

    def __init__(
        self, url: str, model: str, key_variable: str, temperature: float, max_tokens: int, attempts: int,
        timeout_s: float,
    ) -> None:  # fmt: skip
        from openai import DefaultHttpxClient, Omit, OpenAI

        key = self._key = os.environ.get(key_variable)
        self._name = f"{without_credentials(url).rstrip('/')}/chat/completions, model {model}"
        self._model, self._temperature, self._max_tokens = model, temperature, max_tokens
        self._key_variable, self._attempts = key_variable, attempts
        self._headers = {} if key else {"Authorization": Omit()}
        transport = DefaultHttpxClient(follow_redirects=False)
        self._client = OpenAI(
            base_url=url, api_key=key or "none", timeout=timeout_s, max_retries=attempts - 1, http_client=transport
        )

    def ask(self, content: str | list[Any]) -> Reply:
        """The answer to one message of the user, a text or a list of parts with images (:func:`image_part`).

        Raises:
            RequestRefused, NotAnswered, EndpointError: see there.
        """
        from openai import APIConnectionError, APIError, APIStatusError

        gave_up = f"; gave up after {self._attempts} attempts"
        try:
            answer = self._client.chat.completions.create(
                model=self._model,
                messages=[{"role": "user", "content": content}],
                temperature=self._temperature,
                max_tokens=self._max_tokens,
                extra_headers=self._headers,
            )
        except APIConnectionError as error:
            raise NotAnswered(redacted(f"{self._name}: {error.__cause__ or error}{gave_up}", self._key)) from None
        except APIStatusError as error:
            code, text = error.status_code, redacted(error.response.text.strip(), self._key)[:300]
            line = f"{self._name}: {code} {error.response.reason_phrase}: {text}"
            if code in (408, 409, 429) or code >= 500:
                raise NotAnswered(line + gave_up) from None
            if code in (401, 403):
                raise EndpointError(f"{line}; the key is read from ${self._key_variable}") from None
            raise (EndpointError if code < 400 or code in (404, 405) else RequestRefused)(line) from None
        except (APIError, ValueError) as error:  # a body that is not JSON
            raise NotAnswered(redacted(f"{self._name}: not a chat completion: {error}", self._key)) from None
        return self._reply(answer)

    def _reply(self, answer: Any) -> Reply:
        """The package does not check what the server sent."""
        try:
            choice = answer.choices[0]
            text, model = choice.message.content or "", answer.model or self._model
            if not isinstance(text, str) or not isinstance(model, str):
                raise TypeError
        except (AttributeError, IndexError, TypeError):
            shown = redacted(str(answer), self._key)[:300]
            raise NotAnswered(f"{self._name}: not a chat completion: {shown}") from None
        counts = [
            getattr(getattr(answer, "usage", None), name, None) for name in ("prompt_tokens", "completion_tokens")
        ]
        tokens = [count if isinstance(count, int) and count >= 0 else None for count in counts]
        if self._key and self._key in text + model:  # an endpoint may return what it was sent
            text, model = redacted(text, self._key), redacted(model, self._key)
        return Reply(text, model, getattr(choice, "finish_reason", None) == "length", *tokens)


def image_part(url: str) -> dict[str, Any]:
    """An image, by its URL or as a data URL, as a part of a message."""
    return {"type": "image_url", "image_url": {"url": url}}


def without_credentials(url: str) -> str:
    """A URL without a user name, a password and a query."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="").geturl()
