"""A copy of this checkout with one more system, made as docs/adding-a-system.md describes."""

from __future__ import annotations

import shutil
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
LIST = "idc/systems/__init__.py"


SYSTEM, JOB = "difference_net", "train_difference_net"
ADDED = {
    f"idc/systems/{SYSTEM}": HERE / SYSTEM,
    f"jobs/{JOB}.py": HERE / f"{JOB}.py",
    **{f"jobs/configs/{SYSTEM}/{path.name}": path for path in sorted((HERE / "configs" / SYSTEM).iterdir())},
}
"""What the example adds to a checkout, path -> where it is here: its folder, its job, its YAMLs."""


def checkout_with_the_example(path: Path) -> Path:
    """Copy the code to ``path`` and add the example: its files and one word in the list."""
    for folder in ("idc", "cluster", "jobs", "serve"):
        shutil.copytree(ROOT / folder, path / folder, ignore=shutil.ignore_patterns("__pycache__", "_commands"))
    for name, source in ADDED.items():
        (path / name).parent.mkdir(exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, path / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copyfile(source, path / name)
    text = (path / LIST).read_text(encoding="utf-8")
    changed = text.replace('SYSTEMS = ("procap",', f'SYSTEMS = ("procap", "{SYSTEM}",')
    assert changed != text, f"{LIST} does not begin its list with procap"
    (path / LIST).write_text(changed, encoding="utf-8")
    return path


def changed_files(path: Path) -> set[str]:
    """Files of the copy that this checkout does not have, or has with other contents; an added folder as a whole."""
    changed = set()
    for file in path.rglob("*"):
        name = file.relative_to(path).as_posix()
        if not file.is_file() or name.startswith(("data/", "runs/", ".git/")) or "__pycache__" in name:
            continue
        if name.startswith(f"idc/systems/{SYSTEM}/"):
            changed.add(f"idc/systems/{SYSTEM}")
        elif not (ROOT / name).is_file() or (ROOT / name).read_bytes() != file.read_bytes():
            changed.add(name)
    return changed
