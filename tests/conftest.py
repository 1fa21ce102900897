"""Tests see nothing of the user's: they run in an empty folder, with a home and a cache of their own and without the
settings of the environment. A file that asks for the fixture ``ray_session`` gets a local Ray on a private folder."""

from __future__ import annotations

import os
import runpy
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import chdir, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

if TYPE_CHECKING:
    from idc.metrics.java import Meteor
    from tests.systems.procap.world import Images, World

OWN = tempfile.mkdtemp(prefix="tests-of-idc-")
"""Home and cache of this process and of all that it starts."""
for name in [name for name in os.environ if name.startswith(("IDC_", "MLFLOW_", "RAY_", "HF_", "AWS_", "XDG_"))]:
    del os.environ[name]
os.environ.update(
    {
        "HOME": OWN,
        "IDC_CACHE": f"{OWN}/cache",
        "RAY_AUTH_MODE": "disabled",
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # as in cluster.session; Ray reads it when it is imported
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_DEDUP_LOGS": "1",
        "RAY_TRAIN_ENABLE_PRINT_PATCH": "0",
        "RAY_DATA_EXECUTION_NO_PROGRESS_TIMEOUT_S": "120",
        "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "30",
        "RAY_worker_niceness": "0",  # workers wait for nobody on a busy machine (the default is 15)
        "OMP_NUM_THREADS": "1",
        "TESTS_OF": str(os.getpid()),  # marks all processes of this run of the tests
        "SPT_NOENV": "1",  # Ray's processes, which name themselves, keep their environment readable
    }
)
ROOT = str(Path(__file__).parents[1])
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [ROOT, os.environ.get("PYTHONPATH")]))  # for workers, jobs
from tests.shell import SHELL  # noqa: E402, F401  (read before a Ray of this process adds its variables)


def pytest_unconfigure() -> None:
    shutil.rmtree(OWN, ignore_errors=True)


@pytest.fixture(scope="session", autouse=True)
def empty_working_directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Of all tests: `make demo` leaves captioners in the checkout's ``runs/``, which ``auto`` would choose. Fails the
    last test if a test has written into it."""
    folder = tmp_path_factory.mktemp("empty")
    with chdir(folder):
        yield
    assert os.listdir(folder) == [], "tests write to folders of their own"


def _processes_of_ray() -> dict[psutil.Process, str]:
    """Those of all Rays that these tests have started, directly or by a command, with their command lines."""
    processes = {}
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            name = " ".join(process.cmdline()[:3])
            if ("ray::" in name or "/ray/" in name) and process.environ().get("TESTS_OF") == str(os.getpid()):
                processes[process] = name
    return processes


@pytest.fixture(scope="session", autouse=True)
def nothing_of_ray_outlives_the_tests() -> Iterator[None]:
    """Fails the last test if a process of a Ray is there when all have ended, and ends it."""
    yield
    processes = _processes_of_ray()
    _, left = psutil.wait_procs(list(processes), timeout=30)
    for process in left:
        process.kill()
    assert [processes[process] for process in left] == [], "they outlive the tests that started them, and are ended"


@pytest.fixture(scope="module")
def ray_session() -> Iterator[None]:
    """Ray with 4 logical CPUs and a 200 MB object store. One for all files hung twice in the last of them: Ray 2.60
    stopped telling the driver what became of its actors, after 25 minutes with long pauses."""
    from cluster.config import ClusterConfig
    from cluster.session import session

    folder = tempfile.mkdtemp(prefix="ray-", dir="/tmp")
    config = ClusterConfig(num_cpus=4, num_gpus=0, object_store_mb=200, auth="disabled", temp_dir=folder)
    with session(config):
        yield
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """Rendered pairs, a tokenizer and procedures, all tiny; made without Ray."""
    from tests.systems.procap.world import make_world

    return make_world(tmp_path_factory.mktemp("world"))


@pytest.fixture(scope="module")
def images(world: World) -> Images:
    """Six rendered pairs, the third of other sizes."""
    from idc.data.images import decode_image
    from idc.data.store import iter_rows

    rows = [row for _, row in zip(range(6), iter_rows(world.pairs), strict=False)]
    befores, afters = ([decode_image(row[name]) for row in rows] for name in ("before", "after"))
    befores[2], afters[2] = befores[2].repeat(2, axis=0), afters[2][:20]
    return befores, afters


@pytest.fixture(scope="session")
def captioner_artifact(world: World, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ProCap of 32x32 pixels that went through both stages, 30 steps of the second. Not to be written to: copy
    it."""
    from tests.systems.procap.world import start

    folder = tmp_path_factory.mktemp("captioner")
    start(world.pretrain({"train.steps": 2}), folder / "pretrain")
    steps = {"train.steps": 30, "validation_pairs": 2, "beams": 3}
    start(world.finetune(steps, pretrained=str(folder / "pretrain" / "artifact")), folder / "finetune")
    return folder / "finetune" / "artifact"


