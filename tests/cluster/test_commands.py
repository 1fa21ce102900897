"""Parts of `make demo`: the lines at its end, the log of a step, what it advises after a failure."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster.commands import run_commands
from idc.demo.run import DEFAULT, demo_steps, demo_systems, folders_of, in_two_queues
from idc.demo.summary import closing, demo_summary
from idc.demo.system import DemoStep
from idc.evaluation import record as ev
from idc.evaluation.score import evaluate_captions
from idc.metrics.scene_scores import hallucination, truth_of
from tests.conftest import Command

ROOT = Path(__file__).resolve().parents[2]


def a_captioner(cider: float, right: float) -> dict[str, Any]:
    rate = {"mean": right, "std": 0.0, "interval": [right - 0.05, right + 0.04], "chance": 0.1}
    claims = {"change type": rate, "object": rate}
    return {"scores": {"CIDEr": {"mean": cider, "std": 0.0}}, "claims": claims, "figures": {}}


def test_it_ends_with_the_captioners_the_pages_how_to_serve_and_to_caption_and_the_figures() -> None:
    result = {
        "captioner": "TwinCap",
        "captioners": {"ProCap": a_captioner(1.4541, 0.2), "TwinCap": a_captioner(1.9, 0.95)},
        "baselines": {"constant": {"CIDEr": 0.891}, "nearest": {"CIDEr": 0.9894}},
        "pairs": 440,
        "artifact": "runs/demo/twincap-0/artifact",
        "report": "runs/demo/report.html",
        "leaderboard": "runs/demo/leaderboard/rendered-1234.html",
    }
    first, second, *others = closing(result, "demo")
    assert first.startswith("TwinCap  CIDEr 190.0, right type 95.0 % (90.0 to 99.0), right object 95.0 %")
    assert first.endswith("; 440 held-out pairs, best untrained baseline CIDEr 98.9")
    assert second.startswith("ProCap   CIDEr 145.4, right type 20.0 %")
    lines = (
        "runs/demo/report.html", "rendered-1234.html", "serve.app models.demo=runs/demo/twincap-0/artifact",
        "--artifact runs/demo/twincap-0/artifact BEFORE AFTER", "sqlite:///runs/demo/mlflow.db", "result.json",
    )  # fmt: skip
    assert all(part in line for part, line in zip(lines, others, strict=True))
    assert closing({**result, "captioner": "ProCap"}, "demo")[0].startswith("ProCap   CIDEr 145.4")
    guide = {"scores": {"CIDEr": {"mean": 1.364}}, "claims": {}, "figures": {"mIoU": 0.8518}}
    assert closing({**result, "captioner": "Guide", "captioners": {"Guide": guide}}, "demo")[0].startswith(
        "Guide    CIDEr 136.4, mIoU 85.2; 440 held-out pairs"
    )


def test_a_steps_output_goes_to_its_log_and_one_line_to_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = "print('(Worker pid=7) caf\u00e9\\nrendering 10 %\\rrendering 100 %')"
    run_commands([("render pairs", ["-c", script], None)], tmp_path / "logs")
    assert re.fullmatch(r"\[1/1\] render pairs: \d+ s", capsys.readouterr().out.splitlines()[1])
    lines = (tmp_path / "logs" / "01.log").read_text().splitlines()
    assert lines[1:] == ["(Worker pid=7) caf\u00e9", "rendering 10 %", "rendering 100 %"]
    with pytest.raises(RuntimeError, match=r"ended with status 3; the end of .*01\.log"):
        run_commands([("render pairs", ["-c", "exit(3)"], None)], tmp_path / "logs")
    assert capsys.readouterr().out.endswith("[1/1] render pairs: failed\n")


def test_queues_run_side_by_side_each_in_order_and_share_the_cores(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first queue's only command waits for what the second one's last command writes; then one that runs alone."""
    monkeypatch.setenv("OMP_NUM_THREADS", "99")
    wait, write, alone = (tmp_path / f"{name}.py" for name in ("wait", "write", "alone"))
    wait.write_text(
        "import pathlib, sys, time\n"
        "until = time.monotonic() + 60\n"
        "while not pathlib.Path(sys.argv[1]).exists():\n"
        "    assert time.monotonic() < until, 'the other queue waited'\n"
        "    time.sleep(0.01)\n"
    )
    write.write_text(
        "import os, pathlib, sys\n"
        "assert pathlib.Path(sys.argv[2]).exists(), 'out of order'\n"
        "pathlib.Path(sys.argv[1]).write_text(os.environ['OMP_NUM_THREADS'])\n"
    )
    alone.write_text("import os; print(os.environ['OMP_NUM_THREADS'])")
    first, last = str(tmp_path / "first"), str(tmp_path / "last")
    commands = [
        ("waits", [str(wait), last], 1), ("first", [str(write), first, str(write)], 2),
        ("last", [str(write), last, first], 2), ("alone", [str(alone)], None),
    ]  # fmt: skip
    used = run_commands(commands, tmp_path / "logs")
    assert used.seconds_of.keys() == {"waits", "first", "last", "alone"}
    assert 1 <= int(Path(last).read_text()) < 99
    assert (tmp_path / "logs" / "04.log").read_text().splitlines()[-1] == "99"
    lines = capsys.readouterr().out.splitlines()
    assert sorted(line.partition(":")[0] for line in lines[1:4]) == ["[1/4] waits", "[2/4] first", "[3/4] last"]


