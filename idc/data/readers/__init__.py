"""Readers bring data sets from outside into the one format: one module per layout, :func:`open_reader` chooses.

A reader for a new data set: its module here (``read(annotations, config)`` over annotation files, see
:mod:`idc.data.readers.annotations`; anything else a class as :class:`idc.data.readers.base.PairReader`), its name in
``Format`` (:mod:`idc.data.config`; a class also a branch in ``_open`` below), and the files it is recognised by in
:mod:`idc.data.readers.layouts`. ``tests/data/small_sets.py`` gets a small example, which every reader's tests then use.
"""

from __future__ import annotations

import importlib
import os

from idc.data import files
from idc.data.config import Format, ImportConfig
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
    if format == "folder":
        from idc.data.readers.folder import FolderReader

        return FolderReader(location, chunk_size=config.chunk_size, access=allowed)
    if format == "csv" or format == "jsonl":
        from idc.data.readers.table import TableReader

        return TableReader(location, format, chunk_size=config.chunk_size, access=allowed)
    if format == "parquet":
        from idc.data.readers.parquet import ParquetReader

        return ParquetReader(location, chunk_size=config.chunk_size, access=allowed)
    if format == "clevr_change":
        from idc.data.readers.clevr_change import ClevrChangeReader

        return ClevrChangeReader(location, config)
    if format == "instruct_pix2pix":
        from idc.data.readers.instruct_pix2pix import InstructPix2PixReader

        return InstructPix2PixReader(location, config)
    from idc.data.readers.annotations import AnnotationReader

    read = importlib.import_module(f"idc.data.readers.{format}").read
    return AnnotationReader(format, location, read, config)
