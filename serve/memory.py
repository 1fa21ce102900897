"""Return the memory of request bodies to the system, in processes that hold bodies and no model.

Without effect with C libraries other than glibc.
"""

from __future__ import annotations

import ctypes
import gc
import threading

_M_MMAP_THRESHOLD = -3  # from glibc's malloc.h
_LARGE_BYTES = 16 * 1024
_WORTH_BYTES = 16 * 2**20
_TRIM_AFTER_S = 1.0


def return_large_blocks() -> None:
    """Make the allocator return blocks of 16 KiB and more to the system as soon as they are freed.

    glibc otherwise keeps them between small blocks that are still in use: a process that has forwarded 500 MiB of
    request bodies stays that large, and so does the process that received them. Each such block costs a system call.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)


class InFlightBytes:
    """Counts the bytes of bodies in memory; after many have been released, the allocator returns its remaining blocks,
    such as the small ones in which gRPC receives bodies."""

    def __init__(self) -> None:
        self.now = 0
        self._peak = 0

    def add(self, size: int) -> None:
        """Count bytes that have arrived."""
        self.now += size
        self._peak = max(self._peak, self.now)

    def release(self, size: int) -> None:
        """Subtract bytes whose requests have been answered."""
        self.now -= size
        if self._peak - self.now > _WORTH_BYTES:
            self._peak = self.now
            # Later: the body is still referenced at this point. In a thread, because it takes a while.
            timer = threading.Timer(_TRIM_AFTER_S, _trim)
            timer.daemon = True
            timer.start()


def _trim() -> None:
    gc.collect()  # cancelled tasks are reference cycles, with the bodies in their frames
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
