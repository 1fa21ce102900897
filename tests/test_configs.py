"""The jobs' configs: every YAML file loads, every job answers at once, a wrong config is refused before all else."""

from __future__ import annotations

import importlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from PIL import Image

from cluster.training_command import with_cluster
from idc.config import ConfigModel, cli, load
from idc.training.config import TrainingJob
from tests.conftest import Command
from tests.refused_configs import REFUSED
from tests.sweep.sweeps import SIZES, shipped_sweeps

ROOT = Path(__file__).resolve().parent.parent
JOBS = sorted(path.stem for path in (ROOT / "jobs").glob("*.py"))
YAMLS = sorted(
    str(path.relative_to(ROOT))
    for path in (ROOT / "jobs" / "configs").rglob("*.yaml")
    if not (path.parent.name == "sweeps" and path.stem in SIZES)
)
SWEEPS = {f"jobs/configs/{files[0]}": [f"jobs/configs/{file}" for file in files] for files in shipped_sweeps().values()}
"""File of a sweep -> the files of its last size."""
JOB_OF = {
    "render/": "render",
    "robustness/": "robustness",
    "mining/": "mine_pairs",
    "vision/tokenizer_": "train_tokenizer",
    "vision/pair_encoder_": "train_pair_encoder",
    "procap/procedures_": "pretrain_procap:ProceduresJob",
    "procap/pretrain_": "pretrain_procap",
    "procap/finetune_": "finetune_procap",
    "namc/pretrain_": "pretrain_namc",
    "namc/finetune_": "finetune_namc",
    "changevg/guide_": "train_guide",
    "changevg/changeimti_": "build_changeimti",
    "changevg/": "finetune_changevg",
    "twincap/": "train_twincap",
    "sft/": "finetune_sft",
    "m3diff/": "finetune_m3diff",
    "adpo/": "train_adpo",
    "grpo/": "train_grpo",
    "rewards/": "finetune_rewards",
}
"""How a config's path begins, and which job takes it: the first that fits; those in a folder `sweeps` are sweeps."""
INPUTS: dict[str, dict[str, Any]] = {
    "render": {"out": "pairs"},
    "train_tokenizer": {"pairs": "pairs"},
    "train_pair_encoder": {"pairs": "pairs"},
    "pretrain_procap:ProceduresJob": {
        "only": "procedures",
        "procedures": "procedures",
        "build.pairs": "pairs",
        "build.tokenizer": "tokenizer",
    },
    "mine_pairs": {"images": "photos", "out": "mined"},
    "build_changeimti": {"pairs": "pairs", "out": "changeimti"},
}
"""What the command line adds to a job's YAML files."""
HEAVY = ("torch", "ray", "mlflow", "transformers", "deepspeed", "diffusers", "cv2", "mitsuba")
SLOW = (*HEAVY, "scipy", "pandas", "pyarrow.compute", "httpx2", "openai", "anyio")
"""No ``--help`` loads these: each costs 20 to 200 ms."""


def schema_of(job: str) -> type[ConfigModel]:
    """``job`` is a command, or a command and the class of one of its parts."""
    name, _, part = job.partition(":")
    names = vars(importlib.import_module(f"jobs.{name}"))
    classes = [value for value in names.values() if isinstance(value, type) and issubclass(value, TrainingJob)]
    schema: type[ConfigModel] = with_cluster(classes[0]) if classes and not part else names[part or "Job"]
    return schema


def job_of(path: str) -> str:
    if "/sweeps/" in path:
        return "sweep"
    return next(job for start, job in JOB_OF.items() if path.startswith(f"jobs/configs/{start}"))


def run(
    job: str, *arguments: str, cwd: Path, watched: Sequence[str] = HEAVY
) -> tuple[subprocess.CompletedProcess[str], list[str]]:
    """A job as a command line: how it ended, and which of the ``watched`` modules it had loaded."""
    script = str(ROOT / "jobs" / f"{job}.py")
    code = (
        "import atexit, json, runpy, sys\n"
        f"atexit.register(lambda: print(json.dumps([n for n in {watched!r} if n in sys.modules]), file=sys.stderr))\n"
        f"sys.argv = [{script!r}, *sys.argv[1:]]\n"
        f"runpy.run_path({script!r}, run_name='__main__')\n"
    )
    command = [sys.executable, "-B", "-c", code, *arguments]
    done = subprocess.run(command, cwd=cwd, env=environment(), capture_output=True, text=True, check=False, timeout=120)
    *lines, heavy = done.stderr.splitlines()
    done.stderr = "\n".join(lines)
    return done, json.loads(heavy)


