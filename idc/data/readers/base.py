"""Shared parts of all readers: the columns of their rows, the protocol, what names may reach, notes about unread files.

A reader is a :class:`PairReader`: a source whose chunks have the columns :data:`COLUMNS`, with images still as file
names. :class:`idc.data.importing.LoadPairs` reads and checks the images. Rejects have these codes:

``missing partner`` ``missing file`` ``unreadable file`` ``empty file`` ``truncated image`` ``damaged image``
``not an image`` ``too many pixels`` ``too much metadata`` ``too many bytes`` ``unsupported mode``
``outside the source`` ``duplicate pair id`` ``no pair id`` ``not UTF-8`` ``bad row`` ``unreadable row`` ``bad file``
``bad split`` ``unplaced image``

**What is read.** The names inside a data set were chosen by its author. They may lead to regular files below the
source, after resolving links (:class:`idc.data.files.Access`, :func:`access`). The user's own tables (csv, jsonl,
parquet) may also name any local file by its absolute path, one outside of their folder by a relative path with
``allow_outside``, and other hosts with ``allow_remote``. Files of a source that are not read are counted and named in
the manifest's ``notes`` (:func:`unread`).

**Annotations alone.** Where the images of a data set are absent (or with ``images=false``), its pairs have ``before``
and ``after`` of zero bytes, and ``extra["images"]`` of the manifest is false. Jobs that need pixels refuse such a
folder (:meth:`idc.data.manifest.Manifest.need_images`); captions made elsewhere can be scored against it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Any, Protocol

from idc.data import files
from idc.data.config import AccessConfig
from idc.data.images import FORMAT_NAMES
from idc.data.pipeline import Batch, Source
from idc.data.schema import CAPTION_ORIGINS, SPLITS

COLUMNS = (
    *("pair_id", "before", "after", "captions", CAPTION_ORIGINS, "change_type", "split", "mask", "source", "meta"),
    "error",
)

SPLIT_NAMES = {
    **{name: name for name in SPLITS},
    "training": "train",
    "valid": "val",
    "validation": "val",
    "dev": "val",
    "testing": "test",
}
"""Names of splits in the input -> ours."""


class PairReader(Source, Protocol):
    """A source of pairs from outside.

    Attributes:
        fingerprint: of the input: listings, tables and captions, not of the pixels.
        reader: reads the images that the rows name.
        extra: values for the manifest: counts and ``notes`` for the user; ``images`` is false if there are annotations
            alone, ``caption_origins`` is true if the input has that column.
    """

    fingerprint: str
    reader: files.Reader
    extra: dict[str, Any]


TABLES = ("csv", "jsonl", "parquet")
"""Layouts whose paths the user wrote."""


def access(format: str, config: AccessConfig) -> files.Access:
    """Files that the names in a source of this layout may reach."""
    if format not in TABLES:
        return files.Access(links=config.follow_links)
    return files.Access(config.follow_links, local=True, outside=config.allow_outside, remote=config.allow_remote)


def unread(names: Sequence[str], what: str) -> list[str]:
    """A note about the files of a source that are not read, as a list; empty if there are none.

    >>> unread(["a.md", "b.md", "c.docx"], "neither images nor captions")
    ["not read: 3 files that are neither images nor captions (2 .md, 1 .docx), first 'a.md'"]
    """
    if not names:
        return []
    kinds = Counter(PurePosixPath(name).suffix.lower() or "without suffix" for name in names)
    most = [f"{count} {kind}" for kind, count in kinds.most_common(5)]
    more = ["..."] if len(kinds) > len(most) else []
    files = "1 file that is" if len(names) == 1 else f"{len(names)} files that are"
    return [f"not read: {files} {what} ({', '.join([*most, *more])}), first {printable(names[0])!r}"]


def unread_images(names: Sequence[str]) -> list[str]:
    """As :func:`unread`, for images whose format is not supported."""
    return unread(names, f"none of {FORMAT_NAMES}")


def outside_rows(tree: files.Tree, root: files.Location) -> list[dict[str, Any]]:
    """A reject for each linked folder that lies outside of the source and was not followed."""
    error = "outside the source: a link to a folder that lies elsewhere; follow_links=true follows it"
    return [{"pair_id": root.relative(path), "error": error} for path in tree.outside]


def printable(text: str) -> str:
    """Text with bytes that were not UTF-8 written as ``\\xff``."""
    unknown = any("\ud800" <= c < "\udc80" or "\udcff" < c <= "\udfff" for c in text)  # no bytes stand behind them
    return text.encode("utf-8", "replace" if unknown else "surrogateescape").decode("utf-8", "backslashreplace")


def rows_to_batch(rows: list[dict[str, Any]]) -> Batch:
    """Rows with some of :data:`COLUMNS` as a batch with all of them."""
    return {name: [row.get(name) for row in rows] for name in COLUMNS}
