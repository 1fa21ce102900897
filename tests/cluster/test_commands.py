"""Parts of `make demo`: the lines at its end, the log of a step, the memory that it counts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from cluster.commands import PeakMemory, StepLine, script_or_preset
from idc.systems.procap.demo import closing

GIB = 2**30


def test_it_ends_with_score_and_baseline_the_page_how_to_serve_and_to_caption_and_the_figures() -> None:
    result = {
        "scores": {"CIDEr": {"mean": 1.4541, "std": 0.0}},
        "baselines": {"constant": {"CIDEr": 0.891}, "nearest": {"CIDEr": 0.9894}},
        "pairs": 440,
        "artifact": "runs/demo/finetune-0/artifact",
        "report": "runs/demo/report.html",
    }
    assert closing(result, "demo") == [
        "score    CIDEr 1.454 on 440 held-out pairs; best baseline 0.989",
        "page     runs/demo/report.html",
        "serve    make serve",
        "caption  .venv/bin/python jobs/caption.py --artifact runs/demo/finetune-0/artifact BEFORE AFTER",
        "figures  runs/demo/result.json",
    ]
    assert closing(result, "other")[2] == 'serve    make serve SERVE="models.demo=runs/demo/finetune-0/artifact"'


def test_scripts_and_presets_are_found_from_any_folder_and_data_is_in_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = Path(__file__).resolve().parents[2]
    monkeypatch.chdir(root)
    assert script_or_preset("jobs/render.py", root) == "jobs/render.py"
    monkeypatch.chdir(tmp_path)
    assert script_or_preset("jobs/render.py", root) == str(root / "jobs" / "render.py")
    assert script_or_preset("out=data/demo/pairs", root) == "out=data/demo/pairs"


def test_a_steps_output_goes_to_its_log_and_one_line_to_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = StepLine("[1/2] render pairs", tmp_path / "logs" / "01.log")
    with line:
        line.write("(Worker pid=7) noise\nrendering 10 %\rrendering 100 %\n")
    assert capsys.readouterr().out == "[1/2] render pairs: 0 s\n"
    assert "(Worker pid=7) noise" in line.log.read_text()
    assert line.end(1) == "rendering 100 %"
    with pytest.raises(RuntimeError), line:  # noqa: PT012
        line.write("gone wrong\n")
        raise RuntimeError
    assert capsys.readouterr().out == "[1/2] render pairs: failed\n"


_HOLD = "import sys; held = bytearray({size}); print('held', flush=True); sys.stdin.read()"


def hold(size: int, *, own: bool) -> subprocess.Popen[str]:
    """A process that holds memory: a child of this one, or a neighbour, whose parent has ended."""
    code = _HOLD.format(size=size)
    if not own:
        code = f"import os\nif os.fork(): os._exit(0)\n{code}"
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def end(process: subprocess.Popen[str]) -> None:
    process.communicate()  # closes its input


def test_the_peak_memory_is_that_of_the_own_processes_and_not_of_neighbours() -> None:
    size = GIB // 4
    empty = PeakMemory().stop()
    child = hold(size, own=True)
    with_child = PeakMemory().stop()
    end(child)
    neighbour = hold(2 * size, own=False)
    with_neighbour = PeakMemory().stop()
    end(neighbour)
    assert with_child - empty > 0.9 * size / GIB
    assert abs(with_neighbour - empty) < 0.2 * size / GIB
