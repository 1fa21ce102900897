"""Reads captions and references made elsewhere, from files in the formats of the field's repositories.

References: JSONL of ``{"pair_id", "captions": [...]}`` (our own ``predictions.jsonl`` too), or of one ``caption`` per
line, with repeated ids; JSON in COCO form (``annotations`` of ``image_id`` and ``caption``), or an object of
id -> captions. Predictions: JSONL of
``pair_id`` and ``caption``, a JSON list of ``image_id`` and ``caption`` (COCO results), or an object of id -> caption;
the caption may be called ``prediction``, as in files of VLMEvalKit and DiffSpot.
Numbers as ids become text. Everything else is an error that names the file and the place: a key or an id that occurs
twice, facts of a pair that contradict an earlier row, a text that is not Unicode.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from idc.data.readers.base import SPLIT_NAMES
from idc.data.textfiles import JsonError, decode_text, parse_json, split_lines
from idc.evaluation.record import Prediction
from idc.metrics.coco import names


def read_captions(path: str | os.PathLike[str]) -> dict[str, str]:
    """Predictions, id -> caption.

    Raises:
        ValueError: names what has another form, or an id that occurs twice.
    """
    captions: dict[str, str] = {}
    for where, row in _rows(Path(path), "caption"):
        name, caption = _id(row, where), row.get("caption", row.get("prediction"))
        if name is None or not row.keys() & {"caption", "prediction"}:
            raise ValueError(f'{where}: not of the form {{"pair_id": ..., "caption": ...}}')
        if not isinstance(name, str) or not isinstance(caption, str):
            raise ValueError(f"{where}: pair_id and caption have to be text")
        if name in captions:
            raise ValueError(f"{where}: pair {name!r} is there twice")
        captions[name] = caption
    if not captions:
        raise ValueError(f"{path} has no captions")
    return captions


def read_references(path: str | os.PathLike[str], allow_empty: bool = False) -> list[Prediction]:
    """Pairs with their references and no caption yet, in the order of the file; without a split it is "".

    Args:
        allow_empty: keep references without words, which a protocol may count (:data:`idc.metrics.protocols.SPOT`).

    Raises:
        ValueError: naming what is not of one of the forms, an id that is there twice or has no captions.
    """
    pairs: dict[str, Prediction] = {}
    single: set[str] = set()
    for where, row in _rows(Path(path), "captions"):
        name = _id(row, where)
        if "captions" in row and "references" in row:
            raise ValueError(f"{where}: captions and references are two names of the same; keep one of them")
        captions = next((row[key] for key in ("captions", "references") if key in row), None)
        is_single = captions is None and isinstance(row.get("caption"), str)
        captions = [row["caption"]] if is_single else captions
        if not isinstance(name, str) or not isinstance(captions, list) or not all(isinstance(c, str) for c in captions):
            raise ValueError(
                f'{where}: not of the form {{"pair_id": ..., "captions": ["...", ...]}}. The annotations of a data set '
                "are imported first (jobs/import_dataset.py); give the folder as pairs= in place of references="
            )
        if not allow_empty and any(not caption.split() for caption in captions):
            raise ValueError(
                f"{where}: pair {name!r} has an empty reference; remove it, or give protocol=spot_single, which counts "
                "it as the published scores of Spot-the-Diff do"
            )
        if name in pairs and not (is_single and name in single):
            raise ValueError(f"{where}: pair {name!r} is there twice")
        pair = pairs.setdefault(name, Prediction(pair_id=name, caption="", split=""))
        pair.references += captions
        _merge_facts(pair, row, where)
        if is_single:
            single.add(name)
    if bare := [name for name, pair in pairs.items() if not pair.references]:
        raise ValueError(f"{path}: no references for {names(bare)}")
    if not pairs:
        raise ValueError(f"{path} has no references")
    return list(pairs.values())


def _merge_facts(pair: Prediction, row: dict[str, Any], where: str) -> None:
    """Add the optional facts in a row to its pair; rows of one pair must agree."""
    kinds: dict[str, Any] = {"change_type": str, "changed": bool, "split": str}
    for key, kind in kinds.items():
        if (value := row.get(key)) is None:
            continue
        if not isinstance(value, kind):
            raise ValueError(f"{where}: {key} is {value!r}")
        if key == "split" and value not in SPLIT_NAMES:
            raise ValueError(f"{where}: split {value!r} is not one of {', '.join(SPLIT_NAMES)}")
        value = SPLIT_NAMES[value] if key == "split" else value
        before = getattr(pair, key)
        if before not in (None, value) and not (key == "split" and before == ""):
            raise ValueError(f"{where}: pair {pair.pair_id!r}: {key} is {value!r}, in an earlier row {before!r}")
        setattr(pair, key, value)


def _id(row: dict[str, Any], where: str) -> Any:
    name = next((row[key] for key in ("pair_id", "image_id", "id") if key in row), None)
    return str(name) if isinstance(name, int) and not isinstance(name, bool) else name


def _rows(path: Path, key: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Rows with their place, from a file of any of the forms; ``key`` is the kind of values in an object of ids."""
    try:
        text = decode_text(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from None
    if path.suffix.lower() != ".json":
        for number, line in enumerate(split_lines(text), start=1):
            if line.strip():
                where = f"{path}, line {number}"
                yield where, _object(_parse(line, where), where)
        return
    content = _parse(text, str(path))
    if isinstance(content, list):
        rows = content
    elif not isinstance(content, dict):
        raise ValueError(f"{path} holds a {type(content).__name__}, neither a list nor an object")
    elif "annotations" in content:
        yield from _coco(content, str(path))
        return
    else:
        rows = [{"pair_id": name, key: _unwrap_single(value, key)} for name, value in content.items()]
    for number, row in enumerate(rows):
        yield f"{path}, entry {number}", _object(row, f"{path}, entry {number}")


def _unwrap_single(value: Any, key: str) -> Any:
    """The value of an id: a single caption becomes a list of one, and a list of one a single caption, as required."""
    if key == "captions" and isinstance(value, str):
        return [value]
    return value[0] if key == "caption" and isinstance(value, list) and len(value) == 1 else value


def _coco(content: dict[str, Any], path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    listed = {str(_id(_object(row, path), path)) for row in _list(content.get("images", []), path)}
    seen = set()
    for number, row in enumerate(_list(content["annotations"], path)):
        where = f"{path}, annotation {number}"
        row = _object(row, where)
        # The id of an annotation is its own, not its image's.
        of = {key: value for key, value in row.items() if key in ("image_id", "caption")}
        seen.add(str(_id(of, where)))
        yield where, of
    if listed and (bare := sorted(listed - seen)):
        raise ValueError(f"{path}: no references for {names(bare)}, which are listed under images")
    if listed and (stray := sorted(seen - listed)):
        raise ValueError(f"{path}: references for {names(stray)}, which are not listed under images")


def _parse(text: str, where: str) -> Any:
    try:
        return parse_json(text)
    except JsonError as error:
        raise ValueError(f"{where}: {error}") from None


def _object(row: Any, where: str) -> dict[str, Any]:
    if not isinstance(row, dict):
        raise ValueError(f"{where}: a {type(row).__name__} and not an object with pair_id and caption or captions")
    return row


def _list(rows: Any, where: Any) -> list[Any]:
    if not isinstance(rows, list):
        raise ValueError(f"{where}: images and annotations have to be lists")
    return rows
