"""A language model behind OpenAI's chat completions: one question, one answer, with patience."""

from __future__ import annotations

import email.utils
import http.client
import json
import os
import random
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

Wait = Callable[[float], object]

_RETRIED = (408, 409, 425, 429, 500, 502, 503, 504, 529)
_LONGEST_WAIT_S = 60.0


class JudgeError(RuntimeError):
    """The endpoint does not answer, or refuses; what was answered so far is kept."""


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirection is an error: following it would hand the key to another host."""

    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        return None


class Endpoint:
    """Asks one question at a time; safe to call from several threads.

    Args:
        url: base of the endpoint.
        model: its name there.
        key_variable: environment variable with the key, if it wants one.
        temperature, max_tokens: of the model's sampling.
        attempts: how often a request is sent.
        timeout_s: how long an answer may take.
        wait: waits some seconds before the next attempt; true if there is to be none.
    """

    def __init__(
        self,
        url: str,
        model: str,
        *,
        key_variable: str,
        temperature: float,
        max_tokens: int,
        attempts: int,
        timeout_s: float,
        wait: Wait,
    ) -> None:
        self._url = f"{url.rstrip('/')}/chat/completions"
        self._settings = {"model": model, "temperature": temperature, "max_tokens": max_tokens}
        self._key_variable, self._key = key_variable, os.environ.get(key_variable, "")
        self._attempts, self._timeout_s, self._wait = attempts, timeout_s, wait
        self._open = urllib.request.build_opener(_NoRedirect).open

    def ask(self, prompt: str) -> tuple[str, str]:
        """The judge's reply, and the name it answered under.

        Raises:
            JudgeError: it refuses, or does not answer within the attempts.
        """
        body = json.dumps({**self._settings, "messages": [{"role": "user", "content": prompt}]}).encode()
        for attempt in range(1, self._attempts + 1):
            try:
                return self._send(body)
            except urllib.error.HTTPError as error:
                text = error.read(2000).decode(errors="replace").strip()
                reason = f"{self._url} answers {error.code} {error.reason}: {text[:300]}"
                if error.code in (401, 403):
                    raise JudgeError(f"{reason}; the key is read from ${self._key_variable}") from None
                if error.code not in _RETRIED:
                    raise JudgeError(reason) from None
                told = _seconds(error.headers.get("Retry-After"))
            except (OSError, ValueError, http.client.HTTPException) as error:
                # Refused, timed out, cut, or an answer that is not of this protocol.
                reason, told = f"{self._url}: {getattr(error, 'reason', error)}", None
            if attempt < self._attempts:
                backoff = 2.0 ** (attempt - 1) * random.uniform(0.75, 1.25)
                if self._wait(min(told if told is not None else backoff, _LONGEST_WAIT_S)):
                    raise JudgeError(reason)
        raise JudgeError(f"{reason}; gave up after {self._attempts} attempts")

    def _send(self, body: bytes) -> tuple[str, str]:
        headers = {"Content-Type": "application/json"}
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        request = urllib.request.Request(self._url, body, headers)
        with self._open(request, timeout=self._timeout_s) as response:
            record = json.loads(response.read())
        try:
            reply = record["choices"][0]["message"]["content"] or ""
            return str(reply), str(record.get("model", self._settings["model"]))
        except (KeyError, IndexError, TypeError, AttributeError):
            raise ValueError(f"no chat completion: {json.dumps(record)[:300]}") from None


def _seconds(header: str | None) -> float | None:
    """``Retry-After``: seconds, or a date."""
    if header is None:
        return None
    try:
        return max(0.0, float(header))
    except ValueError:
        pass
    try:
        return max(0.0, email.utils.parsedate_to_datetime(header).timestamp() - time.time())
    except ValueError:
        return None