def test_a_failure_ends_the_run_with_its_last_lines_after_what_runs_beside_it(tmp_path: Path) -> None:
    """The good one lasts until the failed process is waited for: no further command of its queue begins."""
    bad, good = tmp_path / "bad.py", tmp_path / "good.py"
    bad.write_text("import os, pathlib, sys\npathlib.Path(sys.argv[1]).write_text(str(os.getpid()))\nsys.exit('why')")
    good.write_text(
        "import os, pathlib, sys, time\n"
        "until, pid = time.monotonic() + 60, pathlib.Path(sys.argv[1])\n"
        "while time.monotonic() < until and not (pid.exists() and pid.read_text()): time.sleep(0.01)\n"
        "while time.monotonic() < until and os.path.exists(f'/proc/{pid.read_text()}'): time.sleep(0.01)\n"
        "print('done')"
    )
    pid = str(tmp_path / "pid")
    commands = [
        ("bad", [str(bad), pid], 1), ("after bad", [str(good), pid], 1), ("good", [str(good), pid], 2),
        ("after good", [str(good), pid], 2), ("never", [str(good), pid], None),
    ]  # fmt: skip
    with pytest.raises(RuntimeError, match=r"(?s)ended with status 1; the end of .*01.log:.*why"):
        run_commands(commands, tmp_path / "logs")
    assert "done" in (tmp_path / "logs" / "03.log").read_text()
    assert sorted(path.name for path in (tmp_path / "logs").iterdir()) == ["01.log", "03.log"]


def test_every_step_of_the_demo_is_a_valid_command(command: Command) -> None:
    for step in demo_steps("demo", [0]):
        job, *arguments = step.command
        if job == "jobs/leaderboard.py":
            continue  # it has options, no settings; tests/report/test_leaderboard.py gives them
        run = command(Path(job).stem, *arguments, "--print-config")
        assert run.returncode == 0, f"{step.title}: {run.stderr}"
    steps = list(demo_steps("demo", [0, 1]))
    assert len({step.title for step in steps}) == len(steps), "figures are kept by title"
    trainings = [step for step in steps if any("cpus_per_worker" in word for word in step.command)]
    assert {step.queue for step in trainings} == {1, 2}, "two systems share the cores"
    jobs = [Path(step.command[0]).stem for step in steps]
    assert (jobs.count("train_tokenizer"), jobs.count("train_twincap")) == (1, 2), "a seed repeats its own steps"
    assert sum("train.seed=1" in step.command for step in steps) == 5, "TwinCap, both stages of ProCap, both rewarded"


