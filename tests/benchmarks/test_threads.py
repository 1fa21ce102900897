"""How torch's threads wait: the setting reaches the library, and is measured."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from benchmarks.processes import variable
from benchmarks.threads import LIBRARY, ThreadsConfig, measure_threads
from idc import SPIN_COUNT, SPIN_VARIABLE


def told(code: str, **variables: str) -> str:
    """What libgomp says that its variables are in a process that loads torch."""
    inherited = {name: value for name, value in os.environ.items() if name != SPIN_VARIABLE}
    done = subprocess.run(
        [sys.executable, "-c", code], env={**inherited, "OMP_DISPLAY_ENV": "VERBOSE", **variables},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return done.stderr


def test_the_short_wait_reaches_the_library_unless_another_was_chosen() -> None:
    if "GOMP" not in told("import torch"):
        pytest.skip("this torch uses another OpenMP than libgomp")
    assert f"{SPIN_VARIABLE} = '{SPIN_COUNT}'" in told("import idc, torch")
    assert f"{SPIN_VARIABLE} = '{SPIN_COUNT}'" in told("import idc.training.loop")
    assert f"{SPIN_VARIABLE} = '77'" in told("import idc, torch", **{SPIN_VARIABLE: "77"})
    assert f"{SPIN_VARIABLE} = '{SPIN_COUNT}'" not in told("import idc, torch", OMP_WAIT_POLICY="active")


def test_both_waits_are_measured_with_and_without_other_work() -> None:
    before = os.environ.get(SPIN_VARIABLE)
    idle, beside = measure_threads(ThreadsConfig(seconds=0.2, rounds=1))
    for row in (idle, beside):
        assert len(row.above) == len(row.below) == 1
        assert row.above[0] > 0 < row.below[0]
    assert "without other work" in idle.title
    assert "busy processes" in beside.title
    assert os.environ.get(SPIN_VARIABLE) == before
    with variable(SPIN_VARIABLE, LIBRARY):
        assert os.environ[SPIN_VARIABLE] == LIBRARY