def environment() -> dict[str, str]:
    """That of a user of this checkout, with a wide terminal."""
    found = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "120"}
    found.pop("IDC_ROOT", None)
    return found


# -- what is there ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", YAMLS)
def test_a_config_loads_with_the_schema_of_its_job(path: str) -> None:
    job = job_of(path)
    config = load(schema_of(job), SWEEPS.get(path, [path]), INPUTS.get(job, {}))  # from any folder
    text = (ROOT / path).read_text(encoding="utf-8")
    assert text.startswith("# "), "a config says in its first line what it is for"
    assert yaml.safe_load(text).keys() <= {*type(config).model_fields, "sizes", "published"}


# -- help ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def helps(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Job -> ``text`` of its --help, its ``status``, the ``slow`` modules that were loaded after it, and the files
    it ``made``. One process asks all jobs in turn."""
    code = f"""
import contextlib, importlib, io, json, os, sys
found = {{}}
for job in {JOBS!r}:
    text, status = io.StringIO(), None
    sys.argv = [f"{{job}}.py", "--help"]
    with contextlib.redirect_stdout(text), contextlib.suppress(SystemExit):
        try:
            importlib.import_module(f"jobs.{{job}}").main()
        except SystemExit as left:
            status = left.code or 0
    slow = [name for name in {SLOW!r} if name in sys.modules]
    found[job] = {{"text": text.getvalue(), "status": status, "slow": slow, "made": os.listdir()}}
