"""The process that decodes images for :mod:`serve.decoding`: files on standard input, pixels on standard output."""

from __future__ import annotations

import signal
import struct
import sys

from idc.data.images import ImageError, decode_image

REQUEST = struct.Struct("<dQ")
"""Head of a request: the limit in seconds of processor time, and the length of the image file that follows."""
REPLY = struct.Struct("<IIQ")
"""Head of a reply: height, width and length of the pixels; or 0, 0 and that of an error, its code and its detail."""


def main() -> None:
    """Decode one image after another, until standard input ends or an image exceeds its limit."""
    read, write = sys.stdin.buffer, sys.stdout.buffer
    while head := read.read(REQUEST.size):
        seconds, length = REQUEST.unpack(head)
        data = read.read(length)
        signal.setitimer(signal.ITIMER_PROF, seconds)  # its signal ends this process, also inside a decoder in C
        try:
            pixels = decode_image(data)
            reply = REPLY.pack(*pixels.shape[:2], pixels.nbytes), pixels.data
        except ImageError as error:
            text = f"{error.code}\n{error.detail}".encode()
            reply = REPLY.pack(0, 0, len(text)), memoryview(text)
        signal.setitimer(signal.ITIMER_PROF, 0)
        for part in reply:
            write.write(part)
        write.flush()


if __name__ == "__main__":
    main()
