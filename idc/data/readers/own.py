"""The user's own pairs: what the readers of a folder of images and of tables (CSV, JSON lines, Parquet) share.

**Folder** (:mod:`idc.data.readers.own_folder`). The two images of a pair have the same name in two folders, or
``before`` and ``after`` (or ``A`` and ``B``) at the end of their names, in capitals or not, after ``_``, ``-``, a dot
or a space; the words also at the beginning, or alone in a folder of the pair. Sub-folders ``train``, ``val`` and
``test`` at the top give the split and begin the pair ids (``train/x``)::

    before/x.png  after/x.png  mask/x.png        x_before.png  x_after.png  x_mask.png        A/x.png  B/x.png
    x/before.png  x/after.png                    x_A.png  x_B.png  x (before).JPG  x (after).JPG  before x.png
    x.txt  (or before/x.txt, captions/x.txt)     one caption per line
    captions.json                                {"x": "text" | ["text", ...] | {"captions": ..., "change_type": ...}}

An image whose format is not supported is a reject if no other image has its role. Every other file that is not used
is counted and named in ``extra["notes"]``; a ``mask`` that ``captions.json`` names lies below the folder.

**Table** (:mod:`idc.data.readers.own_table`, :mod:`idc.data.readers.own_parquet`). ``before`` and ``after`` are
required; columns that are not listed here go into ``meta``:

======================  ============================================================================================
``pair_id``             unique; if no row has one, the row's number from 0, unreadable rows included
``before``, ``after``   path relative to the table's folder (out of it with ``allow_outside``), absolute path or URI
                        (of another host with ``allow_remote``); in Parquet also the bytes
``captions``            list of texts; in CSV one text, several separated by ``|``
``caption``             one text; a pair may have several rows with one caption each (CSV, JSON lines)
``change_type``         a word
``split``               train, val or test; where it is empty, val and test get the configured shares
``mask``                like ``before``; non-zero where the scene changed
``source``, ``meta``    text; a JSON object
======================  ============================================================================================

A table is scanned once for ids and positions and then read chunk by chunk: memory is a few bytes per row. What CSV may
hold between quotes is described in :mod:`idc.data.readers.csv_rows`.
"""

from __future__ import annotations

import hashlib
import posixpath
from collections import Counter
from typing import Any

from idc.data import files
from idc.data.image_cells import cell_name
from idc.data.readers.base import COLUMNS, SPLIT_NAMES
from idc.data.schema import CAPTION_ORIGINS
from idc.data.textfiles import JsonError, parse_json

_GIVEN = tuple(name for name in COLUMNS if name != "error")
"""The columns of a row that its record may fill."""
KNOWN = frozenset(_GIVEN) | {"caption"}
IMAGES = ("before", "after")
NUMBERED = "no pair_id: the pairs are named by their rows, from 0"
"""Note about a table without any id."""
_MOST_FOLDERS = 8
"""Most folders that a note lists."""


def record_row(records: list[dict[str, Any]], where: str) -> dict[str, Any]:
    """The row of a pair from its records (several if each holds one caption); a column gets its first value."""
    filled: dict[str, Any] = {}
    captions: list[Any] = []
    origins: list[Any] = []
    for record in records:
        captions += record_captions(record)
        record_origins = record.get(CAPTION_ORIGINS)
        origins += record_origins if isinstance(record_origins, list) else [None] * (len(captions) - len(origins))
        for name, value in record.items():
            if value not in (None, ""):
                filled.setdefault(name, value)
    row = {name: filled.get(name) for name in _GIVEN}
    row |= {"captions": captions, "source": row["source"] or where}
    if isinstance(row[CAPTION_ORIGINS], list):  # anything else is rejected by the loading stage
        row[CAPTION_ORIGINS] = origins
    other = {k: v for k, v in filled.items() if k not in KNOWN and not isinstance(v, bytes)}
    if other:
        meta = row["meta"]
        try:
            meta = parse_json(meta, keep_surrogates=True) if isinstance(meta, str) else meta
        except JsonError:
            return row  # the loading stage rejects it
        row["meta"] = {**other, **meta} if isinstance(meta, dict) else (meta or other)
    return row


