"""``regions`` in the place of an artifact."""

from __future__ import annotations

import fcntl
import os

from idc.data.remote_copies import cache_root
from idc.systems.regions.text import reads_text
from idc.training.artifact import CONFIG, write_artifact

_VERSION = 2
"""Incremented when the same pairs would get other captions: results are stored by the artifact's contents."""


def regions_folder() -> str:
    """The folder of the artifact, made in the cache at the first use. It holds no weights."""
    text = reads_text()
    target = cache_root() / f"regions-{_VERSION}{'-text' if text else ''}"
    with (target.parent / f".{target.name}.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (target / CONFIG).is_file():
            write_artifact(
                target,
                system="regions",
                config={"version": _VERSION, "text": text},
                state_dict={},
                purpose="Names the regions in which two images differ, without a trained model.",
            )
    os.utime(target)  # the cache drops what is not used
    return str(target)