print(json.dumps(found))
"""
    done = subprocess.run(
        [sys.executable, "-B", "-c", code],
        cwd=tmp_path_factory.mktemp("help"), env=environment(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: dict[str, dict[str, Any]] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("job", JOBS)
def test_help_loads_nothing_slow_and_makes_nothing(job: str, helps: dict[str, dict[str, Any]]) -> None:
    found = helps[job]
    assert found["status"] == 0
    assert f"python jobs/{job}.py" in found["text"], "the help shows the command"
    assert found["slow"] == []
    assert found["made"] == []


def test_the_list_of_commands_may_be_cut_off(tmp_path: Path) -> None:
    """As by `idc --help | head`."""
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "idc", "--help"]
    done = subprocess.run(command, cwd=tmp_path, env=environment(), stdout=write, stderr=subprocess.PIPE, check=False)
    os.close(write)
    assert (done.returncode, done.stderr) == (-signal.SIGPIPE, b"")


def test_two_images_load_nothing_that_only_tables_servers_and_clusters_need(tmp_path: Path) -> None:
    for name in ("before.png", "after.png"):
        Image.new("RGB", (16, 16)).save(tmp_path / name)
    watched = ("torch", "ray", "cluster", "scipy", "pyarrow.compute", "httpx2", "anyio", "idc.captioning.table",
               "idc.data.config", "idc.data.rows")  # fmt: skip
    done, loaded = run("caption", "before.png", "after.png", cwd=tmp_path, watched=watched)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("The two images are identical.")
    assert loaded == []


@pytest.mark.parametrize("name", ["idc", "python"])
def test_the_next_command_runs_as_this_one_was_run(name: str, tmp_path: Path) -> None:
    """Outside of the checkout; its presets are found there, too."""
    source = tmp_path / "photos"
    for part, grey in (("before", 90), ("after", 120)):
        (source / part).mkdir(parents=True)
        Image.new("RGB", (16, 16), (grey, grey, grey)).save(source / part / "a.png")
    (source / "captions.json").write_text(json.dumps({"a": "it is lighter"}))
    script = [str(ROOT / "jobs/import_dataset.py")]
    command = [sys.executable, *(["-m", "idc", "import-dataset"] if name == "idc" else script)]
    done = subprocess.run(
        [*command, "source=photos", "out=pairs", "--local"],
        cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    start = "idc validate" if name == "idc" else f"python {ROOT}/jobs/validate.py"
    assert done.stdout.splitlines()[-1] == f"next: {start} pairs=pairs"


# -- refusals -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("job", REFUSED)
def test_every_fault_of_a_wrong_config_is_named(
    job: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    line, faults = REFUSED[job]
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("IDC_ROOT", raising=False)
    monkeypatch.setattr(sys, "argv", ["job.py", *shlex.split(line)])
    with pytest.raises(SystemExit) as left:
        importlib.import_module(f"jobs.{job.partition(',')[0]}").main()
    assert left.value.code == 2
    head, *lines = capsys.readouterr().err.splitlines()
    assert head == f"config refused, {len(faults)} errors:", "\n".join(lines)
    assert all(line.strip().startswith(fault) for line, fault in zip(lines, faults, strict=True)), lines
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "words",
    ["evaluate out", "compare out", "merge_vlm out", "wrap_vlm out", "convert out", "robustness out", "sweep runs",
     "calibrate artifact", "caption map", "evaluate cache", "describe_pairs log", "leaderboard --out"],
)  # fmt: skip
def test_what_is_written_to_a_disk_is_no_uri(words: str, command: Command) -> None:
    """Of which a path would make a folder ``s3:``."""
    job, name = words.split()
    uri = "s3://bucket/x.png"
    given = ["--runs", "runs", name, uri] if job == "leaderboard" else [f"{name}={uri}"]
    done = command(job, *(["kind=stage1"] if job == "convert" else []), *given)
    assert done.returncode == 2
    assert re.search(rf"{name}: must be on a disk.* got '{uri}'", done.stderr)


@pytest.mark.parametrize("path", [path for path in YAMLS if "/sweeps/" not in path])
def test_a_preset_that_is_not_there_hides_no_other_fault(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Nor does anything count as a fault that the preset may have set."""
    job = job_of(path)
    schema = schema_of(job)
    inputs = INPUTS.get(job, {name: name for name in ("pairs", "procedures") if name in schema.model_fields})
    line = ["--config", "gone.yaml", *(f"{name}={value}" for name, value in inputs.items())]
    for setting in ([], ["no_such=1"]):
        with pytest.raises(SystemExit):
            cli(schema, None, [*line, *setting])
        _, first, *others = [line.strip() for line in capsys.readouterr().err.splitlines()]
        assert first.startswith("--config: cannot read 'gone.yaml'")
        if setting:
            assert others[0].startswith("no_such: no such setting")
        assert all(fault.partition(":")[0] in {"no_such", *inputs} for fault in others), others


@pytest.mark.parametrize("job", ["pretrain_procap", "pretrain_procap, procedures"])
def test_a_refused_job_ends_with_2_before_anything_is_loaded_or_made(job: str, tmp_path: Path) -> None:
    line, faults = REFUSED[job]
    done, heavy = run(job.partition(",")[0], *shlex.split(line), cwd=tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    for fault in faults:
        assert f"\n  {fault}" in done.stderr
    assert "Traceback" not in done.stderr
    assert heavy == []
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("job", [job for job in JOBS if job not in ("demo", "leaderboard")])
def test_a_job_takes_local_and_overwrite_if_it_uses_them_and_refuses_them_otherwise(
    job: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (ROOT / "jobs" / f"{job}.py").read_text(encoding="utf-8")
    for flag in ("local", "overwrite"):
        used = f"args.{flag}" in text or "train_command(" in text
        # With an unknown setting, so that nothing runs: it is named only where the flag itself was taken.
        given = ["input=", "no_such_setting=1"] if job == "caption" else ["no_such_setting=1"]
        monkeypatch.setattr(sys, "argv", [f"{job}.py", *given, f"--{flag}"])
        with pytest.raises(SystemExit) as left:
            importlib.import_module(f"jobs.{job}").main()
        assert left.value.code == 2
        err = capsys.readouterr().err
        assert ("no_such_setting: no such setting" in err) == used, f"--{flag}"
        assert (f"unrecognized arguments: --{flag}" in err) == (not used), f"--{flag}"
