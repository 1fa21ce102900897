"""Where the browser of these tests is."""

from __future__ import annotations

import os
import shutil

import pytest


def chromium() -> str:
    """The program."""
    found = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    if found is None:
        pytest.fail("this test needs Chromium: `apt-get install chromium`, or name the program in CHROMIUM")
    return found
