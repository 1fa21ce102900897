"""A copy of this checkout with one more system, made as docs/adding-a-system.md describes."""

from __future__ import annotations

import shutil
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
SYSTEM, JOB = "difference_net", "train_difference_net"
_LIST = "idc/systems/__init__.py"


def checkout_with_the_example(path: Path) -> Path:
    """Copy the code to ``path`` and add the example: its folder, its job, its YAMLs, and one word in the list."""
    without = shutil.ignore_patterns("__pycache__", "_commands")
    for folder in ("idc", "cluster", "jobs", "serve"):
        shutil.copytree(ROOT / folder, path / folder, ignore=without)
    shutil.copytree(HERE / SYSTEM, path / "idc/systems" / SYSTEM, ignore=without)
    shutil.copytree(HERE / "configs" / SYSTEM, path / "jobs/configs" / SYSTEM)
    shutil.copy(HERE / f"{JOB}.py", path / "jobs")
    text = (path / _LIST).read_text(encoding="utf-8")
    changed = text.replace('SYSTEMS = ("procap",', f'SYSTEMS = ("procap", "{SYSTEM}",')
    assert changed != text, f"{_LIST} does not begin its list with procap"
    (path / _LIST).write_text(changed, encoding="utf-8")
    return path
