"""Captions that people or models have ranked, from and to the files of TRL and LLaMA-Factory: rows of kind
``preferences``.

A file is JSON lines, or one JSON array. Of each row

============= =========================================================================================================
prompt        ``prompt`` (TRL), ``conversations`` or ``messages`` (LLaMA-Factory's sharegpt), or ``instruction`` and
              ``input`` (its alpaca): a text or a list of messages of one user, with at most a system turn before
chosen,       ``chosen`` and ``rejected``: a text, a message, or a list of one message
rejected
images        ``images`` or ``image``: names of files, relative to the folder of the file or to ``images``
============= =========================================================================================================

and, if they are there, ``id``, ``split``, ``score_chosen`` and ``score_rejected`` (TRL's datasets). Messages have
``role`` and ``content`` (a text, or parts of type ``text`` and ``image``), or ``from`` and ``value``. Images that the
prompt does not mark with ``<image>`` come before it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from pydantic import Field

from idc.config import ConfigModel, missing
from idc.data import files
from idc.data.images import ImageError, stored_bytes
from idc.data.pipeline import Batch, StageSpec, good_rows, with_errors
from idc.data.store import DatasetFolder, fingerprint
from idc.data.textfiles import JsonError, decode_text, parse_json, split_lines
from idc.schema import IMAGE, PREFERENCE_SCHEMA_VERSION, Preference, preference_arrow_schema

_VERSION = 1
"""Version of the imported rows; to be raised if the same file would give others."""
_USERS, _ANSWERS = ("user", "human"), ("assistant", "gpt")

Columns = Literal["trl", "llama_factory"]
"""Columns of a file that is written: TRL's ``prompt`` with messages, or LLaMA-Factory's ``conversations``."""


class ImportPreferencesJob(ConfigModel):
    """Import ranked captions into a data set folder of kind preferences."""

    source: str = Field(min_length=1)
    """File of TRL's or LLaMA-Factory's columns, JSON lines or a JSON array. Path or URI."""
    images: str | None = None
    """Folder to which the names of images are relative. Default: that of the file."""
    out: str = Field(min_length=1)
    """The data set folder to write. Path or URI."""
    chunk_size: int = Field(default=32, ge=1, le=10_000)
    """Rows per chunk of work (one Parquet part)."""
    max_pixels: int = Field(default=50_000_000, ge=1)
    """Most pixels of an image; larger ones are rejected before they are decoded."""
    max_reject_share: float = Field(default=0.05, ge=0, le=1)
    """The job fails if more than this share of the rows is rejected."""

    def preflight(self) -> Iterator[str]:
        yield from missing(self.source, "source")
        yield from missing(self.images, "images")


def preference_of(row: Mapping[str, Any], number: int, source: str) -> Preference:
    """The preference of a row of a file; its images are names.

    Raises:
        ValueError: beginning with the field that is not usable.
    """
    named = row.get("images", row.get("image")) or ()
    images = (named,) if isinstance(named, str) else tuple(named)
    prompt = _prompt(row)
    marks = prompt.count(IMAGE)
    if marks == 0:
        prompt = IMAGE * len(images) + prompt
    scores = (row.get("score_chosen"), row.get("score_rejected"))
    return Preference(
        row_id=str(row.get("id", f"row-{number}")),
        images=images,
        prompt=prompt,
        chosen=_answer(row, "chosen"),
        rejected=_answer(row, "rejected"),
        chosen_score=None if None in scores else scores[0],
        rejected_score=None if None in scores else scores[1],
        split=row.get("split") or "train",
        source=source,
    )


def columns_of(preference: Preference, columns: Columns) -> dict[str, Any]:
    """The row of a file that :func:`preference_of` reads as this preference, whose images are names."""
    row = {"id": preference.row_id, "split": preference.split, "images": list(preference.images)}
    answers = {"chosen": preference.chosen, "rejected": preference.rejected}
    if columns == "llama_factory":
        said = {name: {"from": "gpt", "value": text} for name, text in answers.items()}
        return {**row, "conversations": [{"from": "human", "value": preference.prompt}], **said}
    parts: list[dict[str, str]] = []
    for number, text in enumerate(preference.prompt.split(IMAGE)):
        parts += [{"type": "image"}] if number else []
        parts += [{"type": "text", "text": text}] if text else []
    messages = {name: [{"role": "assistant", "content": [{"type": "text", "text": text}]}]
                for name, text in answers.items()}  # fmt: skip
    return {**row, "prompt": [{"role": "user", "content": parts}], **messages}


def _prompt(row: Mapping[str, Any]) -> str:
    for name in ("prompt", "conversations", "messages"):
        if row.get(name):
            value = row[name]
            if isinstance(value, str):
                return value
            turns = [_message(turn, name) for turn in value]
            if [role for role, _ in turns if role != "system"] not in [[user] for user in _USERS]:
                roles = ", ".join(role for role, _ in turns)
                raise ValueError(f"{name}: turns of {roles}; a preference has one question, of a user")
            return "\n".join(text for _, text in turns)
    if row.get("instruction"):
        return "\n".join(text for text in (row["instruction"], row.get("input")) if text)
    raise ValueError("prompt: missing; a row has prompt (TRL), or conversations or instruction (LLaMA-Factory)")


def _answer(row: Mapping[str, Any], name: str) -> str:
    value = row.get(name)
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if isinstance(value, str):
        return value
    if not isinstance(value, Mapping):
        raise ValueError(f"{name}: {value!r:.60} is no text and no single message")
    role, text = _message(value, name)
    if role not in _ANSWERS:
        raise ValueError(f"{name}: a message of {role}, not of the assistant")
    return text


def _message(turn: Any, where: str) -> tuple[str, str]:
    """Role and text of a message, with a mark for each image part."""
    if not isinstance(turn, Mapping) or not ({"role", "content"} <= turn.keys() or {"from", "value"} <= turn.keys()):
        raise ValueError(f"{where}: {turn!r:.60} is no message with role and content, or from and value")
    content = turn.get("content", turn.get("value"))
    if isinstance(content, list):
        content = "".join(IMAGE if part.get("type") == "image" else str(part.get("text", "")) for part in content)
    return str(turn.get("role", turn.get("from"))), str(content)


@dataclass(frozen=True)
class RankedRows:
    """The rows of a file in chunks; picklable."""

    rows: Sequence[Mapping[str, Any]]
    name: str
    chunk_size: int

    @property
    def num_chunks(self) -> int:
        return -(-len(self.rows) // self.chunk_size)

    def read(self, chunk_id: int) -> Batch:
        numbers = list(range(len(self.rows)))[chunk_id * self.chunk_size :][: self.chunk_size]
        return {"index": numbers, "row": [self.rows[number] for number in numbers]}


class LoadPreferences:
    """Stage: rows of a file to rows of kind preferences, in the column ``preference``."""

    def __init__(self, reader: files.Reader, max_pixels: int, name: str) -> None:
        self.reader, self.max_pixels, self.name = reader, max_pixels, name

    def __call__(self, batch: Batch) -> Batch:
        batch = {**with_errors(batch), "preference": [None] * len(batch["index"])}
        for i in good_rows(batch):
            try:
                preference = preference_of(batch["row"][i], batch["index"][i], f"{self.name}, row {batch['index'][i]}")
                images = tuple(self._image(name) if isinstance(name, str) else name for name in preference.images)
                batch["preference"][i] = replace(preference, images=images).to_row()
            except (ValueError, OSError, TypeError, AttributeError) as error:
                code = "image" if isinstance(error, ImageError | OSError) else "row"
                batch["error"][i] = f"{code}: {error}"
        return batch

    def _image(self, name: str) -> bytes:
        return stored_bytes(self.reader.read(name), self.max_pixels)


def open_preferences(
    job: ImportPreferencesJob, overwrite: bool = False
) -> tuple[DatasetFolder, RankedRows, list[StageSpec]]:
    """The folder, source and stage of an import, for :func:`idc.data.pipeline.run_local` or its counterpart on Ray.

    Raises:
        ValueError: the file cannot be read, or the folder holds something else.
    """
    location = files.locate(job.source)
    rows = _rows(location)
    images = location.parent if job.images is None else files.locate(job.images)
    counted = job.model_dump(exclude={"source", "images", "out", "max_reject_share"})
    folder = DatasetFolder.open_for_build(
        job.out,
        kind="preferences",
        schema=preference_arrow_schema(),
        fingerprint=fingerprint("preferences", _VERSION, PREFERENCE_SCHEMA_VERSION, counted, rows),
        config=job.model_dump(mode="json"),
        num_chunks=-(-len(rows) // job.chunk_size),
        overwrite=overwrite,
    )
    stage = StageSpec(LoadPreferences, {"reader": files.Reader(images), "max_pixels": job.max_pixels,
                                        "name": location.name})  # fmt: skip
    return folder, RankedRows(rows, location.name, job.chunk_size), [stage]


def preference_rows(batch: Batch) -> list[dict[str, Any]]:
    """The rows of the folder, from the last stage's batch."""
    return list(batch["preference"])


def _rows(location: files.Location) -> list[dict[str, Any]]:
    text = decode_text(location.read())
    try:
        if text.lstrip().startswith("["):
            rows = parse_json(text)
        else:
            rows = [parse_json(line) for line in split_lines(text) if line.strip()]
    except JsonError as error:
        raise ValueError(f"{location}: {error}") from None
    if not rows or not all(isinstance(row, dict) for row in rows):
        raise ValueError(f"{location}: expected JSON objects, one a line or in one array")
    return rows