class ImageFolders:
    """The folders below which the images of a table lie, by the names in its rows; nothing is opened.

    Only names that ``reader`` may read count. Folders are joined to those above them while there are more than
    :data:`_MOST_FOLDERS`, so that memory does not grow with the table.
    """

    def __init__(self, reader: files.Reader) -> None:
        self._base, self._access = reader.folder.local or reader.folder.text, reader.access
        self._folders: set[str] = set()

    def add(self, record: dict[str, Any]) -> None:
        """Count the images that a record names."""
        for role in (*IMAGES, "mask"):
            name = record.get(role)
            if isinstance(name, str) and name and (folder := self._folder(name)) is not None:
                self._add(folder)

    def _folder(self, name: str) -> str | None:
        name = name.removeprefix("file://").replace("\\", "/")
        if "://" in name:
            return name.rpartition("/")[0] if self._access.remote else None
        if not name.startswith("/") and not files.leaves_folder(name):
            return self._base
        if not name.startswith("/") and not self._access.outside:
            return None
        folder = posixpath.dirname(files.join(self._base, name))
        return folder if "://" in folder else posixpath.normpath(folder)

    def _add(self, folder: str) -> None:
        if any(f"{folder}/".startswith(f"{above.rstrip('/')}/") for above in self._folders):
            return
        self._folders = {below for below in self._folders if not f"{below}/".startswith(f"{folder.rstrip('/')}/")}
        self._folders.add(folder)
        if len(self._folders) > _MOST_FOLDERS:
            deepest = max(self._folders, key=lambda path: path.count("/"))
            if (above := posixpath.dirname(deepest)) not in ("", deepest):  # s3://bucket becomes s3:, and / stays
                self._folders.remove(deepest)
                self._add(above)

    def note(self) -> list[str]:
        """One line that names the folders, as a list; empty if the rows name no file."""
        return [f"images are read below {', '.join(map(cell_name, sorted(self._folders)))}"] if self._folders else []


def record_captions(record: dict[str, Any]) -> list[Any]:
    """The captions that a record has under ``captions`` and ``caption``."""
    value = record.get("captions")
    captions = list(value) if isinstance(value, list) else [] if value is None else [value]
    return captions if record.get("caption") is None else [*captions, record["caption"]]


def id_error(value: Any, where: str) -> str | None:
    """The reason why a value cannot be a pair id (text or a number), or None."""
    if value in (None, ""):
        return f"no pair id: {where}"
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return f"bad row: pair_id of {where} is a {type(value).__name__}, not text or a number"
    return None


def must_have(names: list[str], where: str) -> None:
    """Refuse a table without the required columns, or with two of one name.

    Raises:
        ValueError: names the absent or repeated columns.
    """
    if repeated := [name for name, count in Counter(names).items() if count > 1 and name]:
        raise ValueError(f"{where} has the column {', '.join(map(repr, repeated))} more than once; rename one of them")
    absent = [name for name in IMAGES if name not in names]
    if absent:
        raise ValueError(
            f"{where} has no column {', '.join(absent)}; it has {', '.join(map(repr, names)) or 'none'}. "
            f"Required: {', '.join(IMAGES)}; known: {', '.join(sorted(KNOWN))}"
        )


def split_name(value: Any) -> str:
    """Our name of a split, or the input's name if it is none of ours."""
    name = str(value).strip().lower()
    return SPLIT_NAMES.get(name, name)


def digest_of(value: Any) -> bytes:
    """A short key for a value, to find repeated ones."""
    return hashlib.blake2b(repr(value).encode("utf-8", "surrogateescape"), digest_size=12).digest()
