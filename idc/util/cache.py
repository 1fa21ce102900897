"""The cache on this machine, and files and folders that are made once for all processes."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

CACHE_VARIABLE = "IDC_CACHE"
"""Environment variable with the folder of the cache."""


def cache_root() -> Path:
    """The folder of the cache, made if need be: ``IDC_CACHE``, else one of this user among the temporary files.

    Raises:
        ValueError: the default folder belongs to somebody else.
    """
    configured = os.environ.get(CACHE_VARIABLE)
    root = Path(configured) if configured else Path(tempfile.gettempdir()) / f"idc-cache-{os.getuid()}"
    root.mkdir(parents=True, exist_ok=True, mode=0o700)
    if not configured and root.stat().st_uid != os.getuid():
        raise ValueError(f"{root} belongs to another user; set {CACHE_VARIABLE} to a folder of your own")
    return root


def make_once(path: Path, make: Callable[[Path], Path]) -> Path:
    """Return ``path``, a file or folder that is made if it is not there, and is complete when it appears.

    One of several processes or threads makes it while the others wait. What a killed one left is discarded.

    Args:
        make: writes to a temporary path in the same folder. Returns that path, or the one below it that becomes
            ``path``.
    """
    if path.exists():  # without a lock: a full cache may be read-only
        return path
    from filelock import FileLock

    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_name(f".{path.name}.lock")):
        if not path.exists():
            partial = path.with_name(f".{path.name}.partial")
            _discard(partial)
            try:
                make(partial).rename(path)
            finally:
                _discard(partial)
    return path


def _discard(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
