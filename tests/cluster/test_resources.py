"""The memory and time line: whose processes are counted, as what kind, in which step."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from cluster.resources import ResourceRecord
from idc.report.timeline import KINDS, Timeline

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
    orphan = start(sys.executable, "-c", _PARENT_THAT_ENDS.format(child=_HOLD.format(size=GIB // 4)))
    timeline = record.stop()
    end(orphan)
    assert timeline.peak_gib() - before > 0.2


_PARENT_THAT_ENDS = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", \"\"\"{child}\"\"\"])
time.sleep(2.5)  # two samples see both
"""


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
    at_peak = ResourceRecord().stop().memory_gib
    end(child)
    largest = max(KINDS, key=lambda one: at_peak.values[one][-1] - (at_peak.values[one][-1] if one != kind else 0))
    assert largest == kind
    assert at_peak.values[kind][-1] > 0.2


def test_the_processor_time_of_a_step_is_that_of_its_own_processes() -> None:
    record = ResourceRecord()
    with record.step("busy"):
        code = "import time\nend = time.process_time() + 2\nwhile time.process_time() < end: pass\nprint('held')"
        subprocess.run([sys.executable, "-c", code + "\ntime.sleep(1.5)"], check=True, stdout=subprocess.DEVNULL)
        start(sys.executable, "-c", "print('held', flush=True)").communicate()
    with record.step("idle"):
        time.sleep(2.2)
    figures = record.stop().figures()
    busy = figures["busy"]
    assert 1.5 < busy.cores["all"] * busy.seconds < 4
    assert busy.cores["driver"] == busy.cores["all"]
    assert figures["idle"].cores["all"] * figures["idle"].seconds < 0.5


def test_a_file_of_it_is_read_as_it_was_written_and_another_file_is_refused(tmp_path: Path) -> None:
    record = ResourceRecord()
    with record.step("nothing"):
        pass
    timeline = record.stop()
    timeline.write(tmp_path / "resources.json")
    assert Timeline.read(tmp_path / "resources.json") == timeline
    (tmp_path / "other.json").write_text('{"steps": 3}')
    with pytest.raises(ValueError, match=r"other.json is not the resources.json of a demo"):
        Timeline.read(tmp_path / "other.json")
