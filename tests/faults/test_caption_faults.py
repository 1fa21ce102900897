"""The captioning command killed in the middle: every row once, and no part done twice."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from idc.captioning.table import CaptionJob, caption_rows
from idc.config import load
from idc.data.pipeline import run_local
from idc.data.store import iter_rows, read_manifest, read_table
from jobs import caption
from tests.systems.procap.world import World

ROOT = Path(__file__).resolve().parents[2]


def repeated(world: World, path: Path, times: int) -> str:
    """The pairs of the world so many times, under the same ids, in one Parquet file."""
    pairs = read_table(world.pairs, ["pair_id", "before", "after"])
    pq.write_table(pa.concat_tables([pairs] * times), path)
    return str(path)


def killed_in_the_middle(command: list[str], out: Path, parts: int) -> None:
    """Start a command, and kill it and all that it started when so many parts are written."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True)
    deadline = time.monotonic() + 120
    while len(list(out.glob("part-*"))) < parts:
        assert process.poll() is None, process.stderr and process.stderr.read().decode()
        assert time.monotonic() < deadline
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def same_rows(one: Path, two: Path) -> None:
    """Texts alike, numbers but for the rounding of another number of threads."""
    for left, right in zip(iter_rows(one), iter_rows(two), strict=True):
        for name in ("row", "pair_id", "caption", "error"):
            assert left[name] == right[name]
        assert left["log_probability"] == pytest.approx(right["log_probability"], abs=1e-4)


def written(out: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mtime_ns for path in out.glob("part-*")}


def quiet(*args: Any, **options: Any) -> Any:
    return run_local(*args, progress=False, **options)


def test_sigkill_of_the_command(artifact: str, world: World, tmp_path: Path) -> None:
    source = repeated(world, tmp_path / "pairs.parquet", 20)
    given: dict[str, Any] = {"artifact": artifact, "input": source, "chunk_size": 5, "batch_size": 5}
    out = tmp_path / "out"
    command = [sys.executable, str(ROOT / "jobs" / "caption.py"), "--local", f"out={out}"]
    killed_in_the_middle([*command, *(f"{name}={value}" for name, value in given.items())], out, parts=3)
    kept = written(out)
    assert 3 <= len(kept) < 96, "killed in the middle"
    assert not read_manifest(out).complete

    done = caption_rows(load(CaptionJob, None, {**given, "out": str(out)}), quiet)
    assert written(out).items() >= kept.items(), "what was there was left as it was"
    assert (done.rows, done.done) == (480, 480 - 5 * len(kept))
    rows = read_table(out, ["row", "pair_id"])
    assert rows["row"].to_pylist() == list(range(480))
    assert rows["pair_id"].to_pylist() == 20 * read_table(world.pairs, ["pair_id"])["pair_id"].to_pylist()
    assert not list(out.glob(".tmp-*"))
    caption_rows(load(CaptionJob, None, {**given, "out": str(tmp_path / "whole")}), quiet)
    same_rows(out, tmp_path / "whole")


@pytest.mark.ray
@pytest.mark.slow
def test_sigkill_of_the_command_and_its_ray(artifact: str, world: World, tmp_path: Path) -> None:
    source = repeated(world, tmp_path / "pairs.parquet", 20)
    given: dict[str, Any] = {"artifact": artifact, "input": source, "chunk_size": 5, "batch_size": 5}
    out = tmp_path / "out"
    on_ray = ["actors=2", "cluster.num_cpus=2", "cluster.num_gpus=0", "cluster.object_store_mb=100"]
    command = [sys.executable, str(ROOT / "jobs" / "caption.py"), f"out={out}", *on_ray]
    command += [f"{name}={value}" for name, value in given.items()]
    killed_in_the_middle(command, out, parts=3)
    kept = written(out)
    assert 3 <= len(kept) < 96
    second = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert second.returncode == 0, second.stderr
    assert f"{out}: 480 rows, 480 with a caption" in second.stdout
    assert written(out).items() >= kept.items()
    caption_rows(load(CaptionJob, None, {**given, "out": str(tmp_path / "whole")}), quiet)
    same_rows(out, tmp_path / "whole")


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
