"""Adds the commands to the wheel, as ``idc/_commands``; everything else is in pyproject.toml.

``cluster``, ``jobs`` and ``serve`` are top-level packages of the repository, but too general as names in site-packages.
``idc/__main__.py`` (the command ``idc``) runs them from there. An editable install uses the repository's own folders.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

COMMANDS = ("jobs", "cluster", "serve", "benchmarks")


class BuildWithCommands(build_py):
    """``build_py``, then a copy of the commands."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return
        target = Path(self.build_lib) / "idc" / "_commands"
        shutil.rmtree(target, ignore_errors=True)
        for name in filter(Path.is_dir, map(Path, COMMANDS)):
            shutil.copytree(name, target / name, ignore=shutil.ignore_patterns("__pycache__"))


if __name__ == "__main__":
    setup(cmdclass={"build_py": BuildWithCommands})
