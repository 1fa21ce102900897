"""The records of the data sets and their columns at rest: pairs and instructions.

Between the parts of the program rows travel as columns, in batches and Arrow tables: the contract is
:func:`pair_arrow_schema` and its sibling. :class:`ChangePair` and :class:`Instruction` are single rows as objects,
checked when they are made: for code that makes or reads rows one by one. The formats for one's own data are documented
in ``docs/data.md``.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

PAIR_SCHEMA_VERSION = 1
INSTRUCTION_SCHEMA_VERSION = 1

SPLITS = ("train", "val", "test")
"""The three splits. Models are selected on ``val``; ``test`` is touched once."""

NO_CHANGE = "none"
CHANGE_TYPES = ("color", "material", "add", "drop", "move", NO_CHANGE)
"""CLEVR-Change's change types by their official names; ``material`` is the paper's "texture"."""

IMAGE = "<image>"
"""Marks the place of the next image in the text of a turn or prompt."""


INSTRUCTION = "instruction"
"""Column of tables, and name in ``meta``: what an edited image was to become."""
CAPTION_ORIGINS = "caption_origins"
"""Optional column of pairs; a folder without it has captions of its data set alone."""


@dataclass(frozen=True, slots=True)
class CaptionOrigin:
    """Where a caption that a machine wrote comes from.

    Attributes:
        source: the model, exactly enough to find it again: name and version, or system and artifact identity.
        confidence: probability in [0, 1] that the caption is right, by the source's own estimate; None if it has none.
    """

    source: str
    confidence: float | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.source, str) or not self.source:
            raise ValueError(f"source is {self.source!r}; name the model that wrote the caption")
        if self.confidence is not None and not (_is_number(self.confidence) and 0 <= self.confidence <= 1):
            raise ValueError(f"confidence is {self.confidence!r}, not a number from 0 to 1")


@dataclass(frozen=True, slots=True)
class ChangePair:
    """An image pair with its annotations.

    Attributes:
        pair_id: unique within a data set.
        before, after: encoded image bytes (PNG, JPEG, ...), or a path or URI (``str``) that is not read yet.
        captions: reference captions, may be empty.
        change_type: one of :data:`CHANGE_TYPES`, another word of the data set's own, or ``None`` if unknown.
        split: one of :data:`SPLITS`.
        mask: encoded PNG, non-zero where the scene changed, or ``None``. With the classes of LEVIR-MCI the value is 128
            for a road and 255 for a building (:mod:`idc.data.change_masks`).
        source: the data set and the place in it this pair was read from.
        meta: other annotations, JSON-serialisable (viewpoint IoU, scene graph, licence, ...).
        caption_origins: per caption, the machine that wrote it, None for a caption of the data set; empty: all are.
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
    caption_origins: tuple[CaptionOrigin | None, ...] = ()

    def __post_init__(self) -> None:
        if not self.pair_id:
            raise ValueError("pair_id is empty; every pair needs an id that is unique within its data set")
        if self.split not in SPLITS:
            raise ValueError(f"pair {self.pair_id!r}: split {self.split!r} is not one of {', '.join(SPLITS)}")
        if self.caption_origins and len(self.caption_origins) != len(self.captions):
            raise ValueError(
                f"pair {self.pair_id!r}: {len(self.caption_origins)} caption_origins of {len(self.captions)} captions; "
                "give one per caption (null for a caption of the data set), or none"
            )

    def to_row(self) -> dict[str, Any]:
        """The pair as a row of the Parquet columns (``meta`` as JSON text).

        Raises:
            ValueError: an image is a name; Arrow would store it as if it were the image.
        """
        for name in ("before", "after"):
            _require_bytes(getattr(self, name), f"pair {self.pair_id!r}: {name}")
        row: dict[str, Any] = {
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
        if self.caption_origins:
            row[CAPTION_ORIGINS] = [origin and asdict(origin) for origin in self.caption_origins]
        return row

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> ChangePair:
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
            caption_origins=caption_origins(row.get(CAPTION_ORIGINS), f"pair {row['pair_id']!r}"),
        )


def caption_origins(value: Any, of: str) -> tuple[CaptionOrigin | None, ...]:
    """A cell of the column :data:`CAPTION_ORIGINS`; empty if every caption is of the data set.

    Raises:
        ValueError: beginning with ``of``: it is not a list of objects with ``source`` and ``confidence``.
    """
    if value is None:
        return ()
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise ValueError(f"{of}: {CAPTION_ORIGINS} is {value!r}, not a list with one entry per caption")
    origins: list[CaptionOrigin | None] = []
    for number, entry in enumerate(value):
        where = f"{of}: {CAPTION_ORIGINS}[{number}]"
        if entry is not None and not (isinstance(entry, Mapping) and entry.keys() <= {"source", "confidence"}):
            raise ValueError(f'{where} is {entry!r}, neither null nor {{"source": ..., "confidence": ...}}')
        try:
            origins.append(None if entry is None else CaptionOrigin(entry.get("source", ""), entry.get("confidence")))
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from None
    return tuple(origins) if any(origins) else ()


