"""A process that decodes: a decoder in C cannot be stopped in a thread, and takes the program along if it crashes.

The process gets pickled calls on standard input, and writes their results to standard output. Both ends are this
program.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar, cast

from idc.data.images import ImageError

Decoded = TypeVar("Decoded")


class DecoderProcess:
    """A running :func:`main`, until it has ``ended``. It ends with this object; if this process is killed, at the
    latest when the time of its image is over.

    Args:
        what: it decodes, for messages.
        memory: bytes that it may have, of Linux alone.
    """

    def __init__(self, what: str = "image", memory: int | None = None) -> None:
        self.ended, self._what = False, what
        path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "idc.data.decoder_process", *([] if memory is None else [str(memory)])],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": path},
        )  # fmt: skip
        weakref.finalize(self, _end, self._process)

    def kill(self) -> None:
        """End it, also while another thread waits for an image of it."""
        self.ended = True
        self._process.kill()

    def run(self, seconds: float, decode: Callable[..., Decoded], *arguments: Any) -> Decoded:
        """What the function, one of a module, returns there within ``seconds`` of processor time.

        Raises:
            ImageError: raised by it; "takes too long"; "too much memory"; "damaged image" if it crashed the process.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            pickle.dump((seconds, decode, *arguments), self._process.stdin, protocol=5)
            self._process.stdin.flush()
            result = pickle.load(self._process.stdout)
        except BaseException as error:
            self.kill()  # the rest of this answer would be read as the next one's
            if not isinstance(error, OSError | EOFError | pickle.UnpicklingError):
                raise
            with suppress(OSError):  # the rest of the request
                self._process.stdin.close()
            if self._process.wait() == -signal.SIGPROF:
                detail = f"more than {seconds:g} s of processor time; save the {self._what} in a plain form"
                raise ImageError("takes too long", detail) from None
            raise ImageError(f"damaged {self._what}", "it ended its decoder") from None
        if isinstance(result, ImageError):
            raise result
        return cast(Decoded, result)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


def main() -> None:
    """Decode one image after another, until standard input ends or an image exceeds its limit. The only argument is
    the most bytes of memory."""
    if sys.argv[1:] and sys.platform == "linux":
        import resource  # of Unix alone

        resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[1]),) * 2)
    while True:
        try:
            seconds, decode, *arguments = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        signal.setitimer(signal.ITIMER_PROF, seconds)  # its signal ends this process, also inside a decoder in C
        try:
            result = decode(*arguments)
        except ImageError as error:
            result = error
        except MemoryError:
            result = ImageError("too much memory", "it needs more than is given to one file")
        signal.setitimer(signal.ITIMER_PROF, 0)
        pickle.dump(result, sys.stdout.buffer, protocol=5)
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
