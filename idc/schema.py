"""The one record every part of the project speaks: a pair of images and what changed between them.

At rest, pairs are rows of Parquet files with the columns of :func:`pair_arrow_schema`; the formats for one's own data
are documented in ``docs/data.md``.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

PAIR_SCHEMA_VERSION = 1

SPLITS = ("train", "val", "test")
"""The three splits. Models are selected on ``val``; ``test`` is touched once."""

NO_CHANGE = "none"
CHANGE_TYPES = ("color", "material", "add", "drop", "move", NO_CHANGE)
"""CLEVR-Change's change types by their official names; ``material`` is the paper's "texture"."""


@dataclass(frozen=True, slots=True)
class ChangePair:
    """One image pair with what is known about it.

    Attributes:
        pair_id: unique within a data set.
        before, after: encoded image bytes (PNG, JPEG, ...); a reader may hold a path or URI (``str``) until
            somebody asks for the bytes.
        captions: reference captions, may be empty.
        change_type: one of :data:`CHANGE_TYPES`, another word of the data set's own, or ``None`` if unknown.
        split: one of :data:`SPLITS`.
        mask: encoded PNG, non-zero where the scene changed, or ``None``.
        source: the data set and the place in it this pair was read from.
        meta: whatever else is known, JSON-serialisable (viewpoint IoU, scene graph, licence, ...).
    """

    pair_id: str
    before: bytes | str
    after: bytes | str
    captions: tuple[str, ...] = ()
    change_type: str | None = None
    split: str = "train"
    mask: bytes | None = None
    source: str = ""
    meta: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.pair_id:
            raise ValueError("pair_id is empty; every pair needs an id that is unique within its data set")
        if self.split not in SPLITS:
            raise ValueError(f"pair {self.pair_id!r}: split {self.split!r} is not one of {', '.join(SPLITS)}")

    def to_row(self) -> dict[str, Any]:
        """The pair as a row of the Parquet columns (``meta`` as JSON text)."""
        return {
            "pair_id": self.pair_id,
            "before": self.before,
            "after": self.after,
            "captions": list(self.captions),
            "change_type": self.change_type,
            "split": self.split,
            "mask": self.mask,
            "source": self.source,
            "meta": meta_text(self.meta),
        }

    @classmethod
    def from_row(cls, row: dict[str, Any]) -> ChangePair:
        """The inverse of :meth:`to_row`; columns that are not a pair's are ignored."""
        return cls(
            pair_id=row["pair_id"],
            before=row["before"],
            after=row["after"],
            captions=tuple(row["captions"] or ()),
            change_type=row["change_type"],
            split=row["split"],
            mask=row["mask"],
            source=row["source"] or "",
            meta=json.loads(row["meta"]) if row["meta"] else {},
        )


def meta_text(meta: dict[str, Any]) -> str:
    """``meta`` as it is stored: JSON that every reader accepts.

    Values that JSON has no form for (dates, bytes) are stored as their text.

    Raises:
        ValueError: it has NaN, an infinite number or half a character in it, is nested too deep, or has keys of
            several types.
    """
    try:
        text = json.dumps(meta, sort_keys=True, default=str, allow_nan=False)
        if "\\ud" in text:
            json.dumps(meta, ensure_ascii=False, default=str).encode()
    except UnicodeEncodeError:
        raise
    except (ValueError, TypeError, RecursionError) as exc:
        raise ValueError(f"meta is not JSON ({exc})") from exc
    return text


def pair_arrow_schema() -> pa.Schema:
    """The columns of a pair at rest."""
    import pyarrow as pa

    return pa.schema(
        [
            pa.field("pair_id", pa.string(), nullable=False),
            pa.field("before", pa.binary(), nullable=False),
            pa.field("after", pa.binary(), nullable=False),
            pa.field("captions", pa.list_(pa.string()), nullable=False),
            pa.field("change_type", pa.string()),
            pa.field("split", pa.string(), nullable=False),
            pa.field("mask", pa.binary()),
            pa.field("source", pa.string(), nullable=False),
            pa.field("meta", pa.string(), nullable=False),
        ]
    )
