"""``format=auto``: every layout is recognised by its files, and no other is taken in its place."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from idc.data.config import ValidateJob
from idc.data.readers.layouts import find_layout
from idc.data.validation.run import validate
from tests.data.readers.test_own import FOLDERS, prepare, put
from tests.data.small_sets import OFFICIAL

TABLE: dict[str, Any] = {"pairs.jsonl": '{"pair_id": "x", "before": "images/1.png", "after": "images/1.png"}'}
OTHERS = {"a/1.png": 1, "splits.json": '{"train": [1]}', "train.json": '[{"question": "?"}]'}
# Files, the path, and its format, or the message
PATHS: list[tuple[dict[str, Any], str, str]] = [
    *((files, "", "folder") for files in FOLDERS.values()),
    ({"t.csv": "x"}, "t.csv", "csv"), ({"t.TSV": "x"}, "t.TSV", "csv"), ({"t.jsonl": "x"}, "t.jsonl", "jsonl"),
    ({"t.parquet": "x"}, "t.parquet", "parquet"), ({"parts/0.parquet": "x"}, "parts", "parquet"),
    ({"t.dat": "x"}, "t.dat", r"no format has the suffix '\.dat'; give format="),
    ({}, "nowhere", "no such file or folder"),
    (OTHERS, "", "no format matches its files"),
    ({"images/1.png": 1, **TABLE}, "", "give the table itself: .*/pairs.jsonl"),
    ({"before/x.png": 1, "after/x.png": 2, **TABLE}, "", r"format=folder \(.*; format=jsonl \(pairs.jsonl\)"),
]  # fmt: skip


@pytest.mark.parametrize(("files", "path", "format"), PATHS)
def test_what_a_path_is_taken_for(files: dict[str, Any], path: str, format: str, tmp_path: Path) -> None:
    put(tmp_path, {**files, "README.md": "about"})
    if " " in format:
        with pytest.raises(ValueError, match=format):
            find_layout(str(tmp_path / path))
    else:
        layout = find_layout(str(tmp_path / path))
        assert (layout.format, layout.settings) == (format, {})


def test_where_two_fit_both_are_named(tmp_path: Path) -> None:
    single, multi = OFFICIAL["spot_the_diff"](), OFFICIAL["spot_the_diff_multi"]()
    single.write(tmp_path / "spot")
    multi.write(tmp_path / "spot")
    protocols = r"protocol=multi \(change_multi.*protocol=single \(train.json"
    with pytest.raises(ValueError, match=rf"several formats match its files, give one of: .*{protocols}"):
        validate(ValidateJob(pairs=str(tmp_path / "spot")), progress=False)


def test_an_import_recognises_the_format_and_stores_it(tmp_path: Path) -> None:
    put(tmp_path / "disk", {"before/x.png": 1, "after/x.png": 2})
    (tmp_path / "in").mkdir()
    for role in ("before", "after"):
        (tmp_path / "in" / role).symlink_to(tmp_path / "disk" / role)
    with pytest.raises(ValueError, match=r"in/after is a link .*; follow_links=true follows it"):
        prepare(tmp_path / "in", tmp_path / "out", "auto")
    manifest = prepare(tmp_path / "in", tmp_path / "out", "auto", follow_links=True)
    assert (manifest.num_rows, manifest.config["format"]) == (1, "folder")
    assert prepare(tmp_path / "in", tmp_path / "out", "folder", follow_links=True) == manifest, "the same import"
    with pytest.raises(ValueError, match="is a data set folder already"):
        prepare(tmp_path / "out", tmp_path / "again", "auto")


def test_a_fifo_is_no_annotation_file(tmp_path: Path) -> None:
    """To open or read one may never return; this one has a writer and as much to read as is looked at."""
    for name in ("splits.json", "change_captions.json"):
        os.mkfifo(tmp_path / name)
    pipes = [os.open(tmp_path / name, os.O_RDWR) for name in ("splits.json", "change_captions.json")]
    try:
        os.write(pipes[1], b'{"CLEVR_default_000000.png": []}'.ljust(2**16))
        with pytest.raises(ValueError, match="no format matches its files"):
            find_layout(tmp_path)
    finally:
        for pipe in pipes:
            os.close(pipe)
