"""What brings a cluster up: the image and the scripts by their linters, and the packages of both against the lock."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
LAUNCH = ROOT / "cluster" / "launch"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
BIN = Path(sys.executable).parent


# -- image and packages --------------------------------------------------------------------------------------------


def lint(*command: str | Path) -> str:
    done = subprocess.run([BIN / command[0], *command[1:]], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def test_the_dockerfile_passes_hadolint_and_copies_what_is_there() -> None:
    assert lint("hadolint", "cluster/Dockerfile") == ""
    text = (ROOT / "cluster" / "Dockerfile").read_text(encoding="utf-8")
    copied = [line.split()[1:-1] for line in text.splitlines() if line.startswith("COPY ") and "--from" not in line]
    sources = [source for sources in copied for source in sources]
    assert sources[-1] == "."
    assert all((ROOT / source).exists() for source in sources)
    allowed = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    assert all((ROOT / name).exists() for name in allowed)
    assert {source.split("/")[0] for source in sources[:-1]} <= set(allowed)


def closure(wanted: list[str]) -> Iterator[str]:
    """The names of the packages that an installation of these requirements has, as they are installed here."""
    pending = [Requirement(one) for one in wanted]
    done: set[tuple[str, str]] = set()
    while pending:
        one = pending.pop()
        name = canonicalize_name(one.name)
        yield name
        for extra in ("", *one.extras):
            if (name, extra) in done:
                continue
            done.add((name, extra))
            for text in distribution(name).requires or ():
                needed = Requirement(text)
                if needed.marker is None or needed.marker.evaluate({"extra": extra}):
                    pending.append(needed)


def pins(lock: str) -> dict[str, str]:
    """Name -> version of a lock file whose entries all have hashes."""
    entries = re.split(r"^(?=\w)", (ROOT / lock).read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    versions = {}
    for entry in entries:
        match = re.fullmatch(r"([\w.-]+)==(\S+)(?: \\\n    --hash=sha256:[0-9a-f]{64})+\n", entry)
        assert match is not None, entry
        versions[canonicalize_name(match[1])] = match[2]
    return versions


DEPLOYED = ("serve", "gpu", "objects", "geo", "documents")


def test_the_locks_have_what_is_installed_with_hashes_and_development_apart() -> None:
    extras = PROJECT["optional-dependencies"]
    runtime, development = pins("requirements.lock"), pins("requirements-dev.lock")
    needed = set(closure([*PROJECT["dependencies"], *(text for name in DEPLOYED for text in extras[name])]))
    assert set(runtime) == needed
    optional = [*(extra for extra in extras["dev"] if not extra.startswith("idc")), *extras["text"], *extras["mcp"]]
    everything = set(closure(optional)) | needed
    assert set(development) == everything - needed - {"wheel"}  # make setup installs wheel first
    for name, version in (runtime | development).items():
        assert distribution(name).version.partition("+")[0] == version, name


# -- scripts -------------------------------------------------------------------------------------------------------


def test_scripts_pass_shellcheck() -> None:
    scripts = [*sorted(LAUNCH.glob("*.sh")), LAUNCH / "slurm.sbatch"]
    assert lint("shellcheck", *scripts) == ""
