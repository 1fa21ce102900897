"""Files of sweeps, before they are a config: rows are filled from the paper's table, and a size is laid over them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from idc.config import ConfigError, ConfigModel, layered, load
from idc.evaluation.published_rows import ALL, load_published
from idc.util.model_faults import did_you_mean

_TITLES = {"BLEU-4": "B", "METEOR": "M", "ROUGE-L": "R", "CIDEr": "C", "SPICE": "S", "S_m*": "S"}
"""Metric -> title of its column."""


class PublishedSource(ConfigModel):
    """A table of :mod:`idc.evaluation.published_rows`."""

    paper: str
    """Name of the paper there."""
    table: str
    """The table, as in `Table 2`."""


def with_published_rows(values: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a sweep, the numbers of whose rows are those of the paper's table that `published` names, and its
    columns, if it names none.

    A row whose `published` is a method of that table gets its numbers; of a table on several data sets, in the group
    with the title of each. Methods that no row names are quoted, in the paper's order.

    Raises:
        ConfigError: there is no such table, or no such method in it.
    """
    result = {key: value for key, value in values.items() if key != "published"}
    columns, all_rows = values.get("columns", []), values.get("rows", [])
    if "published" not in values or not all(isinstance(item, Mapping) for item in (*columns, *all_rows)):
        return result
    source, published = load(PublishedSource, None, values["published"]), load_published()
    key = (source.paper, source.table, "")
    parts = [table for table in published.tables if (table.paper, table.table, table.variant) == key]
    if not parts:
        raise ConfigError([f"published: {source.paper} has no {source.table} among the published rows"])
    of_paper = [{"title": _TITLES.get(metric, metric), "metric": metric} for metric in parts[0].columns]
    result["columns"] = columns or of_paper
    titles = {(column.get("metric"), column.get("subset") or ALL): column.get("title") for column in result["columns"]}
    tables: dict[str, dict[str, dict[Any, float]]] = {}  # title of a data set -> method -> title of a column -> number
    for part in parts:
        methods = tables.setdefault(published.data_sets[part.data_set].title, {})
        for method, scores in part.scores().items():
            cells = {titles.get((metric, part.subset)): number for metric, number in scores.items()}
            methods.setdefault(method, {}).update({title: number for title, number in cells.items() if title})
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
