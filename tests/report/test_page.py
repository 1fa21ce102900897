"""Templates: a wrong name fails, an installed package has all of them, and importing pages is cheap."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from idc.report.page import render_template

ROOT = Path(__file__).resolve().parents[2]


def test_a_template_without_one_of_its_values_fails() -> None:
    from jinja2 import UndefinedError

    with pytest.raises(UndefinedError, match="subtitle"):
        render_template("leaderboard_index.html", title="t", data_sets=[])


def test_an_installed_package_has_all_templates_and_tables() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    packed = {
        path
        for package, patterns in project["tool"]["setuptools"]["package-data"].items()
        for pattern in patterns
        for path in (ROOT / package.replace(".", "/")).glob(pattern)
    }
    folder = ROOT / "idc" / "report"
    needed = {path for path in folder.rglob("*") if path.is_file() and path.suffix not in (".py", ".pyc")}
    assert len(needed) > 10
    assert needed <= packed
    for inner in folder.rglob("*.py"):
        assert (inner.parent / "__init__.py").exists(), f"{inner.parent} is no package and would not be installed"


def test_importing_a_page_loads_neither_torch_nor_the_templates_engine() -> None:
    code = "import sys, idc.report.collect, idc.report.run; print([n for n in ('torch', 'jinja2') if n in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert found.stdout.strip() == "[]"
