"""Where the cores' time goes: by process, by thread, by pair; how much it is, is not asked here."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.calls import Calls, LoggedLoader
from benchmarks.cpu import IDLE, OTHER, CpuLine, Spent, thread_seconds
from benchmarks.load import parsed
from benchmarks.measurement import Window, steady
from idc.captioning.contract import Candidate, Description

_BUSY = "import time\nwhile time.process_time() < {seconds}: pass\nprint(flush=True)\ninput()"


def busy(seconds: float) -> subprocess.Popen[str]:
    """A process that has used this much CPU and waits for its end."""
    code = _BUSY.format(seconds=seconds)
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()
    return process


def test_processes_idle_time_and_the_rest_add_up_to_the_cores() -> None:
    with CpuLine(lambda command: "busy" if "process_time" in command else "else", every_s=0.05) as line:
        begin = time.time()
        process = busy(0.6)
        process.communicate("\n")
        end = time.time()
    found = line.between(begin, end)
    assert 0.3 < found["busy"] < 0.8, "its end is not forgotten"
    assert found[IDLE] >= 0
    assert found[OTHER] >= 0
    if found[OTHER] > 0:
        assert sum(found.values()) == pytest.approx((os.cpu_count() or 1) * (end - begin))


def test_a_process_that_ran_before_is_counted_from_the_start_of_the_block() -> None:
    process = busy(0.6)
    try:
        with CpuLine(lambda command: command, every_s=0.05) as line:
            begin = time.time()
        found = line.between(begin, time.time())
        assert sum(seconds for name, seconds in found.items() if "process_time" in name) < 0.1
    finally:
        process.communicate("\n")


def test_what_is_spent_is_divided_by_the_pairs_of_the_steady_state() -> None:
    spent = Spent(lambda command: "busy" if "process_time" in command else "else")
    for _ in range(2):
        with spent.measured() as count:
            began = time.time()
            process = busy(0.5)
            count(0.0, time.time() - began, 100.0)
        process.communicate("\n")  # after the last sample: what ends between two samples is not counted
    assert spent.ms_per_pair()["busy"] == pytest.approx(5.0, rel=0.4)


def test_a_loads_steady_state_has_its_start_end_and_answers() -> None:
    lines = ["response-time,DNS+dialup,DNS,Request-write,Response-delay,Response-read,status-code,offset"]
    lines += [f"1.0,0,0,0,0,0,200,{start}" for start in range(10) for _ in range(2)]
    found = parsed("\n".join(lines), connections=2, sent=20, wall=12.0)
    begin, end, pairs = found.busy(16)
    assert (begin, end) == (1.0, 9.0)
    assert found.steady_per_second is not None
    assert pairs == pytest.approx(16 * found.steady_per_second * 8.0)


class _Busy:
    """A captioner that uses about ``0.05`` s of CPU per call."""

    capabilities = frozenset({"map"})

    def describe(self, befores: Sequence[Any], afters: Sequence[Any], **options: Any) -> list[Description]:
        until = time.thread_time() + 0.05
        while time.thread_time() < until:
            pass
        return [Description((Candidate(f"{after.mean():.0f}", -0.5),), changed=0.5) for after in afters]


def test_calls_are_logged_with_the_time_of_their_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.calls._THREADS_EVERY_S", 0.0)
    captioner = LoggedLoader(_Busy, tmp_path)()  # type: ignore[arg-type]  # has what is called here
    assert captioner.capabilities == {"map"}
    images = [np.zeros((2, 2, 3), np.uint8)] * 3

    def decode() -> None:
        until = time.thread_time() + 0.2
        while time.thread_time() < until:
            pass

    with ThreadPoolExecutor(1, thread_name_prefix="decode") as pool:
        for number in range(6):
            decoding = pool.submit(decode) if number == 2 else None
            assert captioner.describe(images, images)[0].best.caption == "0"
            if decoding is not None:
                decoding.result()
        captioner.describe(images, images)
    calls = Calls(tmp_path)
    assert len(calls.stamps) == 7
    window = steady(calls.stamps, 1)
    assert window.rows == 18
    assert calls.loaded <= window.begin
    found = calls.cpu_seconds(window)
    assert found["describing"] * 18 == pytest.approx(0.3, rel=0.4)
    assert found["decoding"] * 18 == pytest.approx(0.2, rel=0.4)
    assert calls.cpu_seconds(Window(0.0, 1.0, 1)) == {}


def test_this_threads_time_is_among_those_of_the_process() -> None:
    until = time.process_time() + 0.1
    while time.process_time() < until:
        pass
    assert max(thread_seconds().values()) >= 0.05
