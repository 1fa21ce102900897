"""What brings a cluster up: the launcher's YAMLs by Ray's own validation and against each other, the image and the
scripts by their linters, and the packages of both against the lock."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
LAUNCH = ROOT / "cluster" / "launch"
YAMLS = sorted(LAUNCH.glob("*.yaml"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
BIN = Path(sys.executable).parent


def read(path: Path) -> dict[str, Any]:
    config: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return config


# -- launcher YAMLs ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", YAMLS, ids=lambda path: path.stem)
def test_ray_up_accepts_it(path: Path) -> None:
    from ray.autoscaler._private.util import prepare_config, validate_config

    prepared: dict[str, Any] = prepare_config(read(path))
    validate_config(prepared)
    assert prepared["head_node_type"] in prepared["available_node_types"]
    assert prepared["idle_timeout_minutes"] > 0
    assert prepared["max_workers"] > 0


@pytest.mark.parametrize("path", YAMLS, ids=lambda path: path.stem)
def test_the_token_is_a_file_of_its_user_and_the_head_takes_no_work(path: Path) -> None:
    config, text = read(path), path.read_text(encoding="utf-8")
    assert config["file_mounts"]["~/.ray/auth_token"] == "~/.ray/auth_token"
    assert "chmod 600 ~/.ray/auth_token" in config["setup_commands"]
    assert not re.search(r"RAY_AUTH_TOKEN|[0-9a-f]{32}|AKIA|BEGIN|0\.0\.0\.0", text)
    starts = [*config["head_start_ray_commands"], *config["worker_start_ray_commands"]]
    everywhere = "RAY_AUTH_MODE=token" in " ".join(config.get("docker", {}).get("run_options", []))
    assert everywhere or all("RAY_AUTH_MODE=token" in start for start in starts if "ray start" in start)
    (head,) = [command for command in config["head_start_ray_commands"] if "ray start" in command]
    wanted = {"--num-cpus=0", "--num-gpus=0", "--dashboard-host=127.0.0.1",
              "--autoscaling-config=~/ray_bootstrap_config.yaml"}  # fmt: skip
    assert wanted <= set(head.split())


@pytest.mark.parametrize("path", YAMLS, ids=lambda path: path.stem)
def test_what_it_names_exists_and_packages_come_from_the_lock(path: Path) -> None:
    config = read(path)
    for remote, local in config["file_mounts"].items():
        assert local.startswith("~") or (ROOT / local).exists(), remote
    keys = ("setup_commands", "head_setup_commands", "head_start_ray_commands", "worker_start_ray_commands")
    for command in [one for key in keys for one in config.get(key, [])]:
        for script in re.findall(r"~/idc/(cluster/\S+)", command):
            assert config["file_mounts"][f"~/idc/{script}"] == script
        if "pip install" in command:
            assert "--constraint /opt/venv/constraints.txt" in command
    version = f"{PROJECT['version']}-ray{distribution('ray').version}"
    for image in re.findall(r"registry\.example\.org/idc:([\w.-]+)", path.read_text(encoding="utf-8")):
        assert image in (f"{version}-cpu", f"{version}-cuda"), image


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


def test_the_locks_have_what_is_installed_with_hashes_and_development_apart() -> None:
    extras = PROJECT["optional-dependencies"]
    runtime, development = pins("requirements.lock"), pins("requirements-dev.lock")
    needed = set(
        closure([*PROJECT["dependencies"], *extras["serve"], *extras["gpu"], *extras["objects"], *extras["geo"]])
    )
    assert set(runtime) == needed
    optional = [*(extra for extra in extras["dev"] if not extra.startswith("idc")), *extras["text"]]
    everything = set(closure(optional)) | needed
    assert set(development) == everything - needed - {"wheel"}  # make setup installs wheel first
    for name, version in (runtime | development).items():
        assert distribution(name).version.partition("+")[0] == version, name


# -- scripts -------------------------------------------------------------------------------------------------------


def test_scripts_pass_shellcheck() -> None:
    scripts = [*sorted(LAUNCH.glob("*.sh")), LAUNCH / "slurm.sbatch"]
    assert lint("shellcheck", *scripts) == ""
