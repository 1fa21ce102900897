"""Folders that cannot be written, as errors of the user."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager

from idc.data.files import Location

_UNWRITABLE = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "no space is left there: free some, or choose another folder"),
    errno.EFBIG: "files of this size are not allowed there: raise the limit (ulimit -f), or choose another folder",
    errno.ENOENT: "it was removed, or no folder can be made there: choose another folder",
    errno.EROFS: "it is on a read-only file system: choose another folder",
    **dict.fromkeys(
        (errno.EACCES, errno.EPERM),
        "this user may not write there: change its rights or owner, or choose another folder",
    ),
    **dict.fromkeys(
        (errno.ENOTDIR, errno.EEXIST), "a file has this name, or that of a folder above: choose another folder"
    ),
}
"""Failures to write that another try would only repeat: what to do."""


@contextmanager
def explain_write_errors(folder: Location) -> Iterator[None]:
    """Context in which files of a folder are written; a disk that is full or that may not be written is an error of the
    user.

    Raises:
        ValueError: with the folder and what to do.
        OSError: any other failure.
    """
    try:
        yield
    except OSError as error:
        if (advice := _UNWRITABLE.get(error.errno or 0)) is None:
            raise
        raise ValueError(f"{folder} cannot be written ({os.strerror(error.errno or 0)}); {advice}") from error
