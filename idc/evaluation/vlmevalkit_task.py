"""A data set of VLMEvalKit: one TSV file with both images of a pair in a cell, which the harness takes from ``LMUData``
as a custom one: it writes the predictions, and ``jobs/evaluate.py`` scores them."""

from __future__ import annotations

import base64
import csv
from collections.abc import Iterable
from pathlib import Path
from typing import Any

_COLUMNS = ("index", "pair_id", "image", "question", "answer")
"""``image`` and ``answer`` are Python lists as text: base64 of before and after, and the references."""


def write_vlmevalkit_task(out: Path, name: str, question: str, rows: Iterable[dict[str, Any]]) -> int:
    """Write ``name`` as TSV in ``out``; rows have the columns of the stored format. Returns their number."""
    out.mkdir(parents=True, exist_ok=True)
    number = 0
    with (out / f"{name}.tsv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, delimiter="\t", lineterminator="\n")
        writer.writerow(_COLUMNS)
        for number, row in enumerate(rows, start=1):
            images = [base64.b64encode(row[role]).decode() for role in ("before", "after")]
            writer.writerow([number - 1, row["pair_id"], images, question, row["captions"]])
    return number
