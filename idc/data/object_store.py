"""Object storage as it behaves: it refuses for a while, and comes back. What is retried, for how long, what never is.

pyarrow's file systems report every failure as an ``OSError`` without an errno; their text is all there is to go by.
:class:`idc.data.files.Location` passes every access to a remote file through :func:`with_retries`.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import TypeVar

import pyarrow as pa

from idc.util import logs

Result = TypeVar("Result")

PATIENCE_S = 600.0
"""How long a job waits for object storage that does not answer, in seconds."""
READ_PATIENCE_S = 15.0
"""The same for the first look at an input: long enough for a hiccup, short for who waits at a terminal."""
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.5, 5.0

KEYS = "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (GOOGLE_APPLICATION_CREDENTIALS for gs://)"
_REASONS = (
    (
        r"NO_SUCH_BUCKET|bucket does not exist|Bucket '[^']*' not found",
        "there is no such bucket; create it, or correct the URI (and AWS_ENDPOINT_URL, if the store is not Amazon's)",
    ),
    (
        # An answer to HEAD has no body that gives the reason; 400 is that of a token that has expired.
        r"INVALID_ACCESS_KEY_ID|SIGNATURE_DOES_NOT_MATCH|INVALID_CLIENT_TOKEN_ID|(?i:expired)|InvalidToken"
        r"|status 400\) during HeadObject|UNAUTHENTICATED|status 401|OAuth2 access token",
        f"the credentials are not valid; set {KEYS} on every node",
    ),
    (
        r"ACCESS_DENIED|PERMISSION_DENIED|status 403",
        f"access is denied; set {KEYS} on every node, or give its role the right to list, read and write",
    ),
    (r"PermanentRedirect|AuthorizationHeaderMalformed|status 301", "the bucket is in another region; set AWS_REGION"),
)
"""Failures that another try would only repeat."""

_LASTING = {
    *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM),
    *(errno.ENOENT, errno.ENOTDIR, errno.EEXIST),
}
"""Failures of a disk that another try would only repeat: no space, no right, no folder."""

_NETWORK = {
    *(errno.ECONNREFUSED, errno.ECONNRESET, errno.ECONNABORTED, errno.EPIPE, errno.ETIMEDOUT),
    *(errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ENETDOWN),
}
"""Failures of a connection, which Python's clients report; those of the name look-up are negative."""


class StorageError(ValueError):
    """Object storage refuses for a reason that stays. It ends a job, and is never a fault of the row that was read."""


class Unreachable(StorageError):
    """Object storage did not answer for as long as the caller was willing to wait."""


def reason_of(error: OSError) -> str | None:
    """Advice about a failure that another try would only repeat; None if it may pass."""
    text = str(error)
    return next((reason for pattern, reason in _REASONS if re.search(pattern, text)), None)


_retrying = ContextVar("retrying", default=False)
"""Whether a caller further up retries already, with its own patience."""
_outages: dict[str, float] = {}
"""Bucket that does not answer -> since when. Many threads meet the same outage; it is reported once."""
_lock = threading.Lock()


def with_retries(operation: Callable[[], Result], what: str, patience_s: float | None = None) -> Result:
    """The result of an operation on object storage, tried again with growing pauses while the store does not answer.

    One line on stderr says that it waits, another that it goes on. Inside another call of this function the operation
    is tried once: the outermost call decides how long to wait.

    Args:
        what: the URI, for messages.
        patience_s: give up this many seconds after the first failure; default is :data:`PATIENCE_S`.

    Raises:
        StorageError: the store refuses for a reason that stays: no such bucket, no access.
        Unreachable: it did not answer for ``patience_s``.
        OSError: a local failure (a full disk), or there is no such file; both at once.
    """
    if _retrying.get():
        return operation()
    patience_s = PATIENCE_S if patience_s is None else patience_s
    began, failed, pause = time.monotonic(), 0.0, _FIRST_WAIT_S
    token = _retrying.set(True)
    try:
        while True:
            try:
                result = operation()
            except OSError as error:
                if not _is_of_store(error):
                    raise
                if reason := reason_of(error):
                    raise StorageError(f"{what}: {reason} ({line_of(error)})") from None
                now = time.monotonic()
                if now - (failed or now) + pause > patience_s:
                    raise Unreachable(
                        f"{what} did not answer for {now - (failed or began):.0f} s; check the network and "
                        f"AWS_ENDPOINT_URL ({line_of(error)})"
                    ) from None
                if not failed:
                    failed = now
                    _report_outage(what, patience_s, error)
                time.sleep(pause)
                pause = min(2 * pause, _LONGEST_WAIT_S)
            else:
                if failed:
                    _report_end(what)
                return result
    finally:
        _retrying.reset(token)


def _is_of_store(error: OSError) -> bool:
    """Whether a failure is one of the store or the network, not of this machine's disk or of the name."""
    if isinstance(error, FileNotFoundError | IsADirectoryError | NotADirectoryError):  # fsspec's have no errno
        return False
    return error.errno is None or error.errno < 0 or error.errno in _NETWORK


def _report_outage(what: str, patience_s: float, error: OSError) -> None:
    with _lock:
        if _outages.setdefault(_bucket(what), now := time.monotonic()) == now:
            text = f"{what} does not answer, trying for {patience_s:.0f} s ({line_of(error)})"
            logs.event("storage_silent", text, "warning")


def _report_end(what: str) -> None:
    with _lock:
        if (since := _outages.pop(_bucket(what), None)) is not None:
            logs.event("storage_back", f"{what} answers again after {time.monotonic() - since:.0f} s")


def _bucket(uri: str) -> str:
    return "/".join(uri.split("/")[:3])


def first_look(operation: Callable[[], Result], what: str) -> Result:
    """The result of the first look at an input: as :func:`with_retries`, but with less patience."""
    return with_retries(operation, what, READ_PATIENCE_S)


def line_of(error: BaseException) -> str:
    """The message of an error of the store on one line, without request ids."""
    text = " ".join(str(error).split())
    return re.sub(r" \(Request ID: [^)]*\)|; Details: .*", "", text)[:240]


class PatientFile(io.RawIOBase):
    """A file in object storage, to be read at any position; each read is a request, and goes through
    :func:`with_retries`."""

    def __init__(self, file: pa.NativeFile, name: str) -> None:
        self._file, self._name, self._position = file, name, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._position}.get(whence)
        self._position = offset + (self._file.size() if start is None else start)
        return self._position

    def read(self, size: int = -1) -> bytes:
        count = self._file.size() - self._position if size is None or size < 0 else size
        data: bytes = with_retries(lambda: self._file.read_at(count, self._position), self._name)
        self._position += len(data)
        return data


@contextlib.contextmanager
def explain_write_errors(folder: object) -> Iterator[None]:
    """Context in which files of a folder are written.

    Raises:
        ValueError: no file can be written there; with the folder and what to do.
        OSError: any other failure.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in _LASTING:
            raise
        raise ValueError(
            f"{folder} cannot be written ({os.strerror(error.errno or 0)}); free space there, change its rights, or "
            "choose another folder"
        ) from error
