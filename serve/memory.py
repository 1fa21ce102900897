"""Return the memory of request bodies to the system, in processes that hold bodies and no model. With C libraries other
than glibc nothing is done."""

from __future__ import annotations

import ctypes
import gc
import threading

_LIBC = ctypes.CDLL(None)
_M_MMAP_THRESHOLD = -3  # from glibc's malloc.h
_WORTH_BYTES = 16 * 2**20
_TRIM_AFTER_S = 1.0


def return_large_blocks() -> None:
    """Make the allocator return blocks of 16 KiB and more as soon as they are freed. glibc otherwise keeps them between
    small blocks that are still in use: a process that has forwarded 500 MiB of bodies stays that large."""
    if hasattr(_LIBC, "mallopt"):
        _LIBC.mallopt(_M_MMAP_THRESHOLD, 16 * 1024)


class InFlightBytes:
    """Counts the bytes of bodies in memory; after many have been released, the allocator returns its remaining blocks,
    such as the small ones in which gRPC receives bodies."""

    def __init__(self) -> None:
        self.now = self._peak = 0

    def add(self, size: int) -> None:
        """Count bytes that have arrived; negative: those of an answered request."""
        self.now += size
        self._peak = max(self._peak, self.now)
        if self._peak - self.now > _WORTH_BYTES:
            self._peak = self.now
            # Later: the body is still referenced at this point. In a thread, because it takes a while.
            timer = threading.Timer(_TRIM_AFTER_S, _trim)
            timer.daemon = True
            timer.start()


def _trim() -> None:
    gc.collect()  # cancelled tasks are reference cycles, with the bodies in their frames
    if hasattr(_LIBC, "malloc_trim"):
        _LIBC.malloc_trim(0)
