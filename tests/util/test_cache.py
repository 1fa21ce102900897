"""Files and folders that are made once, and the folder of the cache."""

from __future__ import annotations

from multiprocessing.pool import ThreadPool
from pathlib import Path

import pytest

from idc.util.cache import cache_root, make_once


def test_a_folder_is_made_by_one_of_several_threads_and_appears_whole(tmp_path: Path) -> None:
    calls = []

    def make(partial: Path) -> Path:
        calls.append(partial)
        inner = partial / "inner"
        inner.mkdir(parents=True)
        assert not (tmp_path / "made").exists()
        (inner / "file").write_text("whole")
        return inner

    with ThreadPool(4) as pool:
        paths = pool.map(lambda name: make_once(tmp_path / name, make), ["made"] * 4, chunksize=1)
    assert set(paths) == {tmp_path / "made"}
    assert len(calls) == 1
    assert [path.name for path in (tmp_path / "made").iterdir()] == ["file"]
    assert sorted(path.name for path in tmp_path.iterdir()) == [".made.lock", "made"]


def test_what_a_killed_or_failing_process_left_is_discarded(tmp_path: Path) -> None:
    (tmp_path / ".made.partial").mkdir()
    (tmp_path / ".made.partial" / "half").touch()

    def fail(partial: Path) -> Path:
        partial.write_text("half")
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        make_once(tmp_path / "made", fail)
    assert [path.name for path in tmp_path.iterdir()] == [".made.lock"]
    make_once(tmp_path / "made", lambda partial: Path(partial.write_text("whole") and partial))
    assert (tmp_path / "made").read_text() == "whole"


def test_without_a_setting_the_cache_is_among_the_temporary_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("IDC_CACHE")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert cache_root().parent == tmp_path
    assert cache_root().stat().st_mode & 0o077 == 0
