"""Readers bring data sets from outside into the one format; :func:`open_reader` chooses.

A reader for a new data set: a function ``read(annotations, config)`` over its annotation files in
:mod:`idc.data.readers.captioned_sets` or :mod:`idc.data.readers.question_sets` (anything else is a class as
:class:`idc.data.readers.base.PairReader`, with a branch in ``_open`` below), its name in ``Format``
(:mod:`idc.data.config`), and the files it is recognised by in :mod:`idc.data.readers.layouts`.
``tests/data/small_sets.py`` gets a small example, which every reader's tests then use.
"""

from __future__ import annotations

import os

from idc.data import files
from idc.data.config import Format, ImportConfig
from idc.data.object_store import first_look
from idc.data.readers.base import PairReader, access, printable


def open_reader(format: Format, path: str | os.PathLike[str] | files.Location, config: ImportConfig) -> PairReader:
    """The reader for a layout.

    Raises:
        ValueError: the source is missing, or does not have that layout.
    """
    source = _open(format, path, config)
    if not (config.images and source.extra.get("images", True)):
        why = "no images found" if config.images else "images=false"
        note = f"{why}: the pairs are annotations alone; captions made elsewhere can be scored, no model can run"
        source.extra |= {"images": False, "notes": [*source.extra["notes"], note]}
    source.extra["notes"] = [printable(note) for note in source.extra["notes"]]
    return source


def _open(format: Format, path: str | os.PathLike[str] | files.Location, config: ImportConfig) -> PairReader:
    """Each branch imports its reader alone."""
    location, allowed = files.locate(path), access(format, config)
    first_look(location.exists, str(path))
    if format == "folder":
        from idc.data.readers.folder import FolderReader

        return FolderReader(location, chunk_size=config.chunk_size, access=allowed)
    if format == "csv" or format == "jsonl":
        from idc.data.readers.table import TableReader

        return TableReader(location, format, chunk_size=config.chunk_size, access=allowed)
    if format == "parquet":
        from idc.data.readers.parquet import ParquetReader

        return ParquetReader(location, chunk_size=config.chunk_size, access=allowed)
    if format == "diffspot":
        from idc.data.readers.diffspot import DiffSpotReader

        return DiffSpotReader(location, chunk_size=config.chunk_size, access=allowed)
    if format == "instruct_pix2pix":
        from idc.data.readers.instruct_pix2pix import InstructPix2PixReader

        return InstructPix2PixReader(location, config)
    from idc.data.readers import captioned_sets, clevr_change, question_sets
    from idc.data.readers.annotations import AnnotationReader

    read = {"clevr_change": clevr_change.read, **captioned_sets.READERS, **question_sets.READERS}[format]
    return AnnotationReader(format, location, read, config)
