"""Object storage as it behaves: it refuses for a while, and comes back. What is retried, for how long, what never is.

pyarrow's file systems report every failure as an ``OSError`` without an errno; their text is all there is to go by.
"""

from __future__ import annotations

import os
import re
import socket
import time
import uuid
from collections.abc import Callable
from typing import TypeVar

from idc.data.files import Location, locate
from idc.util import logs

Result = TypeVar("Result")

READ_PATIENCE_S = 15.0
"""How long reading an input waits for object storage that does not answer, in seconds: long enough for a hiccup, short
for who waits at a terminal."""
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.5, 5.0

_KEYS = "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (GOOGLE_APPLICATION_CREDENTIALS for gs://)"
_REASONS = (
    (
        r"NO_SUCH_BUCKET|bucket does not exist",
        "there is no such bucket; create it, or correct the URI (and AWS_ENDPOINT_URL, if the store is not Amazon's)",
    ),
    (
        r"INVALID_ACCESS_KEY_ID|SIGNATURE_DOES_NOT_MATCH|INVALID_CLIENT_TOKEN_ID|EXPIRED|UNAUTHENTICATED|status 401"
        r"|OAuth2 access token",
        f"the credentials are not valid; set {_KEYS} on every node",
    ),
    (
        r"ACCESS_DENIED|PERMISSION_DENIED|status 403",
        f"access is denied; set {_KEYS} on every node, or give its role read and write access",
    ),
    (r"PermanentRedirect|AuthorizationHeaderMalformed|status 301", "the bucket is in another region; set AWS_REGION"),
)
"""Failures that another try would only repeat."""


class Unreachable(OSError):
    """Object storage did not answer for as long as the caller was willing to wait."""


def reason_of(error: OSError) -> str | None:
    """Advice about a failure that another try would only repeat; None if it may pass."""
    text = str(error)
    return next((reason for pattern, reason in _REASONS if re.search(pattern, text)), None)


def with_retries(operation: Callable[[], Result], what: str, patience_s: float) -> Result:
    """The result of an operation on object storage, tried again with growing pauses while the store does not answer.

    One line on stderr says that it waits, another that it goes on.

    Args:
        what: the URI, for messages.
        patience_s: give up after this many seconds.

    Raises:
        ValueError: the store refuses for a reason that stays: no such bucket, no access.
        Unreachable: it did not answer for ``patience_s``.
        OSError: a local failure (a full disk), or there is no such file; both at once.
    """
    began, pause, waiting = time.monotonic(), _FIRST_WAIT_S, False
    while True:
        try:
            result = operation()
        except OSError as error:
            if error.errno is not None or isinstance(error, FileNotFoundError):
                raise
            if reason := reason_of(error):
                raise ValueError(f"{what}: {reason} ({_line(error)})") from None
            waited = time.monotonic() - began
            if waited + pause > patience_s:
                raise Unreachable(
                    f"{what} did not answer for {waited:.0f} s; check the network and AWS_ENDPOINT_URL ({_line(error)})"
                ) from None
            if not waiting:
                text = f"{what} does not answer, trying for {patience_s:.0f} s ({_line(error)})"
                logs.event("storage_silent", text, "warning")
            waiting = True
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_WAIT_S)
        else:
            if waiting:
                logs.event("storage_back", f"{what} answers again after {time.monotonic() - began:.0f} s")
            return result


def retry_or_user_error(operation: Callable[[], Result], what: str) -> Result:
    """The result of the first look at an input: as :func:`with_retries`, and a store that does not answer is an error
    of the user.

    Raises:
        ValueError: the store refuses, or does not answer.
    """
    try:
        return with_retries(operation, what, READ_PATIENCE_S)
    except Unreachable as error:
        raise ValueError(str(error)) from None


def resolve_uri(uri: str, field: str) -> Location:
    """The location of a URI (or a path); of one that cannot be used, an error that names the setting.

    Raises:
        ValueError: the scheme is unknown, the URI malformed or with options, or the store does not answer.
    """
    if "://" in uri and "?" in uri:
        raise ValueError(f"{field}: {uri.partition('?')[0]}?...: options in a URI are not taken; set AWS_ENDPOINT_URL")
    if "@" in uri.partition("://")[2].partition("/")[0].removeprefix("anonymous@"):
        raise ValueError(f"{field}: credentials in a URI would be stored with the run; set {_KEYS}")
    try:
        location = locate(uri)
    except ValueError as error:
        raise ValueError(f"{field}: {error}") from None
    except OSError as error:  # S3 is asked for the region of the bucket, unless AWS_REGION or AWS_ENDPOINT_URL is set
        raise _unusable(uri, field, error) from None
    if not location.path:
        raise ValueError(f"{field}: {uri!r} names no bucket")
    return location


def check_writable(uri: str, field: str) -> None:
    """Write, read and delete a small object below a URI; nothing for a local path. Takes seconds also if it fails.

    Raises:
        ValueError: one line with the setting, the URI and what to do.
    """
    location = resolve_uri(uri, field)
    if location.local is not None:
        return
    probe = location / f".preflight-{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
    try:
        with probe.filesystem.open_output_stream(probe.path) as stream:
            stream.write(b"idc\n")
    except OSError as error:
        raise _unusable(uri, field, error) from None
    try:
        seen = probe.exists() and probe.read() == b"idc\n"
    except OSError as error:
        raise _unusable(uri, field, error) from None
    finally:
        try:
            probe.delete()
        except OSError as error:  # it does no harm where it is
            logs.event("probe_left", f"{probe} was not deleted: {_line(error)}", "warning")
    if not seen:
        raise ValueError(f"{field}: does not see what is written to {uri!r}; check AWS_ENDPOINT_URL on every node")


def _unusable(uri: str, field: str, error: OSError) -> ValueError:
    reason = reason_of(error) or "cannot be reached; check the network and AWS_ENDPOINT_URL"
    return ValueError(f"{field}={uri}: {reason} ({_line(error)})")


def _line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return re.sub(r" \(Request ID: [^)]*\)|; Details: .*", "", text)[:240]
