"""The jobs' configs: every YAML file loads, every job answers at once, a wrong config is refused before all else."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from idc.config import ConfigModel, cli, load

ROOT = Path(__file__).resolve().parent.parent
JOBS = sorted(path.stem for path in (ROOT / "jobs").glob("*.py"))
YAMLS = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "jobs" / "configs").rglob("*.yaml"))
JOB_OF = {
    "render/": "render",
    "vision/tokenizer_": "train_tokenizer",
    "vision/pair_encoder_": "train_pair_encoder",
    "vision/interpolator_": "train_interpolator",
    "procap/procedures_": "build_procedures",
    "procap/pretrain_": "pretrain_procap",
    "procap/finetune_": "finetune_procap",
    "procap/sweeps/": "sweep",
    "benchmark/": "benchmark",
    "robustness/": "robustness",
}
"""How a config's path begins, and which job takes it."""
INPUTS: dict[str, dict[str, Any]] = {
    "render": {"out": "pairs"},
    "train_tokenizer": {"pairs": "pairs"},
    "train_interpolator": {"triplets": "triplets"},
    "train_pair_encoder": {"pairs": "pairs"},
    "build_procedures": {
        "procedures": "procedures",
        "build.pairs": "pairs",
        "build.tokenizer": "tokenizer",
    },
    "pretrain_procap": {},
    "finetune_procap": {},
    "sweep": {},
    "benchmark": {},
    "robustness": {},
}
"""What the command line adds to a job's YAML files."""
HEAVY = ("torch", "ray", "mlflow", "transformers", "deepspeed", "diffusers", "cv2", "mitsuba")


def schema_of(job: str) -> type[ConfigModel]:
    schema: type[ConfigModel] = importlib.import_module(f"jobs.{job}").Job
    return schema


def job_of(path: str) -> str:
    (job,) = [job for start, job in JOB_OF.items() if path.startswith(f"jobs/configs/{start}")]
    return job


