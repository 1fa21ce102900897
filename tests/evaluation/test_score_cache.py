"""What one evaluation leaves for the next: made once, made anew when damaged, never needed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from idc.evaluation.score import ScoreCache


class Made:
    def __init__(self, value: Any) -> None:
        self.value, self.times = value, 0

    def __call__(self) -> Any:
        self.times += 1
        return self.value


def test_a_value_is_made_once_for_what_it_depends_on(tmp_path: Path) -> None:
    made = Made({"CIDEr": 0.1 + 0.2, "texts": ["a", "b"]})
    for _ in range(2):
        assert ScoreCache(tmp_path / "cache", 1).get("x", ["a", 1], made) == made.value
    assert made.times == 1
    ScoreCache(tmp_path / "cache", 1).get("x", ["a", 2], made)
    ScoreCache(tmp_path / "cache", 2).get("x", ["a", 1], made)
    ScoreCache(tmp_path / "cache", 1).get("y", ["a", 1], made)
    assert made.times == 4, "other inputs, another version, another name"
    ScoreCache().get("x", ["a", 1], made)
    assert made.times == 5


def test_a_damaged_file_is_made_anew(tmp_path: Path) -> None:
    cache, made = ScoreCache(tmp_path), Made([1.5])
    cache.get("x", 0, made)
    [path] = tmp_path.iterdir()
    good = path.read_bytes()
    for damage in (b"", good[: len(good) // 2], good.replace(b"1.5", b"2.5"), b"[]", b"{}", b"\xff\xfe"):
        path.write_bytes(damage)
        assert cache.get("x", 0, made) == [1.5]
        assert path.read_bytes() == good
    assert made.times == 7


def test_without_write_access_nothing_is_cached_and_nothing_fails(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    made = Made(1)
    for _ in range(2):
        assert ScoreCache(tmp_path / "file" / "below").get("x", 0, made) == 1
    assert made.times == 2
