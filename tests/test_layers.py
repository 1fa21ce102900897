"""Imports go one way (DESIGN, section 2), and importing the library costs nothing."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
HEAVY = ("torch", "ray", "mlflow", "transformers", "deepspeed", "diffusers")

FORBIDDEN = {
    "idc": ("cluster", "jobs", "serve", "ray", "mlflow"),
    "idc/config.py": HEAVY,
    "idc/schema.py": HEAVY,
    "idc/captioning/contract.py": HEAVY,
    "idc/captioning/calibration.py": HEAVY,
    "idc/data": HEAVY,
    "idc/metrics": HEAVY,
    "idc/report": HEAVY,
    "idc/sweep": HEAVY,
    "idc/vision": ("idc.systems",),
    "idc/nn": ("idc.systems",),
    "idc/decoding.py": ("idc.systems",),
    "idc/training": ("idc.systems",),
    "cluster": ("jobs", "serve", "idc.systems"),
    "jobs": ("serve",),
    "serve": ("cluster", "jobs"),
}
"""Folder or file: what it may not import, at the top or inside a function."""

RAY_ALLOWED = ("cluster/", "serve/app.py", "serve/deployment/", "tests/")


def modules_of(path: Path) -> set[str]:
    """Dotted names a file imports, anywhere in it, also inside functions; TYPE_CHECKING blocks count too."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative imports hide the layer; write the full name"
            found.add(node.module or "")
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def is_within(module: str, package: str) -> bool:
    return module == package or module.startswith(package + ".")


def python_files() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.py"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return [ROOT / name for name in listed.stdout.split() if (ROOT / name).exists()]


@pytest.mark.parametrize("layer", FORBIDDEN)
def test_a_layer_imports_nothing_above_it(layer: str) -> None:
    start = ROOT / layer
    files = [path for path in python_files() if path == start or start in path.parents]
    assert files or layer == "serve", f"{layer} has no files: is the table of this test out of date?"
    for path in files:
        for module in modules_of(path):
            wrong = [name for name in FORBIDDEN[layer] if is_within(module, name)]
            assert not wrong, f"{path.relative_to(ROOT)} imports {module}; {layer} may not import {wrong[0]}"


def test_only_the_cluster_layer_and_the_serve_deployment_import_ray() -> None:
    for path in python_files():
        name = str(path.relative_to(ROOT))
        if not name.startswith(RAY_ALLOWED):
            ray = [module for module in modules_of(path) if is_within(module, "ray")]
            assert not ray, f"{name} imports {ray[0]}; only {', '.join(RAY_ALLOWED)} may"


def test_a_system_imports_no_other_system() -> None:
    from idc.systems import SYSTEMS

    for path in python_files():
        parts = path.relative_to(ROOT).parts
        if parts[:2] != ("idc", "systems") or len(parts) < 4:
            continue
        for module in modules_of(path):
            others = [name for name in SYSTEMS if name != parts[2] and is_within(module, f"idc.systems.{name}")]
            assert not others, f"{path.relative_to(ROOT)} imports {module}"


def test_every_system_folder_is_listed_and_has_the_same_files() -> None:
    from idc.systems import SYSTEMS

    systems = ROOT / "idc" / "systems"
    folders = {path.name for path in systems.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert folders == set(SYSTEMS)
    for name in SYSTEMS:
        present = {path.name for path in (systems / name).iterdir()}
        assert {"README.md", "config.py", "model.py", "task.py", "data.py"} <= present


@pytest.mark.parametrize(
    "module", ["idc", "idc.config", "idc.schema", "idc.data.store", "idc.data.images", "idc.metrics.coco",
               "idc.evaluation.record", "idc.systems", "idc.systems.procap.config", "idc.training.config",
               "idc.vision.config", "idc.data.rendered.config", "idc.report.html", "idc.sweep.config",
               "idc.sweep.summary", "idc.systems.procap.sweep", "idc.captioning.contract", "idc.captioning.calibration",
               "idc.captioning.pair", "serve.config", "serve.schema", "serve.versions", "serve.api", "serve.app",
               "idc.captioning.table"],
)  # fmt: skip
def test_importing_loads_no_heavy_library_and_makes_nothing(module: str, tmp_path: Path) -> None:
    code = f"import sys, {module}; print([name for name in {HEAVY!r} if name in sys.modules])"
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env={"PYTHONPATH": str(ROOT), "PATH": ""},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() == "[]"
    assert not list(tmp_path.iterdir()), "importing wrote files"
