"""``ray job submit`` to a cluster with token authentication: what is uploaded, who is refused, and what runs there."""

from __future__ import annotations

import subprocess
import urllib.error
import urllib.request
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.cluster.heads import RAY, Head, clean_environment, running_head
from tests.systems.procap.world import World

ROOT = Path(__file__).resolve().parents[2]
TOKEN, WRONG = "5" * 64, "6" * 64


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


def submit(head: Head, home: Path, token: str | None, *command: str, root: Path | None = None) -> tuple[int, str]:
    """Status and output of the documented line, in an environment that has nothing of Ray's but this token."""
    auth = {} if token is None else {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token}
    runtime_env = []
    if root is not None:
        settings = yaml.safe_load((ROOT / "cluster" / "runtime_env.yaml").read_text())
        assert set(settings["env_vars"]) == {"IDC_ROOT"}
        settings["env_vars"]["IDC_ROOT"] = str(root)
        (home / "runtime_env.yaml").write_text(yaml.safe_dump(settings))
        runtime_env = ["--runtime-env", str(home / "runtime_env.yaml")]
    done = subprocess.run(
        [RAY, "job", "submit", "--working-dir", ".", *runtime_env, "--", *command],
        cwd=ROOT, env=clean_environment(home, RAY_API_SERVER_ADDRESS=head.url, **auth),
        capture_output=True, text=True, timeout=500, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


def status_of(url: str, token: str | None) -> int:
    """HTTP status of a request with a token, or with none."""
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"} if token else {})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


@pytest.mark.ray
@pytest.mark.slow
def test_a_job_without_the_token_is_refused_and_does_not_run(head: Head, tmp_path: Path) -> None:
    trace = tmp_path / "ran"
    for token, reason in ((None, "authentication"), (WRONG, "token")):
        status, output = submit(head, tmp_path, token, "touch", str(trace))
        assert status != 0
        assert reason in output.lower(), output
    assert not trace.exists()
    paths = ("/api/jobs/", "/api/version", "/api/cluster_status", "/api/serve/applications/", "/logical/actors")
    assert {status_of(f"{head.url}{path}", None) for path in paths} == {401}
    assert {status_of(f"{head.url}{path}", WRONG) for path in paths} == {403}
    assert status_of(f"{head.url}/api/jobs/", TOKEN) == 200
    status, output = submit(head, tmp_path, TOKEN, "touch", str(trace))
    assert status == 0, output
    assert trace.exists()


@pytest.mark.ray
@pytest.mark.slow
def test_a_training_runs_on_the_cluster_that_it_is_submitted_to(head: Head, world: World, tmp_path: Path) -> None:
    job = world.pretrain({"train.steps": 2}).model_dump(mode="json", exclude_none=True)
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(job))
    command = ("python", "jobs/pretrain_procap.py", "--config", str(tmp_path / "tiny.yaml"), "name=submitted")
    status, output = submit(head, tmp_path, TOKEN, *command, root=tmp_path)
    assert status == 0, output
    assert (tmp_path / "runs" / "submitted" / "artifact" / "model.safetensors").exists(), output
