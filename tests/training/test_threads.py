"""How torch's threads wait: the setting of idc/__init__.py reaches the library."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from idc import SPIN_COUNT, SPIN_VARIABLE


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, SPIN_COUNT),
        pytest.param({"OMP_WAIT_POLICY": "active"}, "None", marks=pytest.mark.slow),
        pytest.param({SPIN_VARIABLE: "77"}, "77", marks=pytest.mark.slow),
    ],
)
def test_the_short_wait_reaches_the_library_unless_another_was_chosen(variables: dict[str, str], expected: str) -> None:
    inherited = {name: value for name, value in os.environ.items() if name != SPIN_VARIABLE}
    done = subprocess.run(
        [sys.executable, "-c", f"import idc, torch, os; print(os.environ.get({SPIN_VARIABLE!r}))"],
        env={**inherited, "OMP_DISPLAY_ENV": "VERBOSE", **variables}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.split()[-1] == expected
    if "GOMP" in done.stderr:  # torch's wheels for Linux; those of other systems have another OpenMP
        assert (f"{SPIN_VARIABLE} = '{expected}'" in done.stderr) == (expected != "None")
