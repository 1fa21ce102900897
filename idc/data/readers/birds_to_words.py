"""Birds-to-Words (Forbes et al. 2019): the official table, and the tokenised texts others made of it.

    birds-to-words-v1.0.tsv     eleven columns with a header, one description per row:
                                img1ObservationURL img1ImgURL img1Species img1Selection, the same four of img2,
                                split annN description
    train.json val.json test.json    one {"img1": "647514", "img2": "5595152", "description": ["animal1", "is", ...]}
                                per line; the description is a list of tokens, or a list of such lists

A pair is two photographs: ``647514_5595152``, the numbers that iNaturalist gives them (in the table part of the image's
address). Its descriptions by several annotators, in rows of their own, are its references. The photographs are not part
of the data set; they are found under their numbers (``647514.jpg``, ``.jpeg`` or ``.png``) in any folder.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from idc.data.config import ImportConfig
from idc.data.readers.annotations import Annotations, Row
from idc.data.textfiles import JsonError, parse_json, split_lines

COLUMNS = (
    "img1ObservationURL", "img1ImgURL", "img1Species", "img1Selection",
    "img2ObservationURL", "img2ImgURL", "img2Species", "img2Selection",
    "split", "annN", "description",
)  # fmt: skip
_KEPT = ("img1Species", "img1Selection", "img2Species", "img2Selection", "img1ImgURL", "img2ImgURL")


def read(annotations: Annotations, config: ImportConfig) -> Iterable[Row]:
    """The pairs of the table, or of the tokenised files if there is no table; see the module's text."""
    pairs: dict[str, Row] = {}
    for position, first, second, split, sentences, meta in _rows(annotations):
        pair_id = f"{first}_{second}"
        pair = {
            "pair_id": pair_id,
            "before": [f"{first}{suffix}" for suffix in (".jpg", ".jpeg", ".png")],
            "after": [f"{second}{suffix}" for suffix in (".jpg", ".jpeg", ".png")],
            "captions": [],
            "split": split,
            "source": f"Birds-to-Words/{pair_id}",
            "meta": meta,
        }
        if row := annotations.join(pairs, position, pair):
            row["captions"] += sentences
    return pairs.values()


def _rows(annotations: Annotations) -> Iterator[tuple[str, str, str, str, list[str], dict[str, Any]]]:
    """``(position, photograph 1, photograph 2, split, descriptions, meta)``."""
    names = [info.base_name for info in annotations.root.list_files()]
    tables = [name for name in names if name.endswith(".tsv")]
    if len(tables) > 1:
        raise ValueError(f"{annotations.root} has several tables: {', '.join(tables)}; keep one of them")
    if tables:
        yield from _table(annotations, tables[0])
        return
    for split, name in annotations.split_files("").items():
        for number, line in enumerate(split_lines(annotations.text(name))):
            if line.strip():
                row = _tokenised(annotations, f"{name}:{number}", line)
                if row is not None:
                    yield f"{name}:{number}", row[0], row[1], split, row[2], {}


def _table(annotations: Annotations, name: str) -> Iterator[tuple[str, str, str, str, list[str], dict[str, Any]]]:
    for number, line in enumerate(split_lines(annotations.text(name))):
        position = f"{name}:{number}"
        if not line.strip():
            continue
        cells = [_unquoted(cell) for cell in line.split("\t")]
        if tuple(cells) == COLUMNS:
            continue
        if len(cells) != len(COLUMNS):
            annotations.reject(position, f"bad row: {len(cells)} columns, not {len(COLUMNS)}")
            continue
        record = dict(zip(COLUMNS, cells, strict=True))
        first, second = (re.search(r"/photos/(\d+)", record[key]) for key in ("img1ImgURL", "img2ImgURL"))
        if first is None or second is None:
            annotations.reject(position, f"no pair id: {record['img1ImgURL']!r}, {record['img2ImgURL']!r}")
            continue
        meta = {key: record[key] for key in _KEPT}
        yield position, first.group(1), second.group(1), record["split"], [record["description"]], meta


def _unquoted(cell: str) -> str:
    return cell[1:-1].replace('""', '"') if len(cell) > 1 and cell[0] == cell[-1] == '"' else cell


def _tokenised(annotations: Annotations, position: str, line: str) -> tuple[str, str, list[str]] | None:
    try:
        record = parse_json(line, keep_surrogates=True)
    except JsonError as exc:
        annotations.reject(position, f"bad row: {exc}")
        return None
    if not isinstance(record, dict):
        annotations.reject(position, f"bad row: {type(record).__name__}, not an object")
        return None
    first, second = (annotations.name_in(position, record, key) for key in ("img1", "img2"))
    description = record.get("description")
    if not isinstance(description, list) or not all(isinstance(tokens, list) for tokens in description):
        description = [description]
    sentences = []
    for entry in description:
        tokens = annotations.texts_in(position, entry, "description")
        if tokens is None:
            return None
        sentences.append(" ".join(tokens))
    return (first, second, sentences) if first and second else None
