"""The published rows of five papers, from ``published_rows.yaml``."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

import yaml
from pydantic import BaseModel, ConfigDict

ALL = "all"
"""The subset of all pairs."""


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Paper(_Record):
    """A paper whose tables were transcribed."""

    method: str
    """The method it proposes."""
    title: str
    authors: str


class DataSet(_Record):
    """A data set of the field and its test split."""

    title: str
    test: dict[str, int]
    """Subset -> pairs."""
    source: str
    """Source of the numbers of pairs."""


class PublishedTable(_Record):
    """Rows of a table that share a data set, subset and protocol."""

    paper: str
    table: str
    data_set: str
    subset: str = ALL
    variant: str = ""
    """How the data were altered (robustness), if they were."""
    protocol: str
    note: str = ""
    columns: tuple[str, ...]
    rows: tuple[tuple[str | float | None, ...], ...]
    """Method and a number (or nothing) for each column."""

    def scores(self) -> dict[str, dict[str, float]]:
        """Method -> column -> number."""
        named: dict[str, Any] = {str(name): zip(self.columns, values, strict=True) for name, *values in self.rows}
        return {name: {c: v for c, v in cells if v is not None} for name, cells in named.items()}


class PublishedRows(_Record):
    """The whole file."""

    papers: dict[str, Paper]
    data_sets: dict[str, DataSet]
    tables: tuple[PublishedTable, ...]


class PublishedRow(NamedTuple):
    """A method, as printed, in a table of a paper that may propose it itself, and its numbers as printed by metric."""

    method: str
    own: bool
    values: dict[str, float]
    table: PublishedTable


@cache
def load_published() -> PublishedRows:
    """The transcribed rows."""
    text = files("idc.evaluation").joinpath("published_rows.yaml").read_text(encoding="utf-8")
    return PublishedRows.model_validate(yaml.safe_load(text))


def published_rows(data_set: str) -> Iterator[PublishedRow]:
    """All rows of a data set, in the order of the file."""
    published = load_published()
    for table in published.tables:
        if table.data_set != data_set:
            continue
        method = published.papers[table.paper].method
        for name, numbers in table.scores().items():
            yield PublishedRow(name, name.startswith(method), numbers, table)
