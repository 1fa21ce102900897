"""Secrets in texts: found in settings, and replaced before a text is shown or stored.

A secret is given in the environment, never as a setting: settings are written to run folders, MLflow, pages and logs.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

HIDDEN = "***"

_USER = re.compile(r"(?<=://)(?P<user>[^\s/'\"<>?#]*)@")
"""User name and password of a URI; a password may have an @."""
_HTTP = re.compile(r"https?://\Z", re.IGNORECASE)
_QUERY = re.compile(
    r"(?P<name>[?&;](?:[\w.-]*(?:token|secret|passw(?:or)?d|api_?key|credential|signature)|(?:[\w.-]*[_.-])?(?:key|sig))=)"
    r"(?P<value>[^&;\s'\"<>#]+)",
    re.IGNORECASE,
)
_VARIABLE = re.compile(r"(?:^|_)(?:TOKEN|SECRET|PASSWORD|PASSWD|KEY|CREDENTIALS?)(?:_ID)?$", re.IGNORECASE)
"""Names of environment variables with secrets, such as RAY_AUTH_TOKEN, AWS_SECRET_ACCESS_KEY, OPENAI_API_KEY."""
_NAME = re.compile(r"[A-Z_][A-Z0-9_]*")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters, those that turn the direction of text, and halves of characters, which cannot be printed."""
_SHORTEST = 8
"""Values of variables that are shorter are no secrets, and would be found in any text."""


def redacted(text: str, *secrets: str | None) -> str:
    """``text`` without passwords: those in its URIs, the given ones, and the values of environment variables whose
    names say that they are secret."""
    text = _QUERY.sub(rf"\g<name>{HIDDEN}", _USER.sub(_hidden_user, text))
    values = {*secrets, *(value for name, value in os.environ.items() if _VARIABLE.search(name))}
    long = (value for value in values if value is not None and len(value) >= _SHORTEST)
    # The longest first: a value may hold another, whose replacement would leave its rest in the text.
    for value in sorted(long, key=len, reverse=True):
        text = text.replace(value, HIDDEN)
    return text


def for_terminal(text: str) -> str:
    """``text`` for a terminal: control characters in names and values of others, which could move its cursor or hide
    lines, as escapes (``\\x1b``); line breaks and tabs stay."""
    return _CONTROL.sub(lambda match: match[0].encode("unicode_escape", "surrogatepass").decode(), text)


def secret_fault(value: str) -> str | None:
    """Why a setting's value must not be given as one: it is a URI with a password or a key."""
    if _QUERY.sub("", _USER.sub(_hidden_user, value)) == value:
        return None
    return (
        f"{redacted(value)!r} has a password or a key, and settings are written to run folders, MLflow and logs; leave "
        "it out and set it in the environment: MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD for MLflow, "
        "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY for S3, the variable of api_key_variable for an endpoint"
    )


def variable_fault(name: str) -> Iterator[str]:
    """A fault if ``name`` cannot be the name of an environment variable: a key was given in its place."""
    if not _NAME.fullmatch(name):
        yield (
            "api_key_variable: this is not the name of an environment variable (upper-case letters, digits, _); give "
            "the name, and the key in that variable, never as a setting"
        )


def _hidden_user(match: re.Match[str]) -> str:
    """Only what may be a secret: a password after a user name; over HTTP also a name alone, which may be a token."""
    name, colon, _ = match["user"].partition(":")
    if colon:
        return f"{name}:{HIDDEN}@" if name else f"{HIDDEN}@"
    return f"{HIDDEN}@" if name and _HTTP.search(match.string[: match.start()]) else match[0]
