"""The examples of requests, sent to the application that `make serve` starts in a fresh clone: those of the pages, as
their readers copy them."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from idc.config import cli
from serve.api import create_api
from serve.app import default_settings
from serve.config import CommandConfig
from tests.docs.checks import ROOT, SERVER, all_blocks
from tests.docs.test_docs import PAGES, name_of
from tests.docs.workplace import run
from tests.geo import scenes
from tests.serve.local import LocalBackend, serving


@contextmanager
def served(*settings: str) -> Iterator[str]:
    """The address of the application that the command serves by these settings; its captioner is in this process."""
    config = cli(CommandConfig, None, [*default_settings(settings), *settings], local=False, overwrite=False).config
    with serving(create_api(config, LocalBackend(config.models))) as address:
        yield address


def examples() -> dict[str, list[tuple[list[str], list[str]]]]:
    """Page -> per section the commands before its requests, and the scripts with the requests: the Python blocks so
    far as one, and the lines of curl."""
    sections: dict[str, list[tuple[list[str], list[str]]]] = {}
    for page in PAGES:
        python = ""
        for section in re.split(r"^## ", page.read_text(encoding="utf-8"), flags=re.MULTILINE):
            before, scripts, folder = [], [], ""
            for language, block in all_blocks(section):
                if language == "python" and ("openai" in block or "client.chat" in block):
                    python += block
                    scripts.append(f"{shlex.quote(sys.executable)} -c {shlex.quote(python)}")
                for line in block.replace("\\\n", " ").splitlines() if language == "" else ():
                    if line.startswith("cd "):
                        folder = f"{line.partition('#')[0]} && "
                    elif line.startswith("curl ") and SERVER in line:
                        scripts.append(folder + line.replace("curl", "curl -sS --fail-with-body", 1))
                    elif line.startswith(("make serve SERVE", "python jobs/wrap_vlm")):
                        before.append(line)
            if scripts:
                sections.setdefault(name_of(page), []).append((before, scripts))
    return sections


def test_the_pages_have_examples() -> None:
    scripts = {page: sum(len(scripts) for _, scripts in sections) for page, sections in examples().items()}
    assert {"docs/serving.md": 7, "docs/satellite.md": 1, "k8s/README.md": 1}.items() <= scripts.items()


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A fresh clone, with two GeoTIFFs of its user."""
    for name in ("serve", "jobs"):
        (tmp_path / name).symlink_to(ROOT / name)
    for seed, name in enumerate(("before", "after")):
        scenes.write(tmp_path / f"{name}.tif", scenes.ground(seed)[:64, :64])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("IDC_ROOT", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("page", examples())
def test_the_requests_of_a_page_are_answered(page: str, clone: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    for commands, scripts in examples()[page]:
        settings: list[str] = []
        for command in commands:
            if command.startswith("make"):
                settings = shlex.split(command)[-1].removeprefix("SERVE=").split()
            else:
                done = run(shlex.split(command)[1:], clone)
                assert done.returncode == 0, done.stderr
        with served(*settings) as address:
            for script in scripts:
                answered = subprocess.run(
                    ["bash", "-c", script.replace(SERVER, address)],
                    cwd=clone, env=environment, capture_output=True, text=True, timeout=120,
                )  # fmt: skip
                assert answered.returncode == 0, f"{script}\n{answered.stdout}{answered.stderr}"
                assert answered.stdout.strip()
                assert "event: error" not in answered.stdout