@dataclass(frozen=True, slots=True)
class Turn:
    """A turn of a dialogue.

    Attributes:
        role: `system`, `user` or `assistant`.
        text: with :data:`IMAGE` in the place of each image (not in an answer).
        task: of an answer: what is asked for (``caption``, ``binary``, ``count``, ... as the data set names it).
    """

    role: str
    text: str
    task: str | None = None

    def pieces(self) -> list[str]:
        """The text cut at its images, which are :data:`IMAGE` pieces; no piece is empty."""
        return [piece for piece in re.split(f"({re.escape(IMAGE)})", self.text) if piece]


@dataclass(frozen=True, slots=True)
class Instruction:
    """A dialogue about images whose answers are to be learned: a row of kind ``instructions``.

    Attributes:
        row_id: unique within a data set.
        images: encoded bytes or names, in the order of the :data:`IMAGE` marks of all turns together.
        turns: an optional system turn, then user and assistant in turn, ending with an answer.
        split: one of :data:`SPLITS`.
        of_pair: ``pair_id`` of the pair that it was made of, if any.
        source, meta: as of a pair.
    """

    row_id: str
    images: tuple[bytes | str, ...]
    turns: tuple[Turn, ...]
    split: str = "train"
    of_pair: str | None = None
    source: str = ""
    meta: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.row_id:
            raise ValueError("row_id is empty; every row needs an id that is unique within its data set")
        where = f"row {self.row_id!r}"
        if self.split not in SPLITS:
            raise ValueError(f"{where}: split {self.split!r} is not one of {', '.join(SPLITS)}")
        expected = "system" if self.turns and self.turns[0].role == "system" else "user"
        for number, turn in enumerate(self.turns):
            at = f"{where}: turns[{number}]"
            if turn.role != expected:
                raise ValueError(
                    f"{at}.role is {turn.role!r}, expected {expected!r}: an optional system turn, then user and "
                    "assistant in turn"
                )
            _require_text(turn.text, f"{at}.text")
            if turn.role == "assistant" and IMAGE in turn.text:
                raise ValueError(f"{at}.text: an answer has {IMAGE} in it; only system and user turns show images")
            if turn.role == "assistant":
                _require_text(turn.task, f"{at}.task")
            elif turn.task is not None:
                raise ValueError(f"{at}.task is {turn.task!r}; only answers (role 'assistant') have a task")
            expected = "assistant" if turn.role == "user" else "user"
        if not self.turns or self.turns[-1].role != "assistant":
            raise ValueError(f"{where}: turns: the last one must be an answer (role 'assistant')")
        for number, image in enumerate(self.images):
            if not image:
                raise ValueError(f"{where}: images[{number}] is empty")
        marks = sum(turn.text.count(IMAGE) for turn in self.turns)
        if marks != len(self.images):
            raise ValueError(f"{where}: {marks} times {IMAGE} in turns, and {len(self.images)} images; make them equal")

    def to_row(self) -> dict[str, Any]:
        """The row of :func:`instruction_arrow_schema`; errors as of :meth:`ChangePair.to_row`."""
        for number, image in enumerate(self.images):
            _require_bytes(image, f"row {self.row_id!r}: images[{number}]")
        row = asdict(self)
        return {**row, "images": list(self.images), "turns": list(row["turns"]), "meta": meta_text(self.meta)}

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Instruction:
        """The inverse of :meth:`to_row`; other columns are ignored."""
        return cls(
            row_id=row["row_id"],
            images=tuple(row["images"]),
            turns=tuple(Turn(turn["role"], turn["text"], turn.get("task")) for turn in row["turns"]),
            split=row.get("split") or "train",
            of_pair=row.get("of_pair"),
            source=row.get("source") or "",
            meta=json.loads(row.get("meta") or "{}"),
        )


def _require_bytes(image: bytes | str, what: str) -> None:
    if isinstance(image, str):
        raise ValueError(f"{what} is the name {image!r}; load its bytes before the row is stored")


def _require_text(value: Any, what: str) -> None:
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{what} is {value!r}, expected a text that is not empty")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def meta_text(meta: dict[str, Any]) -> str:
    """``meta`` as it is stored: JSON that every reader accepts; values without a JSON form (dates, bytes) as text.

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


def pair_arrow_schema(origins: bool = False) -> pa.Schema:
    """The columns of a pair at rest; with ``origins`` also :data:`CAPTION_ORIGINS`."""
    import pyarrow as pa

    columns = [
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
    if origins:
        origin = pa.struct([pa.field("source", pa.string(), nullable=False), pa.field("confidence", pa.float64())])
        columns.append(pa.field(CAPTION_ORIGINS, pa.list_(origin)))
    return pa.schema(columns)


def instruction_arrow_schema() -> pa.Schema:
    """The columns of an :class:`Instruction` at rest."""
    import pyarrow as pa

    turn = pa.struct(
        [
            pa.field("role", pa.string(), nullable=False),
            pa.field("text", pa.string(), nullable=False),
            pa.field("task", pa.string()),
        ]
    )
    return pa.schema(
        [
            pa.field("row_id", pa.string(), nullable=False),
            pa.field("images", pa.list_(pa.binary()), nullable=False),
            pa.field("turns", pa.list_(turn), nullable=False),
            pa.field("split", pa.string(), nullable=False),
            pa.field("of_pair", pa.string()),
            pa.field("source", pa.string(), nullable=False),
            pa.field("meta", pa.string(), nullable=False),
        ]
    )
