"""Complete folders of rows, as jobs leave them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from idc.data.pipeline import Batch, Source
from idc.data.schema import ChangePair, pair_arrow_schema
from idc.data.store import DatasetFolder


def write_rows(
    path: Path | str,
    rows: Sequence[Mapping[str, Any] | ChangePair],
    kind: str = "pairs",
    schema: pa.Schema | None = None,
    *,
    rows_per_part: int | None = None,
    fingerprint: str = "f",
    config: Mapping[str, Any] | None = None,
    extra: Mapping[str, Any] | None = None,
) -> str:
    """Write a folder, of pairs with all rows in one part unless other things are given; returns its path.

    Args:
        rows: as the folder stores them, or pairs.
        extra: of the manifest.
    """
    stored = [row.to_row() if isinstance(row, ChangePair) else dict(row) for row in rows]
    size = rows_per_part or max(len(stored), 1)
    parts = [stored[start : start + size] for start in range(0, len(stored), size)]
    folder = DatasetFolder.open_for_build(
        str(path), kind=kind, schema=schema or pair_arrow_schema(), fingerprint=fingerprint, config=dict(config or {}),
        num_chunks=len(parts), extra=dict(extra or {}),
    )  # fmt: skip
    for number, part in enumerate(parts):
        folder.write_chunk(number, part)
    folder.finish()
    return str(path)


def read_chunks(source: Source) -> list[Batch]:
    """All chunks of a source, in order."""
    return [source.read(chunk) for chunk in range(source.num_chunks)]


def read_log(path: Path | str) -> list[dict[str, Any]]:
    """The lines of a run's log.jsonl."""
    return [json.loads(line) for line in Path(path).read_text(encoding="utf-8").splitlines()]
