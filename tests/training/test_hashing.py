"""A big file is read once, and its hash is never that of other contents."""

from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path

import pytest

from idc.training import hashing
from idc.training.hashing import combined_hash, content_or_id, contents, file_hash

MIB = 1 << 20


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files that were read to the end and hashed."""
    found: list[str] = []
    digest = hashlib.file_digest

    def counted(file: object, name: str) -> object:
        found.append(os.path.basename(file.name))  # type: ignore[attr-defined]
        return digest(file, name)  # type: ignore[arg-type]

    monkeypatch.setattr(hashlib, "file_digest", counted)
    monkeypatch.setattr(hashing, "_remembered", {})
    return found


def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on the clock shows ten seconds more: what was written is older than the time of settling."""
    now = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: now() + 10 * 10**9)


def true_hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_a_big_file_is_read_once_and_a_small_one_every_time(
    tmp_path: Path, reads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "big").write_bytes(b"x" * 2 * MIB)
    (tmp_path / "small").write_bytes(b"y")
    settled(monkeypatch)
    first = contents(tmp_path)
    assert first == {name: true_hash(tmp_path / name) for name in ("big", "small")}
    assert contents(tmp_path) == first
    os.link(tmp_path / "big", tmp_path / "linked")
    settled(monkeypatch)  # a link changes the inode's change time
    assert file_hash(tmp_path / "big") == file_hash(tmp_path / "linked") == first["big"]
    assert reads == ["big", "small", "small", "big"]


def test_a_changed_file_is_read_again(tmp_path: Path, reads: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Same size, and each of: another time; the old time set back by hand; another file in its place, with its time."""
    path = tmp_path / "weights"
    path.write_bytes(b"a" * MIB)
    settled(monkeypatch)
    hashes = [file_hash(path)]
    stat = path.stat()
    path.write_bytes(b"b" * MIB)
    hashes.append(file_hash(path))
    path.write_bytes(b"c" * MIB)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert path.stat().st_mtime_ns == stat.st_mtime_ns
    hashes.append(file_hash(path))
    other = tmp_path / "other"
    other.write_bytes(b"d" * MIB)
    os.utime(other, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    other.rename(path)
    hashes.append(file_hash(path))
    with path.open("r+b") as file:
        file.seek(MIB // 2)
        file.write(b"e")
    hashes.append(file_hash(path))
    assert hashes[-1] == true_hash(path)
    assert len(set(hashes)) == len(reads) == 5


def test_a_file_that_changed_just_now_is_not_remembered(tmp_path: Path, reads: list[str]) -> None:
    """A second change within the resolution of the file system's clock would have the same time."""
    path = tmp_path / "weights"
    path.write_bytes(b"a" * MIB)
    assert file_hash(path) == file_hash(path) == true_hash(path)
    assert reads == ["weights"] * 2


def test_a_file_that_changes_while_it_is_read_is_not_remembered(
    tmp_path: Path, reads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "weights"
    path.write_bytes(b"a" * MIB)
    settled(monkeypatch)
    digest = hashlib.file_digest

    def slow(file: object, name: str) -> object:
        found = digest(file, name)  # type: ignore[arg-type]
        path.write_bytes(b"b" * MIB)
        return found

    monkeypatch.setattr(hashlib, "file_digest", slow)
    file_hash(path)
    monkeypatch.setattr(hashlib, "file_digest", digest)
    assert file_hash(path) == true_hash(path)


def test_a_name_that_is_no_path_identifies_itself(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x")
    assert content_or_id("facebook/dinov2-large") == "facebook/dinov2-large"
    assert content_or_id(str(tmp_path)) == combined_hash({"a": true_hash(tmp_path / "a")})
    assert content_or_id(str(tmp_path / "a")) == combined_hash({".": true_hash(tmp_path / "a")})
