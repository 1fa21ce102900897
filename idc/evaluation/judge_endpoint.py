"""A language model behind OpenAI's chat completions: one question, one answer. Retries are those of ``openai``."""

from __future__ import annotations

import os
from urllib.parse import urlsplit


class JudgeError(RuntimeError):
    """The endpoint does not answer, or refuses a request. Earlier answers are kept."""


class Endpoint:
    """Sends one question at a time; safe to call from several threads. A redirection is an error, because following it
    would send the key to another host.

    Args:
        url: base URL of the endpoint.
        model: name of the model there.
        key_variable: environment variable with the key, if the endpoint needs one.
        temperature, max_tokens: of the model's sampling.
        attempts: maximum number of times a request is sent.
        timeout_s: time-out of a request.
    """

    def __init__(
        self, url: str, model: str, key_variable: str, temperature: float, max_tokens: int, attempts: int,
        timeout_s: float,
    ) -> None:  # fmt: skip
        from openai import DefaultHttpxClient, Omit, OpenAI

        key = os.environ.get(key_variable)
        self._name = f"{without_credentials(url).rstrip('/')}/chat/completions, model {model}"
        self._model, self._temperature, self._max_tokens = model, temperature, max_tokens
        self._key_variable, self._attempts = key_variable, attempts
        self._headers = {} if key else {"Authorization": Omit()}
        transport = DefaultHttpxClient(follow_redirects=False)
        self._client = OpenAI(
            base_url=url, api_key=key or "none", timeout=timeout_s, max_retries=attempts - 1, http_client=transport
        )

    def ask(self, prompt: str) -> tuple[str, str]:
        """The judge's reply, and the name under which it answered.

        Raises:
            JudgeError: it refuses the request, or does not answer within the attempts.
        """
        from openai import APIConnectionError, APIStatusError

        try:
            answer = self._client.chat.completions.create(
                model=self._model,
                messages=[{"role": "user", "content": prompt}],
                temperature=self._temperature,
                max_tokens=self._max_tokens,
                extra_headers=self._headers,
            )
        except APIConnectionError as error:
            reason = f"{self._name}: {error.__cause__ or error}; gave up after {self._attempts} attempts"
            raise JudgeError(reason) from None
        except APIStatusError as error:
            code, text = error.status_code, error.response.text.strip()[:300]
            hint = f"; gave up after {self._attempts} attempts" if code in (408, 409, 429) or code >= 500 else ""
            hint = f"; the key is read from ${self._key_variable}" if code in (401, 403) else hint
            raise JudgeError(f"{self._name}: {code} {error.response.reason_phrase}: {text}{hint}") from None
        try:  # the package does not check what the server sent
            return answer.choices[0].message.content or "", answer.model or self._model
        except (AttributeError, IndexError, TypeError):
            raise JudgeError(f"{self._name}: not a chat completion: {str(answer)[:300]}") from None


def without_credentials(url: str) -> str:
    """A URL without a user name, a password and a query."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="").geturl()
