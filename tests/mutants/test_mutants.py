"""Every mistake of :mod:`tests.mutants.mistakes` makes the test fail that is named with it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.mutants.mistakes import MISTAKES, Mistake

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.name)
def test_the_mistake_can_be_made(mistake: Mistake) -> None:
    """Else the list is older than the program."""
    assert (ROOT / mistake.file).read_text().count(mistake.old) == 1
    assert (ROOT / mistake.test.partition("::")[0]).exists()


@pytest.mark.slow
def test_no_mistake_survives() -> None:
    run = subprocess.run(
        [sys.executable, "-m", "tests.mutants.runner"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert run.stdout.count("\n") == len(MISTAKES), run.stderr
    assert run.returncode == 0, run.stdout
