"""Opening Parquet and Arrow files without executing what is in them.

Ray Data registers a column type with pyarrow, ``ray.data.arrow_pickled_object``, whose values are unpickled when they
are read, by pyarrow's own functions too. A file of such a column could run any program in a process that has loaded
Ray Data. Only types are read here whose values are plain data.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

_PLAIN = frozenset(
    {
        *(f"arrow.{name}" for name in ("bool8", "fixed_shape_tensor", "json", "opaque", "uuid")),
        *(f"ray.data.arrow_{name}" for name in ("tensor", "tensor_v2", "variable_shaped_tensor")),
        "pandas.period",
        "pandas.interval",
    }
)
"""Extension types whose values are numbers and texts."""


def open_parquet(stream: pa.NativeFile, name: Any, **options: Any) -> pq.ParquetFile:
    """Open a Parquet file; only the footer is read.

    Args:
        name: the file, for errors.
        options: of ``ParquetFile``.

    Raises:
        ValueError: a column's type is not plain data (:func:`refuse_objects`).
        OSError, pyarrow.ArrowException: it is not a Parquet file, or is damaged.
    """
    parquet = pq.ParquetFile(stream, **options)
    refuse_objects(parquet.schema_arrow, name)
    return parquet


def refuse_objects(schema: pa.Schema, name: Any) -> None:
    """Refuse a schema with extension types other than those of plain data, whether or not Ray is loaded here.

    Raises:
        ValueError: naming the columns.
    """
    kinds = {field.name: kind for field in schema for kind in _extensions(field) if kind not in _PLAIN}
    if kinds:
        listed = ", ".join(f"{column} ({kind})" for column, kind in kinds.items())
        raise ValueError(
            f"{name} is refused: these columns hold objects of a program, which may run code when they are read: "
            f"{listed}; write them as plain columns, or leave them out of the file"
        )


def _extensions(field: pa.Field) -> Iterator[str]:
    if isinstance(field.type, pa.BaseExtensionType):
        yield field.type.extension_name
    name = (field.metadata or {}).get(b"ARROW:extension:name")
    if name is not None:  # a type that no library has registered in this process
        yield name.decode("utf-8", "replace")
    kind = field.type.storage_type if isinstance(field.type, pa.BaseExtensionType) else field.type
    if pa.types.is_dictionary(kind):
        yield from _extensions(pa.field(field.name, kind.value_type))
    elif pa.types.is_union(kind) or pa.types.is_nested(kind):
        for number in range(kind.num_fields):
            yield from _extensions(kind.field(number))
