"""A table of a paper at one of several sizes: the table's file, and after it the file of a size of its system."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from idc.config import ConfigError, ConfigModel, did_you_mean, layered, load


class SizeConfig(ConfigModel):
    """A size at which all tables of a system can be run."""

    name: str = Field(min_length=1)
    """Which of the table's `sizes` counts."""
    suffix: str = ""
    """Added to the sweep's name and title, so that two sizes have two folders."""
    note: str = ""
    """Put before the table's note: what the size changes."""


def at_size(values: Mapping[str, Any]) -> dict[str, Any]:
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
