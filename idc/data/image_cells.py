"""The cell of an image in a table: its bytes, or the name of a file."""

from __future__ import annotations

from typing import Any

from idc.data.files import OutsideSource, Reader, TooLarge
from idc.data.images import MAX_BYTES, ImageError
from idc.data.object_store import StorageError

_LONGEST_NAME = 300
"""Most characters of a file name in a message."""


def cell_bytes(cell: Any, reader: Reader) -> bytes:
    """The encoded image that a table's cell contains or names.

    Raises:
        ImageError: "missing file" (also of an empty cell), "outside the source", "too many bytes", "unreadable file",
            or "bad row" for a cell of another type.
        StorageError: object storage refuses, or does not answer: no fault of the row.
    """
    if cell is None or cell == "":
        raise ImageError("missing file")
    if not isinstance(cell, bytes | str):
        raise ImageError("bad row", "neither the name of a file nor the bytes of an image")
    try:
        return reader.read(cell, MAX_BYTES) if isinstance(cell, str) else cell
    except StorageError:
        raise
    except FileNotFoundError as exc:
        raise ImageError("missing file") from exc
    except OutsideSource as exc:
        raise ImageError("outside the source", str(exc)) from exc
    except TooLarge as exc:
        raise ImageError("too many bytes", str(exc)) from exc
    except (OSError, ValueError) as exc:
        raise ImageError("unreadable file", f"{type(exc).__name__}: {exc}") from exc


def cell_name(cell: Any) -> str:
    """How error messages refer to the image of such a cell."""
    if isinstance(cell, bytes):
        return "bytes in the table"
    if isinstance(cell, str) and cell:
        return cell if len(cell) <= _LONGEST_NAME else cell[:_LONGEST_NAME] + "..."
    return "the cell is empty" if cell is None or cell == "" else f"the cell has a {type(cell).__name__}"
