"""A copy of this checkout with one more system, made as docs/adding-a-system.md describes."""

from __future__ import annotations

import shutil
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
ADDED = ("idc/systems/difference_net", "jobs/train_difference_net.py", "jobs/configs/difference_net/sweep.yaml")
LIST = "idc/systems/__init__.py"


def with_difference_net(path: Path) -> Path:
    """Copy the code to ``path`` and add DifferenceNet: its folder, its job, its YAML and one word in the list."""
    for folder in ("idc", "cluster", "jobs", "serve"):
        shutil.copytree(ROOT / folder, path / folder, ignore=shutil.ignore_patterns("__pycache__", "_commands"))
    shutil.copytree(HERE / "difference_net", path / ADDED[0])
    shutil.copyfile(HERE / "train_difference_net.py", path / ADDED[1])
    (path / ADDED[2]).parent.mkdir()
    shutil.copyfile(HERE / "sweep.yaml", path / ADDED[2])
    text = (path / LIST).read_text(encoding="utf-8")
    changed = text.replace('SYSTEMS = ("procap",', 'SYSTEMS = ("procap", "difference_net",')
    assert changed != text, f"{LIST} does not begin its list with procap"
    (path / LIST).write_text(changed, encoding="utf-8")
    return path


def changed_files(path: Path) -> set[str]:
    """Files of the copy that this checkout does not have, or has with other contents; an added folder as a whole."""
    found = set()
    for file in path.rglob("*"):
        name = file.relative_to(path).as_posix()
        if not file.is_file() or name.startswith(("data/", "runs/")) or "__pycache__" in name:
            continue
        if name.startswith(f"{ADDED[0]}/"):
            found.add(ADDED[0])
        elif not (ROOT / name).is_file() or (ROOT / name).read_bytes() != file.read_bytes():
            found.add(name)
    return found
