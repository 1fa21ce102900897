"""``ray job submit`` to a cluster with token authentication: what is uploaded, and what runs there."""

from __future__ import annotations

import subprocess
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.cluster.heads import RAY, Head, clean_environment, running_head
from tests.systems.procap.world import World

ROOT = Path(__file__).resolve().parents[2]
TOKEN = "5" * 64


def test_an_upload_is_the_code_alone(tmp_path: Path) -> None:
    """The zip file that Ray makes of the working folder: no weights, pictures, tests or secrets, no file over 50 kB."""
    from ray._private.ray_constants import get_runtime_env_default_excludes
    from ray._private.runtime_env.packaging import create_package

    create_package(
        str(ROOT), tmp_path / "code.zip", include_gitignore=True, excludes=get_runtime_env_default_excludes()
    )
    with zipfile.ZipFile(tmp_path / "code.zip") as package:
        sizes = {entry.filename: entry.file_size for entry in package.infolist()}
    assert {"jobs/pretrain_procap.py", "cluster/session.py", "idc/config.py", "serve/app.py"} <= sizes.keys()
    assert "jobs/configs/procap/pretrain_demo.yaml" in sizes
    assert {name: size for name, size in sizes.items() if size > 50_000} == {}
    assert sum(sizes.values()) < 5_000_000
    assert not [name for name in sizes if name.startswith(("tests/", "docs/", "idc/weights/", "runs/", "data/"))]
    assert not [name for name in sizes if name.endswith((".safetensors", ".pem", ".key", ".pyc"))]


def test_the_documented_options_of_ray_start_exist() -> None:
    from ray.scripts.scripts import start

    options = {option for parameter in start.params for option in parameter.opts}
    page = (ROOT / "docs" / "cluster.md").read_text(encoding="utf-8").replace("\\\n", " ")
    commands = [line for line in page.splitlines() if line.startswith("ray start")]
    assert len(commands) == 2
    for command in commands:
        assert {word.partition("=")[0] for word in command.split() if word.startswith("--")} <= options


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Head]:
    environment = clean_environment(
        tmp_path_factory.mktemp("home"),
        RAY_AUTH_MODE="token",
        RAY_AUTH_TOKEN=TOKEN,
        IDC_WEIGHTS=str(ROOT / "idc/weights"),
    )
    with running_head(environment) as head:
        yield head


@pytest.mark.ray
@pytest.mark.slow
def test_a_training_runs_on_the_cluster_that_it_is_submitted_to(head: Head, world: World, tmp_path: Path) -> None:
    job = world.pretrain({"train.steps": 2}).model_dump(mode="json", exclude_none=True)
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(job))
    command = ("python", "jobs/pretrain_procap.py", "--config", str(tmp_path / "tiny.yaml"), "name=submitted")
    settings = yaml.safe_load((ROOT / "cluster" / "runtime_env.yaml").read_text())
    assert set(settings["env_vars"]) == {"IDC_ROOT"}
    settings["env_vars"]["IDC_ROOT"] = str(tmp_path)
    (tmp_path / "runtime_env.yaml").write_text(yaml.safe_dump(settings))
    done = subprocess.run(
        [RAY, "job", "submit", "--working-dir", ".", "--runtime-env", tmp_path / "runtime_env.yaml", "--", *command],
        cwd=ROOT, capture_output=True, text=True, timeout=500, check=False,
        env=clean_environment(
            tmp_path, RAY_API_SERVER_ADDRESS=head.url, RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=TOKEN
        ),
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "runs" / "submitted" / "artifact" / "model.safetensors").exists(), done.stdout
