"""Rendering on several processes: the same files as in one, nothing lost and nothing left behind by a kill."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from idc.data.pipeline import StageSpec, run_local
from idc.rendered.config import RenderConfig
from idc.rendered.render import RenderScenes, open_rendering
from tests.rendered.test_render import job

ROOT = Path(__file__).parents[2]


class Killed(RenderScenes):
    """The stage in a process that is killed at a scene: while the marker file is not there."""

    def __init__(self, config: RenderConfig, marker: str) -> None:
        super().__init__(config)
        self.marker = Path(marker)

    def pairs(self, index):
        if index == 2 and not self.marker.exists():
            self.marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().pairs(index)


def test_a_killed_process_is_an_error_and_the_build_continues(tmp_path):
    settings = job(tmp_path / "out", num_scenes=5)
    folder, source, stages = open_rendering(settings)
    killed = [StageSpec(Killed, {**stages[0].kwargs, "marker": str(tmp_path / "marker")})]
    with pytest.raises(RuntimeError, match="repeat the command"):
        run_local(folder, source, killed, processes=2, progress=False)
    manifest = run_local(*open_rendering(settings), processes=2, progress=False)
    assert (manifest.num_rows, manifest.complete) == (10, True)


@pytest.mark.slow
def test_no_process_is_left_when_the_command_is_killed(tmp_path):
    settings = {"width": 32, "height": 32, "samples_per_pixel": 1, "min_visible_pixels": 1}
    command = [sys.executable, str(ROOT / "jobs/render.py"), "--local", f"out={tmp_path}/pairs", "chunk_size=1"]
    command += [f"render.{name}={value}" for name, value in settings.items()]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment) as run:
        assert run.stdout is not None
        while b"rows " not in run.stdout.read1():  # a chunk is done, so the workers are at work
            assert run.poll() is None
        run.kill()
        run.stdout.read()  # ends when the last process that inherited the pipe has ended