def run(job: str, *arguments: str, cwd: Path) -> tuple[subprocess.CompletedProcess[str], list[str]]:
    """A job as a command line: how it ended, and which heavy libraries it had loaded."""
    script = str(ROOT / "jobs" / f"{job}.py")
    code = (
        "import atexit, json, runpy, sys\n"
        f"atexit.register(lambda: print(json.dumps([n for n in {HEAVY!r} if n in sys.modules]), file=sys.stderr))\n"
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
    config = load(schema_of(job), str(ROOT / path), INPUTS[job])
    text = (ROOT / path).read_text(encoding="utf-8")
    assert text.startswith("# "), "a config says in its first line what it is for"
    assert yaml.safe_load(text).keys() <= type(config).model_fields.keys()


def test_there_are_configs_for_all_their_jobs() -> None:
    assert {job_of(path) for path in YAMLS} == set(JOB_OF.values())
    assert set(JOB_OF.values()) <= set(JOBS)


def test_the_papers_and_the_official_settings_differ_where_they_should() -> None:
    paper, official = (
        load(schema_of("pretrain_procap"), str(ROOT / f"jobs/configs/procap/pretrain_{name}.yaml"))
        for name in ("paper", "official")
    )
    assert (paper.loss.msm, paper.loss.align, paper.loss.consistency) == (1, 1, 1)
    assert (official.loss.msm, official.loss.align, official.loss.consistency) == (7, 0.5, 0.5)
    assert (paper.masking.low, paper.masking.high) == (0.2, 0.5)
    assert (official.masking.low, official.masking.high) == (0.8, 0.8)
    assert [paper.train.steps, paper.train.batch_size] == [official.train.steps, official.train.batch_size]
    assert paper.optim.schedule == "linear_warmup"
    assert official.optim.schedule == "log_warmup"
    assert (paper.optim.warmup_steps, official.optim.warmup_steps) == (5000, 5000)
    assert official.encoder.separator
    assert not official.encoder.consistency_sees_text
    assert not official.encoder.queries_only
    finetune = load(schema_of("finetune_procap"), str(ROOT / "jobs/configs/procap/finetune_official.yaml"))
    assert finetune.label_smoothing == 0.1
    assert finetune.decoder.scale_by_width
    assert finetune.decoder.official_norm
    assert finetune.encoder_optim.lr == 2e-5
    assert finetune.decoder.ban_unknown_only
    assert finetune.train.batch_size == 64  # 16 scenes on each of two GPUs, two pairs a scene
    assert official.encoder.text_vocabulary == 49_408
    assert (paper.clip, paper.clip_tokenizer) == (None, None)


def test_a_printed_config_is_the_config(tmp_path: Path) -> None:
    path = ROOT / "jobs/configs/procap/pretrain_demo.yaml"
    done, heavy = run("pretrain_procap", "--config", str(path), "train.steps=7", "--print-config", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert heavy == []
    (tmp_path / "printed.yaml").write_text(done.stdout)
    schema = schema_of("pretrain_procap")
    assert load(schema, str(tmp_path / "printed.yaml")) == load(schema, str(path), {"train.steps": 7})


# -- help ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def helps(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Job -> ``text`` of its --help, its ``status``, the ``heavy`` libraries that were loaded after it, and the files
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
    heavy = [name for name in {HEAVY!r} if name in sys.modules]
    found[job] = {{"text": text.getvalue(), "status": status, "heavy": heavy, "made": os.listdir()}}
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
def test_help_loads_nothing_heavy_and_makes_nothing(job: str, helps: dict[str, dict[str, Any]]) -> None:
    found = helps[job]
    assert found["status"] == 0
    assert f"python jobs/{job}.py" in found["text"], "the help shows the command"
    assert found["heavy"] == []
    assert found["made"] == []


def test_help_as_a_user_asks_for_it(tmp_path: Path) -> None:
    done, heavy = run("evaluate", "--help", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "python jobs/evaluate.py" in done.stdout
    assert heavy == []
    assert not list(tmp_path.iterdir())


# -- refusals -----------------------------------------------------------------------------------------------------

REFUSED: dict[str, tuple[list[str], list[str]]] = {
    "pretrain_procap": (
        [
            "procedures=nowhere",
            "train.batch_sise=4",
            "train.batch_size=7",
            "train.num_workers=2",
            "encoder.width=4",
            "encoder.heads=5",
            "masking.random=0.9",
            "loss.align_negative=swap_halfs",
            "train.zero_stage=2",
            "optim.lr=-1e-4",
        ],
        [
            "encoder.width: input should be greater than or equal to 8, got 4",
            "loss.align_negative: 'swap_halfs' is not one of other_caption, swap_halves; did you mean 'swap_halves'?",
            "optim.lr: input should be greater than or equal to 0, got -0.0001",
            "train.batch_sise: no such setting; did you mean 'batch_size'?",
            "encoder.width: 768 is not divisible by heads = 5",
            "masking.random, entire, in_block and out_of_block: their probabilities add up to 1.2, not 1",
            "train.batch_size=7 is not divisible by grad_accumulation * num_workers = 1 * 2 = 2; take 8",
            "train.zero_stage=2 needs engine=deepspeed, the engine is torch",
            "procedures: no such file or folder: 'nowhere'",
        ],
    ),
    "finetune_procap": (
        ["procedures=nowhere", "pretrained=nor/here", "decoder.width=63", "decoder.heads=1", "label_smoothing=1", "x"],
        [
            "'x' is not of the form key=value",
            "label_smoothing: input should be less than 1, got 1",
            "decoder.width: 63 is odd",
            "procedures: no such file or folder: 'nowhere'",
            "pretrained: no such file or folder: 'nor/here'",
        ],
    ),
    "render": (
        [
            "out=pairs",
            "render.jitter=extrem",
            "render.change_types=[color, moved]",
            "render.num_scenes=0",
            "render.min_objects=9",
            "render.max_objects=3",
            "jitter=mild",
            "cluster.address=http://127.0.0.1:8265",
        ],
        [
            "render.num_scenes: input should be greater than or equal to 1, got 0",
            "render.jitter: 'extrem' is not one of none, slight, mild, moderate, extreme; did you mean 'extreme'?",
            "render.change_types.1: 'moved' is not one of color, material, add, drop, move; did you mean 'move'?",
            "jitter: no such setting",
            "render.min_objects 9 is above max_objects 3",
            "cluster.address: 'http://127.0.0.1:8265' is a Jobs API address",
        ],
    ),
    "train_tokenizer": (
        [
            "pairs=nowhere",
            "tokenizer.image_size=60",
            "tokenizer.channels=16",
            "loss.l1=0",
            "loss.l2=0",
            "train.epochs=2",
        ],
        [
            "tokenizer.image_size: 60 is not divisible by 16",
            "tokenizer.channel_mult: 1 * channels = 16 is not divisible by norm_groups = 32",
            "loss.l1 and l2: at least one needs a weight above 0",
            "train.steps=100000 and epochs=2",
            "pairs: no such file or folder: 'nowhere'",
        ],
    ),
    "build_procedures": (
        [
            "procedures=made",
            "build.pairs=nowhere",
            "build.tokenizer=nor/here",
            "build.depth=1",
            "build.similarity=clip",
            "build.strategy=visual_text",
            "build.interpolation=vfiformer",
            "build.interpolation_weights=net_220.pth",
        ],
        [
            "build.similarity: 'clip' is not one of tokenizer, pixels",
            "build.num_keyframes: 2 cannot be drawn from 2^depth - 1 = 1 frames",
            "build.strategy: 'visual_text' needs pair_encoder",
            "build.pairs: no such file or folder: 'nowhere'",
            "build.tokenizer: no such file or folder: 'nor/here'",
            "build.interpolation_weights: no such file or folder: 'net_220.pth'",
        ],
    ),
    "train_interpolator": (
        ["triplets=nowhere", "crop_size=100", "model.window=6", "start=nor/here", "train.steps=3"],
        [
            "crop_size: 100 is not divisible by model.pad_multiple = 64; take 128",
            "model.window: 6 is not divisible by 4; take 8",
            "model.pad_multiple: 64 is not divisible by 48, as 16 and 8 * window demand",
            "train.steps=3 and epochs=300.0: give exactly one of them",
            "triplets: no such file or folder: 'nowhere'",
            "start: no such file or folder: 'nor/here'",
        ],
    ),
    "build_triplets": (
        ["triplets=made", "build.videos=[nowhere.mp4]", "build.scenes.num_scenes=0", "build.gap=0"],
        [
            "build.gap: input should be greater than or equal to 1, got 0",
            "build.scenes.num_scenes: input should be greater than or equal to 1, got 0",
            "build.videos and scenes: give one of the two",
            "build.videos.0: no such file or folder: 'nowhere.mp4'",
        ],
    ),
    "compare_interpolators": (
        ["triplets.real=nowhere", "out=made", "vfiformer.full=net_220.pth", "interpolators=[dis, film]"],
        [
            "interpolators.1: 'film' is not one of blend, dis",
            "triplets.real: no such file or folder: 'nowhere'",
            "vfiformer.full: no such file or folder: 'net_220.pth'",
        ],
    ),
    "corrupt": (
        ["pairs=nowhere", "out=made", "kind=fog", "share=0.2", "seed=-1"],
        [
            "seed: input should be greater than or equal to 0, got -1",
            "severity: required with kind=fog",
            "share: not used with kind=fog",
            "pairs: no such file or folder: 'nowhere'",
        ],
    ),
    "robustness": (
        [
            "artifact=nowhere",
            "pairs=nor/here",
            "sets=made",
            "out=made",
            "sweep=no.yaml",
            "corruptions=[fogg]",
            "shares=[2]",
        ],
        [
            "corruptions.0: 'fogg' is not one of gaussian_noise",
            "sweep, procedures: give both for the word rows, or neither",
            "shares: 2.0 must be above 0 and at most 1",
            "artifact: no such file or folder: 'nowhere'",
            "pairs: no such file or folder: 'nor/here'",
            "sweep: no such file or folder: 'no.yaml'",
        ],
    ),
    "sweep": (
        [
            "name=one",
            "settings.pairs=nowhere",
            "system=procap",
            "settings.procedures=nor/here",
            "rows=[{label: wide, settings: {finetune.beems: 2}}, {label: deep, published: {CIDEr: 1}}]",
            "trials.concurent=2",
        ],
        [
            "trials.concurent: no such setting; did you mean 'concurrent'?",
            "rows.1.published.CIDEr: no such column",
            "rows.0 (wide): finetune.beems: no such setting; did you mean 'beams'?",
            "pairs: no such file or folder: 'nowhere'",
            "procedures: no such file or folder: 'nor/here'",
        ],
    ),
    "convert": (
        ["kind=stage2", "weights=nowhere.chkpt", "out=made", "head=4"],
        [
            "head: no such setting; did you mean 'heads'?",
            "vocabulary: required for stage2; without it the ids of its words have no names",
            "weights: no such file or folder: 'nowhere.chkpt'",
        ],
    ),
    "caption": (
        ["artifact=nowhere", "input=nor/here", "out=made", "beams=2", "candidates=3", "chunk_sise=5", "split=dev"],
        [
            "split: 'dev' is not one of train, val, test",
            "chunk_sise: no such setting; did you mean 'chunk_size'?",
            "beams: candidates=3 need as many beams, got beams=2",
            "artifact: no such file or folder: 'nowhere'",
            "input: no such file or folder: 'nor/here'",
        ],
    ),
    "import_dataset": (
        ["source=nowhere", "out=pairs", "format=clevr", "val_share=0.7", "test_share=0.7", "chunk_sise=3"],
        [
            "format: 'clevr' is not one of folder, csv, jsonl, parquet, clevr_change, clevr_dc, spot_the_diff, "
            "image_editing_request, birds_to_words, levir, omnidiff, instruct_pix2pix, cdvqa, qag360k, procap_hdf5, "
            "hugging_face, webdataset, video",
            "chunk_sise: no such setting; did you mean 'chunk_size'?",
            "val_share + test_share is 1.4, more than 1",
            "source: no such file or folder: 'nowhere'",
        ],
    ),
}


@pytest.mark.parametrize("job", REFUSED)
def test_every_fault_of_a_wrong_config_is_named(
    job: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments, faults = REFUSED[job]
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("IDC_ROOT", raising=False)
    with pytest.raises(SystemExit) as left:
        cli(schema_of(job), "", arguments)
    assert left.value.code == 2
    head, *lines = capsys.readouterr().err.splitlines()
    assert head == f"config refused, {len(faults)} faults:", "\n".join(lines)
    for line, fault in zip(lines, faults, strict=True):
        assert line.strip().startswith(fault)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("job", ["pretrain_procap", "render", "build_procedures"])
def test_a_refused_job_ends_with_2_before_anything_is_loaded_or_made(job: str, tmp_path: Path) -> None:
    arguments, faults = REFUSED[job]
    done, heavy = run(job, *arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    for fault in faults:
        assert f"\n  {fault}" in done.stderr
    assert "Traceback" not in done.stderr
    assert heavy == []
    assert not list(tmp_path.iterdir())


def test_a_config_file_that_is_not_there(tmp_path: Path) -> None:
    done, _ = run("render", "--config", "no.yaml", "out=pairs", cwd=tmp_path)
    assert done.returncode == 2
    assert "--config: cannot read 'no.yaml': No such file or directory" in done.stderr


@pytest.mark.parametrize("job", [job for job in JOBS if job not in ("caption", "demo", "imagine", "leaderboard")])
def test_an_unknown_setting_is_refused_by_every_job(
    job: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the job's own main, in this process: nothing that would run is reached."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [f"{job}.py", "no_such_setting=1"])
    with pytest.raises(SystemExit) as left:
        importlib.import_module(f"jobs.{job}").main()
    assert left.value.code == 2
    assert "no_such_setting: no such setting" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("job", [job for job in JOBS if job not in ("demo", "imagine", "leaderboard")])
def test_a_job_takes_local_and_overwrite_if_it_uses_them_and_refuses_them_otherwise(
    job: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (ROOT / "jobs" / f"{job}.py").read_text(encoding="utf-8")
    for flag in ("local", "overwrite"):
        used = f"args.{flag}" in text or "train_job(" in text
        # With an unknown setting, so that nothing runs: it is named only where the flag itself was taken.
        given = ["input=", "no_such_setting=1"] if job == "caption" else ["no_such_setting=1"]
        monkeypatch.setattr(sys, "argv", [f"{job}.py", *given, f"--{flag}"])
        with pytest.raises(SystemExit) as left:
            importlib.import_module(f"jobs.{job}").main()
        assert left.value.code == 2
        err = capsys.readouterr().err
        assert ("no_such_setting: no such setting" in err) == used, f"--{flag}"
        assert (f"unrecognized arguments: --{flag}" in err) == (not used), f"--{flag}"
