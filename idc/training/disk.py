"""A full disk: recognising the error, which would come again after a restart, and what the user can do."""

from __future__ import annotations

import errno
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

_FULL = (errno.ENOSPC, errno.EDQUOT)
_SIGNS = ("no space left on device", "disk quota exceeded", "[errno 28]", "database or disk is full")
"""Parts of the messages of C++, Rust, Arrow and SQLite, in lower case."""
_WRITE_FAILED = ("pytorchstreamwriter", "inline_container", "i/o error", "input/output error")
"""Parts of messages that name no reason: torch's writer of checkpoints loses the error number."""
_NOTHING_FREE = 1 << 20
"""Bytes free at most on a disk that explains such a message."""


@contextmanager
def full_disk_explained(folders: Sequence[Path], then: Callable[[], str]) -> Iterator[None]:
    """Turn the error of a full disk into a message that names the folder and the remedy.

    Args:
        folders: those that are written to in the block.
        then: returns what the next run of the same command does, e.g. "resumes from step 5".

    Raises:
        ValueError: a disk was full.
    """
    try:
        yield
    except Exception as error:
        if not isinstance(error, ValueError) and is_disk_full(error, folders):
            raise ValueError(full_disk_advice(error, folders, then())) from error
        raise


def is_disk_full(error: BaseException | None, folders: Sequence[Path]) -> bool:
    """Whether ``error``, or what caused it, is that a disk or a quota was full."""
    while error is not None:
        text = str(error).lower()
        if (isinstance(error, OSError) and error.errno in _FULL) or any(sign in text for sign in _SIGNS):
            return True
        if any(sign in text for sign in _WRITE_FAILED) and any(_free(folder) < _NOTHING_FREE for folder in folders):
            return True
        error = error.__cause__ or error.__context__
    return False


def full_disk_advice(error: BaseException, folders: Sequence[Path], then: str) -> str:
    """Error message: which folder is full, how much is free there, what to do."""
    measurable = [folder for folder in folders if _free(folder) < float("inf")]
    folder = min(measurable, key=_free) if measurable else folders[0]
    free = f"{_free(folder) / 2**20:,.1f} MiB free" if measurable else "no free space known"
    return (
        f"the disk of {folder} is full ({free}): {' '.join(str(error).split())[:200]}\nThe run was not restarted. Make "
        f"room there (train.keep_last checkpoints are kept; other folder: runs=...), then the same command {then}."
    )


def temporary_folder() -> Path:
    """The folder of temporary files; workers of Ray write a checkpoint there before it is uploaded."""
    return Path(tempfile.gettempdir())


def _free(folder: Path) -> float:
    """Bytes free for users on the disk of ``folder`` or of its nearest existing parent; infinity if that is unknown."""
    with suppress(OSError):
        while not folder.exists() and folder != folder.parent:
            folder = folder.parent
        return shutil.disk_usage(folder).free
    return float("inf")
