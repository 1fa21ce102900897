"""The log of jobs and workers: plain for people, one JSON object per line for machines."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from idc.util import logs
from idc.util.progress import Progress, tracked
from idc.util.redaction import redacted

ROOT = Path(__file__).parents[2]

COMMAND = """
import logging, sys, warnings
from idc.util import logs
from idc.util.progress import tracked
sys.argv = ["jobs/demo.py"]
logs.set_up()
logs.bind(run="one", rank=0)
logs.event("resumed", "resumed at step 3", step=3, loss=float("nan"))
print("a table\\nof two lines")
print('bar 1\\rbar 2', file=sys.stderr)
logging.getLogger("idc.x").warning("rows %s", 7)
warnings.warn("old")
list(tracked(range(3), 3, "rows", "row"))
{end}
"""


def run(form: str | None, end: str = "") -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != logs.VARIABLE}
    return subprocess.run(
        [sys.executable, "-c", COMMAND.format(end=end)], capture_output=True, text=True, check=False,
        env={**environment, "PYTHONPATH": str(ROOT), **({logs.VARIABLE: form} if form else {})},
    )  # fmt: skip


def test_people_read_messages() -> None:
    done = run(None)
    assert done.stdout.splitlines() == ["a table", "of two lines"]
    lines = done.stderr.splitlines()
    assert lines[0] == "resumed at step 3"
    assert "rows 7" in lines
    assert lines[-1].startswith("rows: row 3/3")


def test_machines_read_one_object_per_line() -> None:
    done = run("json", end="raise KeyError('lost')")
    out, err = ([json.loads(line) for line in text.splitlines()] for text in (done.stdout, done.stderr))
    assert [(entry["event"], entry["message"]) for entry in out] == [("output", "a table\nof two lines")]
    assert [entry["event"] for entry in err] == ["resumed", "output", "log", "output", "progress", "exception"]
    for entry in (*out, *err):
        assert {"time", "level", "event", "node", "pid"} <= entry.keys()
        assert (entry["job"], entry["run"], entry["rank"]) == ("demo", "one", 0)
    assert (err[0]["step"], err[0]["loss"]) == (3, None)
    assert err[1]["message"] == "bar 2"
    assert (err[2]["level"], err[2]["logger"]) == ("warning", "idc.x")
    assert (err[4]["done"], err[4]["total"], err[4]["unit"]) == (3, 3, "row")
    assert err[-1]["level"] == "error"
    assert "Traceback" in err[-1]["traceback"]


def test_our_warnings_are_plain_and_those_of_libraries_name_their_place() -> None:
    ours, theirs = str(ROOT / "idc" / "x.py"), str(ROOT / ".venv" / "lib" / "site-packages" / "x.py")
    lines = f"for file in {(ours, theirs)!r}: warnings.warn_explicit('old', UserWarning, file, 7)"
    shown = run(None, end=lines).stderr
    assert "warning: old\n" in shown
    assert f"{theirs}:7: UserWarning: old" in shown


def test_an_unknown_form_is_refused_before_anything_starts() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "jobs/render.py"), "out=nowhere"], capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT), logs.VARIABLE: "xml"},
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "")
    assert "IDC_LOG: 'xml' is unknown; take plain or json" in done.stderr


def test_progress_in_a_job_log_is_a_few_plain_lines(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress(total=100, done=10, every=1000.0) as progress:
        for step in range(11, 101):
            progress.update(step, loss=1.5, speed=math.nan)
    assert list(tracked("ab", 2, "letters", "letter", show=False)) == ["a", "b"]
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("step 100/100  loss 1.5  ")


def test_of_a_secret_that_holds_another_nothing_is_left() -> None:
    assert redacted("key: first-second-third", "second-third", "first-second-third") == "key: ***"