@pytest.fixture(scope="session")
def mlflow_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty MLflow database; MLflow takes seconds to make one, a copy takes none."""
    from mlflow import MlflowClient

    path = tmp_path_factory.mktemp("mlflow") / "mlflow.db"
    MlflowClient(tracking_uri=f"sqlite:///{path}").search_registered_models()
    return path


@pytest.fixture
def tracking_uri(mlflow_database: Path, tmp_path: Path) -> str:
    """Of an MLflow of this test's own: ``mlflow.db`` in its folder."""
    shutil.copyfile(mlflow_database, tmp_path / "mlflow.db")
    return f"sqlite:///{tmp_path / 'mlflow.db'}"


@pytest.fixture(scope="session")
def artifact(world: World, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The artifact of a ProCap of 32x32 pixels, trained for 30 steps without Ray."""
    from cluster.train import TrainingRun, launch

    job = world.finetune({"train.steps": 30})
    payload = job.model_dump(mode="json", exclude={"train"})
    folder = tmp_path_factory.mktemp("captioner") / "run"
    launch(TrainingRun.in_folder(job.ENTRY, payload, job.train, folder), local=True)
    return str(folder / "artifact")


Command = Callable[..., "subprocess.CompletedProcess[str]"]
"""Runs ``jobs/NAME.py`` with arguments; see :func:`command`."""


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs a job as its command line does, but in this process, which has loaded torch already."""

    def run(job: str, *arguments: object) -> subprocess.CompletedProcess[str]:
        monkeypatch.setattr(sys, "argv", [f"{job}.py", *map(str, arguments)])
        capsys.readouterr()
        status, message = 0, ""
        try:
            runpy.run_path(str(Path(ROOT, "jobs", f"{job}.py")), run_name="__main__")
        except SystemExit as end:
            if isinstance(end.code, str):
                status, message = 1, f"{end.code}\n"
            else:
                status = end.code or 0
        printed = capsys.readouterr()
        # The next command is one of the same folder of scripts, which the test did not name.
        out, err = (
            text.replace(f"python {ROOT}/jobs/", "python jobs/") for text in (printed.out, printed.err + message)
        )
        return subprocess.CompletedProcess([job, *arguments], status, out, err)

    return run


@pytest.fixture
def waited(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds that a client of a language model would wait between attempts; it does not wait."""
    import anyio

    seconds: list[float] = []

    async def sleep(delay: float) -> None:
        seconds.append(delay)

    monkeypatch.setattr(anyio, "sleep", sleep)
    return seconds


@pytest.fixture(scope="session")
def meteor() -> Meteor:
    """METEOR, whose table is cut once for most tests of the scores."""
    from benchmarks.scoring import generated
    from idc.metrics.java import Meteor

    return Meteor(text for p in generated(200, 5) for text in (p.caption, *p.references))