def test_captioners_are_evaluated_with_and_without_rewards_and_calibrated_after_them(command: Command) -> None:
    steps = list(demo_steps("demo", [0]))
    for name, runs in {"TwinCap": ("twincap-0", "twincap-rewarded-0"), "NAMC": ("namc-0", "namc-rewarded-0")}.items():
        chain = steps if name == "TwinCap" else list(demo_steps("demo", [0], systems=["namc"]))
        titles = [step.title for step in chain]
        order = [
            f"evaluate {name} without rewards on the test split", f"{name}, rewards", f"calibrate {name}",
            f"evaluate {name} on the test split",
        ]  # fmt: skip
        plain, rewards, calibration, rewarded = (chain[titles.index(title)].command for title in order)
        assert [titles.index(title) for title in order] == sorted(titles.index(title) for title in order)
        before, after = (f"artifact=runs/demo/{run}/artifact" for run in runs)
        assert (before in plain, before in rewards, after in calibration, after in rewarded) == (True,) * 4
        assert sum(title.startswith("calibrate") and name in title for title in titles) == 1
    (page,) = (step.command for step in steps if step.title == "write the page")
    shown = yaml.safe_load(command("evaluate", *page[1:], "--print-config").stdout)
    assert shown["evaluations"] == ["runs/demo/twincap-rewarded-0/evaluation"]
    assert shown["compare"] == {
        "TwinCap without rewards": ["runs/demo/twincap-0/evaluation"],
        "ProCap": ["runs/demo/finetune-rewarded-0/evaluation"],
        "ProCap without rewards": ["runs/demo/finetune-0/evaluation"],
    }


def test_a_system_of_other_pairs_has_a_demo_of_its_own(command: Command) -> None:
    """Next to the data of the others in the same folder; never together with them."""
    steps = list(demo_steps("demo", [0, 1], systems=["changevg"]))
    assert sum("build_changeimti" in step.command[0] for step in steps) == 1, "the questions are those of every seed"
    assert steps[0].command[2:] == [
        "jobs/configs/render/satellite_small.yaml", "out=data/demo/satellite_small/pairs", "--local",
    ]  # fmt: skip
    for step in steps:
        job, *arguments = step.command
        assert not any("data/demo/pairs" in word for word in arguments), step.title
        if job != "jobs/leaderboard.py":
            run = command(Path(job).stem, *arguments, "--print-config")
            assert run.returncode == 0, f"{step.title}: {run.stderr}"
    assert any("out=data/demo/satellite_small/guided-0" in step.command for step in steps)
    with pytest.raises(ValueError, match=r"twincap with demo, changevg with satellite_small .* give each its own"):
        demo_systems(["twincap", "changevg"])


def test_the_figures_of_the_guide_are_those_of_its_notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (guide,) = demo_systems(["changevg"])
    (folders,) = folders_of("mine", [3], guide.rendering)
    notes = Path("data/mine/satellite_small/guided-3")
    notes.mkdir(parents=True)
    answers = [{"type": "binary", "scores": {"Accuracy": 0.9}}, {"type": "count", "scores": {"MAE": 0.2}}]
    scores = {"answers": answers, "map": {"mIoU": 0.8}, "map_unchanged": {"mIoU": 0.3}}
    (notes / "guide.json").write_text(json.dumps({"val": {}, "test": scores}))
    figures = {"mIoU of the guide": 0.8, "of no change anywhere": 0.3, "changed or not, by the guide": 0.9}
    assert guide.figures(folders) == figures


def test_every_system_alone_trains_is_evaluated_and_compared() -> None:
    for name in DEFAULT:
        (one,) = demo_systems([name])
        own = list(demo_steps("mine", [0], systems=[name]))
        assert {step.queue for step in own} == {None}, "one system has all cores"
        assert not any("cpus_per_worker" in word for step in own for word in step.command)
        (folders,) = folders_of("mine", [0])
        evaluation = f"{one.folder(folders)}/evaluation"
        assert sum(f"out={evaluation}" in step.command for step in own) == 1
        assert evaluation in own[-1].command
        assert not any("robust" in word for step in demo_steps("mine", [0], systems=[name], robustness=False)
                       for word in step.command)  # fmt: skip


