"""DiffSpot (Tencent 2026): screenshots of real web pages of which one CSS property of one element changed, in Parquet
files with these columns:

=========================  =========================================================================================
``id``                     the pair's id
``image_before``, ``_after``  screenshots, as bytes or as ``{"bytes", "path"}``
``task_type``              visual_diff, or no_diff: one page rendered twice
``difficulty``             easy, medium, hard, no_diff; 28 rows "unknown", which are no_diff
``ground_truth_diff``      English, for people: the pair's one caption
``mutation_types``         ``["mutate_font_size"]``: without the prefix the pair's change type
=========================  =========================================================================================

All others (``domain``, ``mutation_dicts_json``, ``target_bbox_x``, ...) go into ``meta``. All pairs are of the test
split: the set is a benchmark.
"""

from __future__ import annotations

from typing import Any

from idc.data.readers.parquet import ParquetReader
from idc.data.schema import NO_CHANGE

_NAMES = {"id": "pair_id", "image_before": "before", "image_after": "after", "ground_truth_diff": "caption"}
_SAME = "there is no difference"
"""Caption of an unchanged pair that has none."""


class DiffSpotReader(ParquetReader):
    """Arguments and errors as of :class:`ParquetReader`."""

    names = _NAMES

    def _record(self, record: dict[str, Any]) -> dict[str, Any]:
        same = record.get("task_type") == "no_diff"
        operators = [str(name).removeprefix("mutate_") for name in record.get("mutation_types") or ()]
        kind = NO_CHANGE if same else operators[0] if len(operators) == 1 else None
        caption = record.get("caption") or (_SAME if same else None)
        return record | {"caption": caption, "change_type": kind, "split": "test"}
