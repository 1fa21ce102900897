"""Memory that a process takes for request bodies and gives back.

For processes that hold bodies and no model. No effect with another C library than glibc.
"""

from __future__ import annotations

import ctypes
import gc
import threading

_M_MMAP_THRESHOLD = -3  # of glibc's malloc.h
_LARGE_BYTES = 16 * 1024
_WORTH_BYTES = 16 * 2**20
_TRIM_AFTER_S = 1.0


def return_large_blocks() -> None:
    """Have the allocator give blocks of 16 KiB and more back to the system as soon as they are freed.

    glibc otherwise keeps them, between small blocks that are still in use: a process that has passed on 500 MiB of
    request bodies stays that large, and the process that it passed them to grows by as much. Each such block costs a
    system call.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)


class HeldBytes:
    """A count of the bytes of bodies; when many have been released, the allocator gives back what it kept of them, such
    as the small blocks in which gRPC receives them."""

    def __init__(self) -> None:
        self.now = 0
        self._peak = 0

    def add(self, size: int) -> None:
        """Count bytes that have arrived."""
        self.now += size
        self._peak = max(self._peak, self.now)

    def release(self, size: int) -> None:
        """No longer count them: their requests have been answered."""
        self.now -= size
        if self._peak - self.now > _WORTH_BYTES:
            self._peak = self.now
            # Later: those that handled the request still hold the body now. A thread, because it takes a while.
            timer = threading.Timer(_TRIM_AFTER_S, _trim)
            timer.daemon = True
            timer.start()


def _trim() -> None:
    gc.collect()  # tasks that were cancelled are cycles, with the bodies in their frames
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
