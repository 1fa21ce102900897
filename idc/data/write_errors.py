"""Folders that cannot be written, as errors of the user."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager

from idc.data.files import Location

_LASTING = {
    *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM),
    *(errno.ENOENT, errno.ENOTDIR, errno.EEXIST),
}
"""Failures that another try would only repeat: no space, no right, no folder."""


@contextmanager
def explain_write_errors(folder: Location) -> Iterator[None]:
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
