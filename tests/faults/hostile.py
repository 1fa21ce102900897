"""What an entry of the hostile import set is: files to import, and the outcome of every one of them."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from idc.data.images import encode_png
from tests.data.readers.test_own import picture

OUTSIDE = "@OUTSIDE@"
"""In texts: a folder next to the source with ``canary.png``, ``canary.txt`` and ``canary.json``."""
HOST = "@HOST@"
"""In texts: host and port of a listener that nobody may connect to."""


@dataclass(frozen=True)
class Surroundings:
    """What lies around a hostile source: a folder of canaries, and a listener as ``host:port``."""

    outside: Path
    host: str

    def put_into(self, text: str) -> str:
        """The text with their names in it."""
        return text.replace(OUTSIDE, str(self.outside)).replace(HOST, self.host)


Content = int | str | bytes | Callable[[Path, Surroundings], object]
"""A grey image of that value, text, bytes, or what makes something else at the path."""

CANARY = b"CANARY-5d41402abc4b"
"""In every file outside the source; must not be in anything that an import writes or says."""


@dataclass(frozen=True)
class Hostile:
    """Files and what must come of them: ``pairs`` and ``rejects`` are all rows, or else it is one clear error.

    Attributes:
        files: name -> content, below the folder of the source.
        source: what is imported, inside that folder.
        rejects: row id -> code.
        error: pattern of the error that refuses the whole source.
        named: what the notes must name: files that are not read.
    """

    format: str
    files: Mapping[str, Content]
    pairs: tuple[str, ...] = ()
    rejects: Mapping[str, str] = field(default_factory=dict)
    error: str | None = None
    named: tuple[str, ...] = ()
    source: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)

    def write(self, folder: Path, around: Surroundings) -> Path:
        """Make the files; returns the path to import."""
        folder.mkdir()
        for name, content in self.files.items():
            path = folder / os.fsdecode(os.fsencode(name))
            path.parent.mkdir(parents=True, exist_ok=True)
            if callable(content):
                content(path, around)
            elif isinstance(content, str):
                path.write_bytes(around.put_into(content).encode("utf-8", "surrogateescape"))
            else:
                path.write_bytes(picture(content) if isinstance(content, int) else content)
        return folder / self.source if self.source else folder


def write_canaries(folder: Path) -> Path:
    """Valid files that an import would read if it were led there."""
    folder.mkdir()
    image = encode_png(np.full((6, 8, 3), 77, np.uint8))
    text = b"tEXt" + b"Comment\0" + CANARY
    chunk = (len(text) - 4).to_bytes(4, "big") + text + crc(text)
    (folder / "canary.png").write_bytes(image[:33] + chunk + image[33:])
    (folder / "canary.txt").write_bytes(CANARY + b"\n")
    (folder / "canary.json").write_bytes(b'{"x": ["%s"]}' % CANARY)
    return folder


def crc(chunk: bytes) -> bytes:
    """The checksum of a PNG chunk."""
    return zlib.crc32(chunk).to_bytes(4, "big")


def fifo(path: Path, around: Surroundings) -> None:
    """A named pipe that nobody writes to: opening it to read never ends."""
    os.mkfifo(path)


def link(target: str) -> Content:
    """A symbolic link."""

    def make(path: Path, around: Surroundings) -> None:
        path.symlink_to(around.put_into(target))

    return make


def folder(path: Path, around: Surroundings) -> None:
    """A folder where a file is expected."""
    path.mkdir()
