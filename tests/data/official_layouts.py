"""What every reader must make of a tiny folder in the official layout of its data set, whole and damaged.

A test of a further reader makes an :class:`Official` and gives it to :func:`round_trip`,
:func:`check_annotations_alone` and :func:`check_damaged`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from idc.data.config import ValidateJob
from idc.data.images import IMAGE_SUFFIXES, decode_image
from idc.data.importing import open_import
from idc.data.pipeline import FolderSource
from idc.data.readers.layouts import find_layout
from idc.data.store import iter_rows, read_rejects
from idc.data.validation.run import validate
from tests.data.readers.test_own import import_job, prepare, put

Expected = dict[str, tuple[str, int, int, list[str]]]
"""Pair id -> split, grey value of before and of after, captions."""
Files = dict[str, int | str | bytes]
"""Name -> text or bytes; a number is a grey image of that value."""


@dataclass
class Official:
    """A data set in its layout.

    Attributes:
        format, settings: how it is imported.
        pairs: what must come of it.
        damage: changes the files, and gives the rejects that must come of it: place -> code.
        lost: the pairs that the damage costs.
    """

    format: str
    files: Files
    pairs: Expected
    damage: Callable[[dict[str, Any]], dict[str, str]]
    lost: set[str] = field(default_factory=set)
    settings: dict[str, Any] = field(default_factory=dict)

    def write(self, folder: Path) -> Path:
        return put(folder, self.files)

    def write_damaged(self, folder: Path) -> tuple[Path, dict[str, str]]:
        files = copy.deepcopy(self.files)
        rejects = self.damage(files)
        return put(folder, files), rejects


def found(out: Path) -> Expected:
    return {
        row["pair_id"]: (row["split"], grey(row["before"]), grey(row["after"]), row["captions"])
        for row in iter_rows(out)
    }


def grey(image: bytes) -> int:
    return int(decode_image(image)[0, 0, 0])


def round_trip(official: Official, tmp_path: Path) -> None:
    """Through import (twice: the second time nothing is done), and validation."""
    source, out = official.write(tmp_path / "in"), tmp_path / "out"
    check_layout(official, source)
    manifest = prepare(source, out, official.format, chunk_size=2, **official.settings)
    assert found(out) == official.pairs
    assert (manifest.num_rejected, manifest.has_images) == (0, True)
    folder, _, _ = open_import(import_job(source, out, official.format, chunk_size=2, **official.settings))
    assert folder.complete
    result = validate(ValidateJob(pairs=str(out)), progress=False).result
    assert (result.usable_pairs, result.num_pairs, result.problems) == (len(official.pairs), len(official.pairs), {})


def check_layout(official: Official, source: Path) -> None:
    layout = find_layout(str(source))
    settings = official.settings
    if layout.format == "spot_the_diff":
        settings = {"spot_the_diff": {"protocol": "single"}, **settings}
    assert layout.format == official.format
    assert {name: section.model_dump() for name, section in layout.settings.items()} == settings


def check_annotations_alone(official: Official, tmp_path: Path) -> None:
    """All pairs and captions are there without a single image; whoever wants pixels is refused."""
    source, out = official.write(tmp_path / "in"), tmp_path / "out"
    for path in [path for path in source.rglob("*") if path.suffix.lower() in IMAGE_SUFFIXES]:
        path.unlink()
    manifest = prepare(source, out, official.format, **official.settings)
    assert (manifest.has_images, manifest.num_rejected) == (False, 0)
    assert any("annotations alone" in note for note in manifest.extra["notes"])
    rows = {row["pair_id"]: row for row in iter_rows(out)}
    assert {name: (row["split"], row["captions"]) for name, row in rows.items()} == {
        name: (pair[0], pair[3]) for name, pair in official.pairs.items()
    }
    assert {(row["before"], row["after"], row["mask"]) for row in rows.values()} == {(b"", b"", None)}
    result = validate(ValidateJob(pairs=str(out)), progress=False).result
    assert (result.usable_pairs, result.problems) == (len(rows), {})
    splits: dict[int, set[str]] = {}
    for split, *images, _ in official.pairs.values():
        for image in images:
            splits.setdefault(image, set()).add(split)
    assert result.num_leaks == sum(len(of) > 1 for of in splits.values())  # told apart by their names
    with pytest.raises(ValueError, match="annotations alone"):
        FolderSource(str(out), columns=["pair_id", "after"])


def check_damaged(official: Official, tmp_path: Path) -> None:
    """Every damage is a reject with its place and reason, and all other pairs are as they were."""
    source, rejects = official.write_damaged(tmp_path / "in")
    check_layout(official, source)
    prepare(source, tmp_path / "out", official.format, chunk_size=3, **official.settings)
    reasons = [(reject.row_id, reject.code) for reject in read_rejects(tmp_path / "out")]
    assert sorted(reasons) == sorted(rejects.items())
    left = {name: pair for name, pair in official.pairs.items() if name not in official.lost}
    assert found(tmp_path / "out") == left


def more(text: Any, entries: str) -> str:
    """The JSON text of a list or object with raw text put in as its last entries."""
    assert isinstance(text, str)
    end = text.rstrip()[-1]
    return f"{text.rstrip()[:-1]}, {entries}{end}"
