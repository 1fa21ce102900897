"""Reading the rows of a complete data set folder as a stream, in order. For random access see
:class:`idc.data.mapped_rows.MappedRows`.

Parquet and Arrow files are opened without executing what is in them (:func:`refuse_objects`). Ray Data registers a
column type with pyarrow, ``ray.data.arrow_pickled_object``, whose values are unpickled when they are read, by pyarrow's
own functions too: a file of such a column could run any program in a process that has loaded Ray Data.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from idc.data import files
from idc.data.manifest import AnyPath, Manifest, ManifestPart, Reject, complete_manifest, explain_read_errors

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


def iter_tables(
    path: AnyPath, columns: Sequence[str] | None = None, split: str | None = None, batch_size: int = 256
) -> Iterator[pa.Table]:
    """The rows of a complete folder as small tables, in order; memory is that of one batch.

    Raises:
        ValueError: the folder is missing or incomplete, a part is damaged, a column is not in it, or ``columns``
            include the images of a folder that has none.
    """
    folder = files.locate(path)
    manifest = complete_manifest(folder)
    manifest.need_images(path, columns or ())
    schema = _schema_of(folder, manifest)
    wanted = _chosen(schema, columns, folder).names
    for part in manifest.parts:
        with opened_part(folder, part, schema) as parquet:
            read = wanted if split is None or "split" in wanted else [*wanted, "split"]
            for batch in parquet.iter_batches(batch_size=batch_size, columns=read):
                table = pa.Table.from_batches([batch])
                if split is not None:
                    import pyarrow.compute as pc  # slow to import; most readers do not need it

                    table = table.filter(pc.equal(table["split"], split))
                if table.num_rows:
                    yield table.select(wanted).replace_schema_metadata(None)


@contextlib.contextmanager
def opened_part(folder: files.Location, part: ManifestPart, schema: pa.Schema) -> Iterator[pq.ParquetFile]:
    """A part of a folder, open to be read, once it is checked by its footer.

    Args:
        schema: of the folder (:func:`read_schema`).

    Raises:
        ValueError: the file is missing or damaged, or another file than the one that the manifest describes.
    """
    file = folder / part.file
    with explain_read_errors(file), file.open() as stream:
        parquet = open_parquet(stream, file)
        check_part(parquet, file, part, schema)
        yield parquet


def check_part(parquet: pq.ParquetFile, file: files.Location, part: ManifestPart, schema: pa.Schema) -> None:
    """Refuse a file in the place of a part.

    Raises:
        ValueError: it has another number of rows than in the manifest, or other columns than the first part.
    """
    rows, columns = parquet.metadata.num_rows, parquet.schema_arrow
    if rows != part.num_rows:
        fault = f"it has {rows} rows, the manifest says {part.num_rows}"
    elif not columns.equals(schema):
        other = sorted({field.name for field in set(columns) ^ set(schema)})
        fault = f"its columns are not those of the folder's first part ({', '.join(other[:5])})"
    else:
        return
    raise ValueError(
        f"{file} is another file than the manifest describes: {fault}; copy the folder again, or build it "
        "again with --overwrite"
    )


def iter_rows(
    path: AnyPath, columns: Sequence[str] | None = None, split: str | None = None, batch_size: int = 256
) -> Iterator[dict[str, Any]]:
    """The rows of a complete folder as dicts, in order, streaming; errors as :func:`iter_tables`."""
    for table in iter_tables(path, columns, split, batch_size):
        yield from table.to_pylist()


def read_table(path: AnyPath, columns: Sequence[str] | None = None, split: str | None = None) -> pa.Table:
    """All rows at once; for small columns (ids, captions) or small folders."""
    folder = files.locate(path)
    tables = list(iter_tables(folder, columns, split))
    return pa.concat_tables(tables) if tables else read_schema(folder, columns).empty_table()


def read_schema(path: AnyPath, columns: Sequence[str] | None = None) -> pa.Schema:
    """The columns of a complete folder, or the named ones, without metadata."""
    folder = files.locate(path)
    return _chosen(_schema_of(folder, complete_manifest(folder)), columns, folder)


def _schema_of(folder: files.Location, manifest: Manifest) -> pa.Schema:
    if not manifest.parts:
        raise ValueError(f"{folder} is empty: it has no parts")
    first = folder / manifest.parts[0].file
    with explain_read_errors(first), first.open() as stream:
        return open_parquet(stream, first).schema_arrow.remove_metadata()


def _chosen(schema: pa.Schema, columns: Sequence[str] | None, folder: files.Location) -> pa.Schema:
    """The named columns of a folder, by default all."""
    unknown = sorted(set(columns or ()) - set(schema.names))
    if unknown:
        raise ValueError(f"{folder} has no column {', '.join(unknown)}; it has {', '.join(schema.names)}")
    return schema if columns is None else pa.schema([schema.field(name) for name in columns])


def read_rejects(path: AnyPath) -> list[Reject]:
    """All rejected rows of a complete folder, in the order of the input."""
    folder = files.locate(path)
    return list(iter_rejects(folder, complete_manifest(folder)))


def iter_rejects(folder: files.Location, manifest: Manifest) -> Iterator[Reject]:
    """The rejected rows of the parts that a manifest names."""
    for part in manifest.parts:
        if part.rejects is not None:
            file = folder / part.rejects
            with explain_read_errors(file), file.open() as stream:
                table = open_parquet(stream, file).read()
            for row in table.to_pylist():
                yield Reject(row["row_id"], row["reason"])
