"""Parts of `make demo`: the lines at its end, the log of a step, what it advises after a failure."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from cluster.commands import StepLine, run_commands, run_here, script_or_preset
from idc.systems.procap.demo import advice, closing, steps


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


def test_a_step_on_this_machine_shows_its_output_and_its_failure() -> None:
    shown: list[str] = []
    run_here([sys.executable, "-c", "import sys; print('größer'); print('gone', file=sys.stderr)"], shown.append)
    assert sorted("".join(shown).split()) == ["gone", "größer"]
    with pytest.raises(RuntimeError, match="ended with status 3"):
        run_here([sys.executable, "-c", "raise SystemExit(3)"], shown.append)


def test_steps_without_ray_end_at_the_first_failure_with_its_last_lines(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.py", tmp_path / "bad.py"
    good.write_text("print('done')")
    bad.write_text("print('why'); raise SystemExit(1)")
    record = tmp_path / "resources.json"

    def run(*scripts: Path) -> dict[str, float]:
        commands = [(script.stem, [str(script)]) for script in scripts]
        return run_commands(commands, tmp_path, tmp_path / "logs", record, on_ray=False).seconds_of

    assert list(run(good)) == ["good"]
    with pytest.raises(RuntimeError, match=r"(?s)ended with status 1; the end of .*02.log:.*why"):
        run(good, bad, good)
    assert [step["title"] for step in json.loads(record.read_text())["steps"]] == ["good"]


def test_every_step_that_can_is_told_to_run_without_ray(tmp_path: Path) -> None:
    root = Path(__file__).resolve().parents[2]
    local = dict(steps("demo", [0], str(tmp_path)))
    for command in local.values():
        assert ("--local" in command) == ("local=False" not in (root / command[0]).read_text(encoding="utf-8"))
    on_ray = dict(steps("demo", [0], str(tmp_path), on_ray=True))
    assert on_ray == {title: [word for word in command if word != "--local"] for title, command in local.items()}
