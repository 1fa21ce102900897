"""Faults of values that pydantic refused, one line each: dotted path, what is wrong, what was probably meant."""

from __future__ import annotations

import difflib
import typing
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ValidationError


def fault_lines(schema: type[BaseModel], values: Any, items: Sequence[Any]) -> list[str]:
    """One line for each fault, and for all of a union's members together.

    Args:
        values: that were refused.
        items: of the error, :meth:`pydantic.ValidationError.errors`.
    """
    locations: dict[tuple[int | str, ...], list[Any]] = {}
    for item in items:
        locations.setdefault(location_of(item, values), []).append(item)
    lines = []
    for location, faults in locations.items():
        if any(other[: len(location)] == location != other for other in locations):
            # A member of the union fits but for a part of it, and only this part is wrong.
            faults = [item for item in faults if item["loc"] == location or item["loc"][-1] == "[key]"]
        lines += _described(schema, location, faults) if faults else []
    return lines


def location_of(item: Any, values: Any) -> tuple[int | str, ...]:
    """The keys of a fault's ``loc`` that lead through the values. Others are pydantic's names for members of unions and
    for a mapping's key."""
    loc, absent = item["loc"], ()
    if item["type"] == "missing":
        loc, absent = loc[:-1], loc[-1:]
    location: list[int | str] = []
    for key in loc:
        if isinstance(values, Mapping) and key in values:
            values = values[key]
        elif isinstance(values, (list, tuple)) and isinstance(key, int):
            values = values[key] if key < len(values) else None
        else:
            continue
        location.append(key)
    return (*location, *absent)


def _described(schema: type[BaseModel], location: tuple[int | str, ...], faults: Sequence[Any]) -> list[str]:
    path, first = ".".join(map(str, location)), faults[0]
    if first["type"] == "extra_forbidden":
        section = _section_at(schema, location[:-1])
        names = list(section.model_fields) if section else []
        listed = f"; settings here: {', '.join(names)}" if names else ""
        return [f"{path}: no such setting{did_you_mean(str(location[-1]), names) or listed}"]
    if first["type"] == "missing":
        return [f"{path}: required, and not given"]
    if all(item["type"] == "literal_error" for item in faults):
        expected = [item["ctx"]["expected"].replace(" or ", ", ").split(",") for item in faults]
        choices = [choice.strip("' ") for words in expected for choice in words]
        hint = did_you_mean(str(first["input"]), choices)
        return [f"{path}: {first['input']!r} is not one of {', '.join(choices)}{hint}"]
    if first["type"] == "value_error":
        prefix = f"{path}." if path else ""
        return [f"{prefix}{line}" for line in str(first["ctx"]["error"]).splitlines()]
    texts = [f"{item['msg'][:1].lower()}{item['msg'][1:]}" for item in faults]
    members = [texts[0], *(text.removeprefix("input should be ") for text in texts[1:])]
    return [f"{path}: {' or '.join(dict.fromkeys(members))}, got {first['input']!r}"]


def first_error(error: ValidationError, values: Any = None) -> str:
    """The dotted path and the message of the first fault of a stored record; ``values``: of one that has unions."""
    first = error.errors()[0]
    location = first["loc"] if values is None else location_of(first, values)
    return f"{'.'.join(map(str, location))}: {first['msg']}"


def did_you_mean(word: str, choices: Sequence[str]) -> str:
    """The end of a fault's line: what was probably meant, or nothing."""
    close = difflib.get_close_matches(word, choices, n=1, cutoff=0.6)
    return f"; did you mean {close[0]!r}?" if close else ""


def model_of(annotation: Any) -> type[BaseModel] | None:
    """The section that a setting of this type is, or has."""
    for candidate in (annotation, *typing.get_args(annotation)):
        if isinstance(candidate, type) and issubclass(candidate, BaseModel):
            return candidate
    return None


def _section_at(schema: type[BaseModel], location: Sequence[int | str]) -> type[BaseModel] | None:
    section: type[BaseModel] | None = schema
    for key in location:
        field = None if section is None else section.model_fields.get(str(key))
        section = None if field is None else model_of(field.annotation)
    return section
