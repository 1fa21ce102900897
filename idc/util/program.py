"""The program's own commands and presets: where they are, and how this process was started."""

from __future__ import annotations

import os
import re
import shlex
import sys
from pathlib import Path

PROGRAM = "IDC_PROGRAM"
"""Environment variable that the command ``idc`` sets for its processes: its name."""


def commands_folder() -> Path:
    """The folder with ``jobs/``, ``cluster/`` and ``serve/``: ``idc/_commands`` of an installed package, or the
    checkout."""
    package = Path(__file__).resolve().parents[1]
    return installed if (installed := package / "_commands").is_dir() else package.parent


def shipped(path: str) -> str:
    """``path``; if it is that of a script ``jobs/NAME.py`` or of a preset in ``jobs/configs`` and not in the working
    directory, the program's own."""
    return str(commands_folder() / path) if path.startswith("jobs/") and not Path(path).exists() else path


def as_started(text: str) -> str:
    """``text``, in which the program's commands are written as this process was started: by ``idc NAME``, or with the
    folder of scripts that was given to Python."""
    if program := os.environ.get(PROGRAM):
        text = re.sub(r"\S*python -m serve\.app\b", f"{program} serve", text)
        return re.sub(r"(?:\S*python )?\bjobs/(\w+)\.py\b", lambda job: f"{program} {job[1].replace('_', '-')}", text)
    folder = Path(sys.argv[0]).parent
    if folder.name != "jobs":
        return text
    return re.sub(r"\bpython jobs/(\w+\.py)\b", lambda job: f"python {shlex.quote(str(folder / job[1]))}", text)
