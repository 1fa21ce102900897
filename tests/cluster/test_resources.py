"""The memory and time line: whose processes are counted, as what kind, in which step."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from cluster import resources
from cluster.resources import ResourceRecord
from cluster.timeline import KINDS, Timeline

GIB = 2**30
_HOLD = "import sys; held = bytearray({size}); print('held', flush=True); sys.stdin.read()"


def hold(size: int, *, own: bool) -> subprocess.Popen[str]:
    """A process that holds memory: a child of this one, or a neighbour, whose parent has ended."""
    code = _HOLD.format(size=size)
    if not own:
        code = f"import os\nif os.fork(): os._exit(0)\n{code}"
    return start(sys.executable, "-c", code)


def start(*command: str, name: str | None = None) -> subprocess.Popen[str]:
    """A process that has written a line and waits for the end of its input, perhaps under another name."""
    process = subprocess.Popen(
        [name or command[0], *command[1:]],
        executable=command[0],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def end(process: subprocess.Popen[str]) -> None:
    process.communicate()  # closes its input


def peak() -> float:
    return ResourceRecord().stop().peak_gib()


def test_the_memory_is_that_of_the_own_processes_and_not_of_neighbours() -> None:
    size = GIB // 4
    empty = peak()
    child = hold(size, own=True)
    with_child = peak()
    end(child)
    neighbour = hold(2 * size, own=False)
    with_neighbour = peak()
    end(neighbour)
    assert with_child - empty > 0.9 * size / GIB
    assert abs(with_neighbour - empty) < 0.2 * size / GIB


def test_a_process_that_starts_later_and_loses_its_parent_is_counted_to_its_end() -> None:
    record = ResourceRecord()
    before = record.timeline().peak_gib()
    child = _HOLD.format(size=GIB // 4)
    parent = start(sys.executable, "-c", f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {child!r}])")
    record.sample()
    parent.kill()
    parent.wait()
    after = record.stop()
    end(parent)  # the pipe's end is the child's too
    assert [peak - before > 0.2 for peak in after.memory_gib.total()[-2:]] == [True, True]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("ray::RayTrainWorker", "workers"),
        ("ray::DashboardAgent", "Ray"),
        ("/somewhere/ray/core/src/ray/raylet/raylet", "Ray"),
        ("/somewhere/java-runtime/bin/java", "Java"),
        (None, "driver"),
    ],
)
def test_a_process_counts_as_its_kind(name: str | None, kind: str) -> None:
    child = start(sys.executable, "-c", _HOLD.format(size=GIB // 4), name=name)
    with_child = ResourceRecord().stop().memory_gib
    end(child)
    without = ResourceRecord().stop().memory_gib
    more = {one: with_child.values[one][-1] - without.values[one][-1] for one in KINDS}
    assert [one for one in KINDS if more[one] > 0.2] == [kind]


def test_a_pools_process_counts_as_a_worker() -> None:
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        pid = pool.submit(os.getpid).result()
        assert resources._kind(pid) == "workers"
    assert resources._kind(os.getpid()) == "driver"


def test_the_processor_time_of_a_step_is_that_of_its_own_processes() -> None:
    record = ResourceRecord()
    with record.step("busy"):
        burn = "import time\nwhile time.process_time() < 2: pass\n"
        busy = start(sys.executable, "-c", burn + _HOLD.format(size=1))
        record.sample()
    record.sample()
    with record.step("idle"):
        end(busy)
        record.sample()
    line = record.stop().cores
    driver = line.values["driver"]  # other kinds are this process's other children, such as a Ray of other tests
    used = [cores * (at - since) for cores, at, since in zip(driver, line.at, [0.0, *line.at], strict=False)]
    assert 1.9 < sum(used) < 4
    figures = record.timeline().figures()
    assert figures["busy"].cores["all"] >= figures["busy"].cores["driver"]
    by_step = {step: of.seconds * of.cores.get("driver", 0.0) for step, of in figures.items()}  # core-seconds
    assert by_step["busy"] > 1.5 > by_step["idle"]


def test_its_file_has_all_of_it(tmp_path: Path) -> None:
    record = ResourceRecord()
    with record.step("nothing"):
        pass
    timeline = record.stop()
    timeline.write(tmp_path / "resources.json")
    assert Timeline.model_validate_json((tmp_path / "resources.json").read_text()) == timeline
