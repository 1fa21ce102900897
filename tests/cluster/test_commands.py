"""Parts of `make demo`: the lines at its end, the log of a step, what it advises after a failure."""

from __future__ import annotations

from pathlib import Path

import pytest

from cluster.commands import StepLine, script_or_preset
from idc.systems.procap.demo import advice, closing


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


def test_after_a_failure_it_names_both_folders_of_the_demo() -> None:
    assert "data/mine and runs/mine" in advice("mine")
    assert "--folder NAME" in advice("mine")