def test_what_several_systems_need_or_takes_all_cores_is_made_before_all_else() -> None:
    both = DemoStep("tokenizer", ["jobs/t.py"], trains=True)
    first = [DemoStep("a", ["jobs/a.py"]), both, DemoStep("b", ["jobs/b.py"])]
    second = [both, DemoStep("e", ["jobs/e.py"], first=True), DemoStep("c", ["jobs/c.py"])]
    third = [DemoStep("d", ["jobs/d.py"]), DemoStep("d again", ["jobs/d.py"])]
    found = [(step.title, step.queue) for step in in_two_queues([first, second, third])]
    assert found == [("tokenizer", None), ("e", None), ("a", 1), ("b", 1), ("d", 1), ("c", 2)]


def test_what_the_demo_cannot_do_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("/tmp/mine", "../mine"):
        with pytest.raises(ValueError, match=f"--folder {folder}: give a name"):
            next(iter(demo_steps(folder, [0])))
    with pytest.raises(ValueError, match="unknown system 'nothing'; available: procap, twincap"):
        demo_systems(["procap", "nothing"])
    with pytest.raises(ValueError, match="procap procap: a system occurs twice"):
        demo_systems(["procap", "procap"])
    monkeypatch.setattr("idc.demo.run.SYSTEMS", ("procap", "procap.procedures"))
    with pytest.raises(ValueError, match=r"procap.procedures has no idc/systems/procap.procedures/demo.py"):
        demo_systems(["procap.procedures"])


def test_the_summary_takes_the_captioner_that_is_better_on_validation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    given = [ev.Prediction(pair_id=f"p{i}", caption="a b", references=["a b", "c"], change_type="move")
             for i in range(4)]  # fmt: skip
    evaluation, rows = evaluate_captions(given, metrics=("CIDEr",))
    truth = truth_of("drop", [{"size": "small", "color": "red", "material": "metal", "shape": "cube"}], [])
    claims = [hallucination([("the red cube is gone", truth)]), hallucination([("the red ball is gone", truth)])]
    data = {"data": {"data_set": "rendered", "fingerprint": "12345678abcd"}}
    evaluation = evaluation.model_copy(update={"protocol": {**evaluation.protocol, **data}})
    for one, validation, own in zip(demo_systems(DEFAULT), (1.0, 1.5), claims, strict=True):
        for folders in folders_of("mine", [0, 1]):
            runs = [Path(run) for run in one.captioners(folders).values()]
            for run in runs:
                ev.save(run / "evaluation", evaluation.model_copy(update={"hallucination": own}), rows)
            result = {"metrics": {"CIDEr": validation}, "seconds": 10.0, "seconds_per_step": 0.25}
            for name in (*runs, Path("runs/mine/tokenizer"), Path("runs/mine/pretrain-0")):
                name.mkdir(exist_ok=True)
                (name / "result.json").write_text(json.dumps(result))
    found = demo_summary("mine", [0, 1])
    assert found["captioner"] == "ProCap"
    assert found["artifact"] == "runs/mine/finetune-rewarded-0/artifact"
    assert list(found["captioners"]) == [
        "TwinCap", "TwinCap without rewards", "ProCap", "ProCap without rewards",
    ]  # fmt: skip
    assert found["leaderboard"] == "runs/mine/leaderboard/rendered-12345678.html"
    assert list(found["seconds_per_step"]) == [
        "TwinCap", "TwinCap, rewards", "tokenizer", "ProCap stage 1", "ProCap stage 2", "ProCap, rewards",
    ]  # fmt: skip
    assert found["captioners"]["TwinCap"]["claims"]["object"]["mean"] == 1.0
    procap = found["captioners"]["ProCap"]["claims"]
    assert procap["object"].pop("interval") == pytest.approx([0.0, 0.7935], abs=1e-4)
    assert procap["object"] == {"mean": 0.0, "std": 0.0, "chance": 0.0}
