"""Prints what jobs and Serve need, one requirement per line, from pyproject.toml: the image installs it before it holds
any code, with requirements.lock as constraints, so that a change of the code installs nothing anew.

    python cluster/runtime_requirements.py > wanted.txt
    pip install --constraint requirements.lock --requirement wanted.txt
"""

from __future__ import annotations

import tomllib
from pathlib import Path

EXTRAS = ("serve", "gpu")
"""Of pyproject.toml; without ``dev``, the tests' and linters' packages."""


def requirements(project: Path) -> list[str]:
    """The dependencies of a pyproject.toml and of its extras :data:`EXTRAS`."""
    table = tomllib.loads(project.read_text(encoding="utf-8"))["project"]
    return [*table["dependencies"], *(one for extra in EXTRAS for one in table["optional-dependencies"][extra])]


def main() -> None:
    print("\n".join(requirements(Path(__file__).resolve().parents[1] / "pyproject.toml")))


if __name__ == "__main__":
    main()
