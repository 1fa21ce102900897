"""Files of sweeps, before they are a config: rows are filled from the paper's table, and a size is laid over them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import Field

from idc.config import ConfigError, ConfigModel, layered, load
from idc.evaluation.published_rows import ALL, load_published, published_rows
from idc.util.model_faults import did_you_mean


class PublishedSource(ConfigModel):
    """A table of :mod:`idc.evaluation.published_rows`."""

    paper: str
    """Name of the paper there."""
    table: str
    """The table, as in `Table 2`."""


def with_published_rows(values: Mapping[str, Any], columns: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The settings of a sweep, the numbers of whose rows are those of the paper's table that `published` names.

    A row whose `published` is a method of that table gets its numbers; of a table on several data sets, in the group
    with the title of each. Methods that no row names are quoted, in the paper's order.

    Args:
        columns: of a sweep that names none.

    Raises:
        ConfigError: there is no such table, or no such method in it.
    """
    result = {key: value for key, value in values.items() if key != "published"}
    columns, all_rows = values.get("columns", columns), values.get("rows", [])
    if "published" not in values or not all(isinstance(each, Mapping) for each in (*columns, *all_rows)):
        return result
    source = load(PublishedSource, None, values["published"])
    titles = {(column.get("metric"), column.get("subset") or ALL): str(column.get("title")) for column in columns}
    tables: dict[str, dict[str, dict[str, float]]] = {}  # title of a data set -> method -> title of a column -> number
    for name, data_set in load_published().data_sets.items():
        for row in published_rows(name):
            if (row.table.paper, row.table.table) == (source.paper, source.table):
                cells = {(metric, row.table.subset): number for metric, number in row.values.items()}
                numbers = {titles[cell]: number for cell, number in cells.items() if cell in titles}
                tables.setdefault(data_set.title, {}).setdefault(row.method, {}).update(numbers)
    if not tables:
        raise ConfigError([f"published: {source.paper} has no {source.table} among the published rows"])
    filled: list[dict[str, Any]] = []
    for group in dict.fromkeys(row.get("group", "") for row in all_rows):
        methods = tables.get(group, {}) if len(tables) > 1 else next(iter(tables.values()))
        rows = [row for row in all_rows if row.get("group", "") == group]
        positions = {row["published"]: n for n, row in enumerate(rows) if isinstance(row.get("published"), str)}
        for method in sorted(positions.keys() - methods.keys()):
            hint = did_you_mean(method, list(methods))
            raise ConfigError([f"rows: published: {method!r} is not in {source.table} of {source.paper}{hint}"])
        for method, position in positions.items():
            rows[position] = {**rows[position], "published": methods[method]}
        start = 0
        for method, numbers in methods.items():
            if method not in positions:
                filled.append({"label": method, "group": group, "quoted": True, "published": numbers})
            elif positions[method] >= start:
                filled += rows[start : positions[method] + 1]
                start = positions[method] + 1
        filled += rows[start:]
    return {**result, "rows": filled}


class SizeConfig(ConfigModel):
    """A size at which all tables of a system can be run."""

    name: str = Field(min_length=1)
    """Which of the table's `sizes` counts."""
    suffix: str = ""
    """Added to the sweep's name and title, so that two sizes have two folders."""
    note: str = ""
    """Put before the table's note: what the size changes."""


def with_size(values: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a sweep with those of its ``size`` laid over them.

    Raises:
        ConfigError: ``sizes`` are given and none of them is chosen, or the chosen one is not among them.
    """
    sizes = values.get("sizes") or {}
    if values.get("size") is None:
        if sizes:
            raise ConfigError([
                f"size: this table has the sizes {', '.join(sizes)}; give the file of one after it: "
                f"--config TABLE.yaml --config {next(iter(sizes))}.yaml"
            ])  # fmt: skip
        return dict(values)
    if not isinstance(values["size"], Mapping):
        raise ConfigError([f"size: {values['size']!r} is not a mapping with a name"])
    size = load(SizeConfig, None, values["size"])
    if size.name not in sizes:
        raise ConfigError([
            f"size: this table is not made in size {size.name!r}{did_you_mean(size.name, list(sizes))}; it has the "
            f"sizes {', '.join(sizes) or 'none'}"
        ])  # fmt: skip
    table = {key: value for key, value in values.items() if key not in ("size", "sizes")}
    result = layered(table, sizes[size.name] or {})
    if size.suffix:
        result["name"] = f"{result.get('name')}_{size.suffix}"
        result["title"] = f"{result.get('title', '')}, {size.suffix}"
    result["note"] = " ".join(filter(None, [size.note, result.get("note", "")]))
    return result
