"""How torch's threads wait: the setting of idc/__init__.py reaches the library."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from idc import SPIN_COUNT, SPIN_VARIABLE


def spin_count(code: str, **variables: str) -> tuple[str | None, str]:
    """The variable in a process that loads torch, and libgomp's list of its variables, if torch uses it."""
    inherited = {name: value for name, value in os.environ.items() if name != SPIN_VARIABLE}
    done = subprocess.run(
        [sys.executable, "-c", f"{code}; import os; print(os.environ.get({SPIN_VARIABLE!r}))"],
        env={**inherited, "OMP_DISPLAY_ENV": "VERBOSE", **variables}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    value = done.stdout.split()[-1]
    return None if value == "None" else value, done.stderr


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
    variable_there, shown = spin_count(code, **variables)
    assert variable_there == expected
    if "GOMP" in shown:  # torch's wheels for Linux; those of other systems have another OpenMP, without this variable
        assert (f"{SPIN_VARIABLE} = '{expected or SPIN_COUNT}'" in shown) == (expected is not None)
