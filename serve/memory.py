"""Memory that a process takes for request bodies and gives back."""

from __future__ import annotations

import ctypes

_M_MMAP_THRESHOLD = -3  # of glibc's malloc.h
_LARGE_BYTES = 16 * 1024


def return_large_blocks() -> None:
    """Have the allocator give blocks of 16 KiB and more back to the system as soon as they are freed.

    glibc otherwise keeps them, between small blocks that are still in use: a process that has passed on 500 MiB of
    request bodies stays that large, and the process that it passed them to grows by as much. For processes that hold
    bodies and no model: each such block costs a system call. No effect with another C library.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)
