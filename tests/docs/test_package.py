"""What pip installs: one top-level package, whose commands run without the repository."""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from PIL import Image

from idc.training.config import TrainConfig
from tests.docs.checks import ROOT
from tests.test_layers import modules_of

NOT_PACKAGED = {"tests", "docs", "k8s"}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The unpacked wheel, built from a copy of the repository's files."""
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("site")
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    for name in subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0"):
        if name and not name.startswith("tests/") and (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, source / name)
    build = "import sys; from setuptools import build_meta; print(build_meta.build_wheel(sys.argv[1]))"
    done = subprocess.run([sys.executable, "-c", build, str(target)], cwd=source, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (wheel,) = target.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(target)
    wheel.unlink()
    return target


def run(installed: Path, arguments: Sequence[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """``idc`` of the wheel, outside of the repository."""
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    environment.pop("IDC_ROOT", None)
    command = [sys.executable, "-m", "idc", *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)


def test_the_wheel_has_one_top_level_package(installed: Path) -> None:
    assert {path.name for path in installed.iterdir() if path.suffix != ".dist-info"} == {"idc"}
    assert "License-Expression: Apache-2.0" in next(installed.glob("*.dist-info/METADATA")).read_text(encoding="utf-8")


def test_all_files_of_the_package_and_of_the_commands_are_in_the_wheel(installed: Path) -> None:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    where = {"idc": "", **dict.fromkeys(("jobs", "cluster", "serve", "benchmarks"), "idc/_commands")}
    for name in filter(None, listed.split("\0")):
        if (folder := name.split("/")[0]) in where and (ROOT / name).exists():
            assert (installed / where[folder] / name).read_bytes() == (ROOT / name).read_bytes(), name
        assert folder in where or not name.endswith(".py") or folder in {*NOT_PACKAGED, "setup.py"}, name


def test_a_command_runs_from_the_wheel_with_a_preset_and_writes_to_the_working_directory(
    installed: Path, tmp_path: Path
) -> None:
    (tmp_path / "cluster").mkdir()  # a folder of the user's, which is not ours
    preset = ["--config", "jobs/configs/render/demo.yaml", "render.num_scenes=1", "out=pairs", "--local"]
    done = run(installed, ["render", *preset], tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "pairs" / "manifest.json").exists()
    assert not (installed / "idc" / "_commands" / "pairs").exists()


def test_the_weights_of_the_wheel_caption(installed: Path, tmp_path: Path) -> None:
    for name, grey in (("before.png", 90), ("after.png", 120)):
        Image.new("RGB", (96, 64), (grey, grey, grey)).save(tmp_path / name)
    done = run(installed, ["caption", "before.png", "after.png", "--artifact", "shipped", "--json"], tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert Path(found["artifact"]) == installed / "idc" / "weights" / "clevr_like"
    assert found["caption"]
    assert found["captioner"] == "shipped"


def test_the_command_lists_all_and_refuses_an_unknown_one(installed: Path, tmp_path: Path) -> None:
    listed = run(installed, [], tmp_path).stdout
    for job in (ROOT / "jobs").glob("*.py"):
        assert f"  {job.stem.replace('_', '-')} " in listed
    assert "  serve " in listed
    assert run(installed, ["--path"], tmp_path).stdout.strip() == str(installed / "idc" / "_commands")
    refused = run(installed, ["captoin"], tmp_path)
    assert refused.returncode == 2
    assert "did you mean 'caption'" in refused.stderr


def test_every_package_that_is_imported_is_a_dependency() -> None:
    """By the names of what is imported; extras are for the server, DeepSpeed, words on images, GeoTIFFs, documents,
    agents, tests."""
    extras = {name: names(texts) for name, texts in PROJECT["optional-dependencies"].items()}
    base, serve = names(PROJECT["dependencies"]), extras["serve"]
    optional = {
        "gpu": "deepspeed", "text": "rapidocr", "geo": "rasterio", "documents": "pypdfium2", "mcp": "mcp",
    }  # fmt: skip
    for extra, package in {**optional, "dev": "playwright"}.items():
        assert package in extras[extra]
    assert imported("idc") - set(optional.values()) <= base
    assert imported("jobs") <= base
    assert imported("serve") <= base | serve
    assert imported("cluster") | imported("benchmarks") <= base | serve | {"deepspeed", "playwright", "trl", "datasets"}


MODULES = {"cv2": "opencv-python-headless", "PIL": "pillow", "yaml": "PyYAML", "sklearn": "scikit-learn",
           "skimage": "scikit-image", "pydantic_core": "pydantic", "faiss": "faiss-cpu"}  # fmt: skip
OWN = {"idc", "cluster", "jobs", "serve", "benchmarks", "tests"}


def names(requirements: Sequence[str]) -> set[str]:
    """The normalised names of requirements."""
    return {normal(text.split("[")[0].split(">")[0].split("=")[0]) for text in requirements}


def normal(name: str) -> str:
    return name.lower().replace("_", "-")


def imported(folder: str) -> set[str]:
    """The packages from elsewhere that the modules of a folder import."""
    tops = {name.split(".")[0] for path in (ROOT / folder).rglob("*.py") for name in modules_of(path)}
    return {normal(MODULES.get(name, name)) for name in tops - OWN - sys.stdlib_module_names}


def test_the_pins_are_within_the_ranges() -> None:
    pins = {
        normal(name): version
        for lock in ("requirements.lock", "requirements-dev.lock")
        for name, version in re.findall(r"^([\w.-]+)==(\S+)", (ROOT / lock).read_text(encoding="utf-8"), re.MULTILINE)
    }
    for text in itertools.chain(PROJECT["dependencies"], *PROJECT["optional-dependencies"].values()):
        requirement = Requirement(text)
        if normal(requirement.name) not in {"idc", "setuptools", "wheel"}:
            assert requirement.specifier.contains(pins[normal(requirement.name)]), text


def test_deepspeed_is_asked_for_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    train = TrainConfig(steps=1, engine="deepspeed")
    assert list(train.preflight()) == []
    monkeypatch.setattr("idc.training.config.find_spec", lambda name: find_spec(name) if name != "deepspeed" else None)
    (fault,) = train.preflight()
    assert "pip install 'idc[gpu]'" in fault
