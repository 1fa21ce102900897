"""Rows of pairs from the numbers of scenes: what the stages that render share."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from idc.data.pipeline import Batch, with_errors
from idc.data.schema import ChangePair, pair_arrow_schema
from idc.rendered.draw import UnplaceableScene


def rows_of_scenes(batch: Batch, pairs: Callable[[int], Iterable[ChangePair]], name: Callable[[int], str]) -> Batch:
    """The columns of the pairs of the scenes in the column ``index``.

    Args:
        pairs: the pairs of a scene; a scene that it cannot place becomes one row with the error.
        name: id of such a row.
    """
    batch = with_errors(batch)
    rows: list[dict[str, Any]] = []
    for i in range(len(batch["error"])):
        index, error = int(batch["index"][i]), batch["error"][i]
        if error is None:
            try:
                rows += [{**pair.to_row(), "error": None} for pair in pairs(index)]
                continue
            except UnplaceableScene as exc:
                error = f"unplaceable scene: {exc}"
        rows.append({"pair_id": name(index), "error": error})
    return {name: [row.get(name) for row in rows] for name in (*pair_arrow_schema().names, "error")}
