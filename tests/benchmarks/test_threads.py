"""How torch's threads wait: the setting reaches the library, and is measured."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from benchmarks.processes import variable
from benchmarks.threads import LIBRARY, ThreadsConfig, measure_threads
from idc import SPIN_COUNT, SPIN_VARIABLE


def told(code: str, **variables: str) -> tuple[str | None, str]:
    """The variable in a process that loads torch, and what libgomp, if torch has it, says that its variables are."""
    inherited = {name: value for name, value in os.environ.items() if name != SPIN_VARIABLE}
    done = subprocess.run(
        [sys.executable, "-c", f"{code}; import os; print(os.environ.get({SPIN_VARIABLE!r}))"],
        env={**inherited, "OMP_DISPLAY_ENV": "VERBOSE", **variables}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    found = done.stdout.split()[-1]
    return None if found == "None" else found, done.stderr


@pytest.mark.parametrize(
    ("code", "variables", "expected"),
    [
        ("import idc, torch", {}, SPIN_COUNT),
        ("import idc.training.loop", {}, SPIN_COUNT),
        ("import idc, torch", {SPIN_VARIABLE: "77"}, "77"),
        ("import idc, torch", {"OMP_WAIT_POLICY": "active"}, None),
    ],
)
def test_the_short_wait_reaches_the_library_unless_another_was_chosen(
    code: str, variables: dict[str, str], expected: str | None
) -> None:
    variable_there, shown = told(code, **variables)
    assert variable_there == expected
    if "GOMP" in shown:  # torch's wheels for Linux; those of other systems have another OpenMP, without this variable
        assert (f"{SPIN_VARIABLE} = '{expected or SPIN_COUNT}'" in shown) == (expected is not None)


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
