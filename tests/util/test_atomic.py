"""Files that appear whole: an interrupted writer leaves the old file, several writers leave one whole file."""

from __future__ import annotations

import json
import multiprocessing
from pathlib import Path

import pytest

from idc.util.atomic import replacing, write_bytes, write_json, write_text


def _fail(path: Path) -> None:
    with replacing(path) as partial:
        partial.write_text("half")
        raise RuntimeError("killed")


def test_an_interrupted_writer_leaves_the_old_file(tmp_path: Path) -> None:
    path = write_text(tmp_path / "deep" / "x.txt", "old ü\n")
    with pytest.raises(RuntimeError, match="killed"):
        _fail(path)
    assert path.read_text(encoding="utf-8") == "old ü\n"
    with replacing(path) as partial:
        partial.write_text("new")
    assert path.read_text() == "new"
    assert [child.name for child in path.parent.iterdir()] == ["x.txt"], "the remnant of the first has been replaced"


def test_json_is_ascii_and_ends_with_a_line_end(tmp_path: Path) -> None:
    data = write_json(tmp_path / "x.json", {"a": "ü\udcff"}).read_bytes()
    assert (json.loads(data), data.isascii(), data[-1:]) == ({"a": "ü\udcff"}, True, b"\n")


def _write(path: Path, letter: bytes) -> None:
    for _ in range(50):
        write_bytes(path, letter * 100_000)


def test_writers_at_the_same_time_leave_one_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "x"
    write_bytes(path, b"z" * 100_000)
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=_write, args=(path, letter)) for letter in (b"a", b"b")]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        found = path.read_bytes()
        assert len(found) == 100_000
        assert len(set(found)) == 1
    assert [writer.exitcode for writer in writers] == [0, 0]
    assert [child.name for child in tmp_path.iterdir()] == ["x"]
