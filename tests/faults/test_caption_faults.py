"""A table of which no row can be captioned."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from jobs import caption


def test_an_input_of_bad_rows_alone_ends_with_1_and_its_rows(
    artifact: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Paths from another folder, say: every row says so, and so does the status."""
    monkeypatch.chdir(tmp_path)
    Path("t.csv").write_text("before,after\n" + "a.png,b.png\n" * 3)
    given = f"caption.py --local --artifact {artifact} --input t.csv --out out --jsonl o.jsonl"
    monkeypatch.setattr(sys, "argv", given.split())
    with pytest.raises(SystemExit, match="caption: no row could be captioned"):
        caption.main()
    assert "out: 3 rows, 0 with a caption, 3 x before: missing file" in capsys.readouterr().out
    assert len(Path("o.jsonl").read_text().splitlines()) == 3
