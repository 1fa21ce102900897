"""Running processes that tests look for by their command lines."""

from __future__ import annotations

from contextlib import suppress

import psutil


def descendants(root: psutil.Process, word: str) -> list[psutil.Process]:
    """The running descendants of a process whose command line has this in its first three words. One that has ended,
    and has not been waited for, is none."""
    running = []
    for child in root.children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if word in " ".join(child.cmdline()[:3]):
                running.append(child)
    return running
