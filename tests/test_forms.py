"""The forms of the commands: what ``--print-config`` prints is read back in each, and which one is chosen by what."""

from __future__ import annotations

import importlib
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

import idc.config
from idc.config import ConfigError, ConfigModel, arguments, load
from idc.data.config import RobustnessConfig
from idc.geo.config import SceneJob
from idc.report.config import RobustnessJob
from idc.training.config import KeepBest
from idc.util.command_forms import Form
from tests.test_configs import INPUTS, JOBS, SWEEPS, YAMLS, job_of

PROGRAMS = [*(f"jobs.{job}" for job in JOBS if job not in ("demo", "leaderboard")), "serve.app"]
"""The modules of all commands with settings."""


@pytest.fixture
def answer(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Runs a command in this process: what it prints, or the lines by which it is refused."""

    def run(program: str, *words: str) -> Any:
        monkeypatch.setattr(sys, "argv", [f"{program.rpartition('.')[2]}.py", *words])
        with pytest.raises(SystemExit) as left:
            importlib.import_module(program).main()
        out, err = capsys.readouterr()
        return [line.strip() for line in err.splitlines()[1:]] if left.value.code else out

    return run


def commands_of(program: str) -> list[list[str]]:
    """The arguments of the commands in a docstring, and of the presets."""
    text = (importlib.import_module(program).__doc__ or "").replace("\\\n", " ")
    started = rf"python (?:-m )?{program.replace('.', '(?:/|[.])')}(?:[.]py)?\b(.*)"
    lines = [shlex.split(line, comments=True) for line in re.findall(started, text) if "--help" not in line]
    job = program.removeprefix("jobs.")
    presets = [path for path in YAMLS if job_of(path).partition(":")[0] == job]
    return lines + [
        [*(f"--config={file}" for file in SWEEPS.get(path, [path])), *arguments(INPUTS.get(job_of(path), {}))]
        for path in presets
    ]


@pytest.mark.parametrize("program", PROGRAMS)
def test_what_print_config_prints_is_read_back_in_every_form(
    program: str, answer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forms: dict[tuple[str, ...], Form] = {}
    chosen: list[tuple[str, ...]] = []

    def parsed(of_command: list[Form], *arguments: Any) -> Any:
        forms.update({(form.setting, *form.unlike): form for form in of_command})
        return parse(of_command, *arguments)

    def choose(*arguments: Any) -> Form:
        form = choice(*arguments)
        chosen.append((form.setting, *form.unlike))
        return form

    parse, choice = idc.config._parsed, idc.config.chosen_form
    monkeypatch.setattr(idc.config, "_parsed", parsed)
    monkeypatch.setattr(idc.config, "chosen_form", choose)
    for words in commands_of(program):
        printed = answer(program, *words, "--print-config")
        file = tmp_path / "printed.yaml"
        assert isinstance(printed, str), printed
        file.write_text(printed)
        assert answer(program, "--config", str(file), "--print-config") == printed
    assert set(chosen) == forms.keys(), "the docstring shows every form"


@pytest.mark.parametrize(
    ("job", "line", "file", "setting"),
    [
        ("evaluate", "out=o", "instructions: a\nartifact: shipped", "instructions: a"),
        ("evaluate", "answers=b", "answers: a\nout: o", "answers: b"),
        ("evaluate", "evaluation=e out=o", "judge: a\nurl: http://b", "judge: a"),
        ("evaluate", "pairs=p", "evaluations: [a]\nout: o", "procedures: null"),
        ("convert", "weights=w vocabulary=v out=o", "kind: mci", "backbone_heads:"),
        ("convert", "kind=vqgan weights=w out=o", "kind: mci", "decoder_heads: 8"),
        ("caption", "b.png a.png", "beams: 3", "as_json: false"),
        ("caption", "--map out=1.png b.png a.png", "beams: 3", "map: out=1.png"),
        ("caption", "b.tif a.tif", "out: o\ntile: 512", "tile: 512"),
        ("caption", "--show 3", "input: pairs.csv\nout: o", "show: 3"),
        ("robustness", "pairs=p out=o", "kind: fog\nseverity: 5", "kind: fog"),
        ("pretrain_procap", "procedures=f build.pairs=p build.tokenizer=t", "only: procedures", "only: procedures"),
        ("finetune_changevg", "pairs=p guide=g", "out: o", "guide: g"),
    ],
)
def test_files_and_command_line_choose_the_form_together(
    job: str, line: str, file: str, setting: str, answer: Any, tmp_path: Path
) -> None:
    (tmp_path / "part.yaml").write_text(file)
    printed = answer(f"jobs.{job}", *line.split(), "--config", str(tmp_path / "part.yaml"), "--print-config")
    assert any(line.startswith(setting) for line in printed.splitlines()), printed


@pytest.mark.parametrize(
    ("job", "line", "faults"),
    [
        ("caption", "b.png --map x.png a.png --input p.csv --out=c --local",
         ["'b.png' is not of the form key=value", "'a.png' is not of the form key=value",
          "map: not used with input=; remove one of the two"]),
        ("caption", "b.png a.png tile=3 --show 3 --local",
         ["--local: not used without input= or out=", "tile: not used without out=",
          "show: not used without input= or out="]),
        ("evaluate", "artifact=a pairs=p out=o max_tokens=3 metrcs=[]",
         ["max_tokens: not used without instructions= or checklist= or judge=",
          "metrcs: no such setting; did you mean 'metrics'?"]),
        ("evaluate", "answers=a out=o judge=b --overwrite",
         ["--overwrite: not used with answers=; remove one of the two",
          "judge: not used with answers=; remove one of the two"]),
        ("convert", "kind=mci weights=w vocabulary=v out=o clip_tokenizer=c",
         ["clip_tokenizer: not used with kind=mci; remove one of the two"]),
        ("robustness", "kind=fog severity=5 pairs=p out=o corruptions.fog=[5]",
         ["corruptions: not used with kind=; remove one of the two"]),
    ],
)  # fmt: skip
def test_the_settings_of_another_form_are_named_as_such(job: str, line: str, faults: list[str], answer: Any) -> None:
    refused = answer(f"jobs.{job}", *line.split())
    assert [fault for fault in refused if "no such file" not in fault] == faults


@pytest.mark.parametrize(
    ("line", "setting"),
    [("-h", "as_json"), ("b.png --help", "as_json"), ("input= --help", "jsonl"), ("--show 3 --out o -h", "overlap")],
)
def test_the_help_is_that_of_the_form(line: str, setting: str, answer: Any) -> None:
    lines = answer("jobs.caption", *line.split()).splitlines()
    listed = [name for name in ("as_json", "jsonl", "overlap") if any(row.startswith(f"  {name}  (") for row in lines)]
    assert listed == [setting]


@pytest.mark.parametrize(
    ("schema", "settings", "faults"),
    [
        (RobustnessConfig, {"kind": "noise"},
         ["kind: 'noise' is not one of gaussian_noise, defocus_blur, motion_blur, fog, brightness, contrast, "
          "jpeg_compression, shift, replace_words, swap_order"]),
        (SceneJob, {"scaling": "percentile"},
         ["scaling: input should be a valid tuple or 'percentiles', got 'percentile'"]),
        (SceneJob, {"scaling": [0, "a"]},
         ["scaling.1: input should be a valid number, unable to parse string as a number, got 'a'"]),
        (KeepBest, {"metric": 3}, ["metric: input should be a valid string or a valid tuple, got 3"]),
        (KeepBest, {"metric": ["a", 3]}, ["metric.1: input should be a valid string, got 3"]),
        (RobustnessJob, {"corruptions": {"foggy": [9]}},
         ["corruptions.foggy: 'foggy' is not one of gaussian_noise, defocus_blur, motion_blur, fog, brightness, "
          "contrast, jpeg_compression, shift; did you mean 'fog'?",
          "corruptions.foggy.0: input should be less than or equal to 5, got 9"]),
    ],
)  # fmt: skip
def test_a_fault_is_where_it_was_typed_and_no_member_of_a_union(
    schema: type[ConfigModel], settings: dict[str, Any], faults: list[str]
) -> None:
    with pytest.raises(ConfigError) as refused:
        load(schema, None, settings)
    assert [fault for fault in refused.value.errors if "required" not in fault] == faults
