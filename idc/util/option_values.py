"""Values on a command line: what the type of a setting says about them, and how their text is read."""

from __future__ import annotations

import types
import typing
from typing import Annotated, Any

import yaml
from pydantic import AfterValidator, BeforeValidator
from pydantic_core import PydanticCustomError


def _on_disk(path: str) -> str:
    if "://" in path:
        raise PydanticCustomError("on_disk", "must be on a disk that all its processes see, not a URI")
    return path


DiskPath = Annotated[str, AfterValidator(_on_disk)]
"""A path on a disk (of this machine, or shared by all nodes): a URI is refused, where ``Path`` would make a folder
``s3:`` of it."""


def is_text(annotation: Any) -> bool:
    """Whether a setting is a text, one of several words, or either of these and perhaps None."""
    return all(
        isinstance(word, str) if typing.get_origin(kind) is typing.Literal else kind is str
        for kind in _kinds(annotation)
        for word in typing.get_args(kind) or ("",)
    )


def is_several(annotation: Any) -> bool:
    """Whether a setting has several values, and perhaps None."""
    return any(typing.get_origin(kind) is tuple for kind in _kinds(annotation))


def listed(value: Any) -> Any:
    """The names of a text, or of several, each with commas between them; what is neither as it is."""
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, (list, tuple)) or not all(isinstance(text, str) for text in texts):
        return value
    return [name.strip() for text in texts for name in text.split(",") if name.strip()]


Names = Annotated[tuple[str, ...], BeforeValidator(listed)]
"""Names, which a text or each of several may list."""
Texts = Annotated[tuple[str, ...], BeforeValidator(lambda value: (value,) if isinstance(value, str) else value)]
"""A text, or several."""


def scalar(text: str) -> Any:
    """The value of ``key=value``: YAML, and numbers such as ``1e-4`` that YAML 1.1 takes for text."""
    value = yaml.safe_load(text)
    if isinstance(value, str):
        try:
            return float(value) if value.replace("_", "")[:1] in "+-.0123456789" else value
        except ValueError:
            return value
    return value


def _kinds(annotation: Any) -> list[Any]:
    """The alternatives of a type but None."""
    union = typing.get_origin(annotation) in (typing.Union, types.UnionType)
    kinds = [kind for kind in (typing.get_args(annotation) if union else (annotation,)) if kind is not type(None)]
    return [typing.get_args(kind)[0] if typing.get_origin(kind) is Annotated else kind for kind in kinds]
