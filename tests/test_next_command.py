"""The commands that jobs print at their end: each is one that its job accepts."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

from idc import next_command
from idc.captioning.calibration_job import CalibrateJob
from idc.config import ConfigModel, load
from idc.evaluation.config import EvaluateJob
from idc.systems.changevg.config import ChangeVgJob
from idc.systems.namc.config import PretrainJob as NamcJob
from idc.systems.procap.config import PretrainJob
from idc.systems.sft.config import SftJob
from idc.systems.twincap.config import TwinCapJob
from idc.vision.pair_encoder.config import TrainPairEncoderJob
from tests.docs.checks import faulty_command
from tests.systems.changevg.tiny import write_questions, write_scenes

ARTIFACT = "runs/a b/artifact"
BASE = {"base.source": "organisation/name"}
JOB = TwinCapJob(name="mine", pairs="data/mine/pairs")
ENTRIES = (
    "vision.tokenizer.task:train", "vision.pair_encoder.task:train",
    "systems.namc.task:finetune", "systems.twincap.task:train", "systems.sft.task:train",
    "systems.m3diff.task:train", "systems.adpo.task:train", "systems.changevg.task:train",
)  # fmt: skip
STAGE_1 = PretrainJob(procedures="data/mine/procedures")
NAMC = load(NamcJob, "jobs/configs/namc/pretrain_small.yaml", {"pairs": "described", "tokenizer": "t"})
COMMANDS = [
    *(next_command.after_training(f"idc.{entry}", JOB, ARTIFACT) for entry in ENTRIES),
    next_command.after_training("idc.systems.namc.task:pretrain", NAMC, ARTIFACT),
    next_command.after_training("idc.systems.procap.task:pretrain", STAGE_1, ARTIFACT),
    next_command.after_training(
        "idc.systems.changevg.tuning:train", load(ChangeVgJob, None, {"pairs": "q", **BASE}), ARTIFACT
    ),
    *(next_command.after_conversion(kind, ARTIFACT) for kind in ("vqgan", "stage1", "stage2", "clip4idc", "mci")),
    next_command.after_import("my pairs"),
    next_command.after_uncaptioned("my pairs"),
    next_command.after_pairs("my pairs"),
    next_command.after_procedures("my procedures"),
    next_command.after_mining("data/mined"),
    next_command.after_descriptions("data/described"),
    next_command.after_changeimti("data/changeimti"),
    next_command.after_notes("runs/a b/artifact"),
    next_command.after_corruption("data/fog"),
    str(next_command.after_evaluation(ARTIFACT, "my pairs", calibrated=False)),
    str(next_command.after_evaluation(ARTIFACT, "my pairs", calibrated=True)),
    next_command.after_captions("runs/mine/artifact"),
    next_command.after_captions("auto"),
    next_command.after_registration("captioner", "sqlite:///runs/mlflow.db"),
    next_command.after_promotion("captioner", "champion", None),
]
GIVEN = {"runs": "other runs", "train": {"tracking": {"uri": "http://tracking"}}}
LOADING = {"artifact": ARTIFACT, "pairs": "p", "base.source": "a base", "endpoint.url": "http://endpoint/v1"}
CARRIED: list[tuple[str, type[ConfigModel], dict[str, Any], set[str]]] = [
    ("systems.procap.task:pretrain", PretrainJob, {"procedures": "p"},
     {"procedures=p", "runs=other runs", "train.tracking.uri=http://tracking"}),
    ("systems.namc.task:pretrain", NamcJob,
     {"pairs": "described", "caption_pairs": "captioned", "tokenizer": "t", "mir.target": "discrete"},
     {"pairs=captioned", "runs=other runs", "train.tracking.uri=http://tracking"}),
    ("vision.pair_encoder.task:train", TrainPairEncoderJob, {"pairs": "p"},
     {"build.pairs=p", "build.tokenizer=other runs/mine-tokenizer/artifact"}),
    ("systems.twincap.task:train", TwinCapJob, {"pairs": "p"}, {"pairs=p", "out=other runs/x/evaluation"}),
]  # fmt: skip


@pytest.mark.parametrize(("entry", "job", "settings", "words"), CARRIED, ids=[entry for entry, *_ in CARRIED])
def test_what_a_training_was_given_is_given_to_the_next_job(
    entry: str, job: type[ConfigModel], settings: dict[str, Any], words: set[str]
) -> None:
    command = next_command.after_training(f"idc.{entry}", load(job, None, GIVEN | settings), "other runs/x/artifact")
    assert words <= set(shlex.split(command))
    assert list(faulty_command(command)) == []


def test_after_a_training_in_a_bucket_its_uri_stays_one_and_the_evaluation_is_written_to_a_disk() -> None:
    job, artifact = (
        load(TwinCapJob, None, {"pairs": "p", "name": "mine", "runs": "s3://idc/x"}),
        "s3://idc/x/mine/artifact",
    )
    command = next_command.after_training("idc.systems.twincap.task:train", job, artifact)
    assert {f"artifact={artifact}", "out=runs/mine/evaluation"} <= set(shlex.split(command))
    assert list(faulty_command(command)) == []
    after = str(next_command.after_evaluation(artifact, "p", calibrated=False))
    assert after.startswith(f"python jobs/caption.py --artifact {artifact}"), "no calibration is written into a bucket"


def test_where_the_base_and_the_tracking_are_is_given_to_the_next_job() -> None:
    evaluate = load(EvaluateJob, None, {**LOADING, "out": "o"})
    calibrate = load(CalibrateJob, None, LOADING)
    settings = {"base.source=a base", "endpoint.url=http://endpoint/v1"}
    words = [
        shlex.split(command)
        for command in (
            str(next_command.after_evaluation(ARTIFACT, "p", False, evaluate)),
            next_command.after_calibration(ARTIFACT, calibrate),
            next_command.after_captions(ARTIFACT, calibrate),
            next_command.after_promotion("captioner", "champion", "sqlite:///a b.db"),
        )
    ]
    assert settings <= set(words[0])
    assert settings <= set(words[1])
    assert {f"loading.{setting}" for setting in settings} <= set(words[2])
    assert "tracking_uri=sqlite:///a b.db" in words[3]
    for command in words:
        assert list(faulty_command(shlex.join(command))) == []


def test_a_model_tuned_on_questions_is_asked_them(tmp_path: Path) -> None:
    pairs = write_scenes(tmp_path / "pairs", masked=True)
    job = load(SftJob, None, {"pairs": write_questions(pairs, tmp_path / "questions"), **BASE})
    command = next_command.after_training("idc.systems.sft.task:train", job, ARTIFACT)
    assert command.startswith("python jobs/evaluate.py")
    assert f"instructions={job.pairs}" in command
    assert list(faulty_command(command)) == []
    on_pairs = next_command.after_training(
        "idc.systems.sft.task:train", load(SftJob, None, {"pairs": pairs, **BASE}), ARTIFACT
    )
    assert on_pairs.startswith("python jobs/evaluate.py")


@pytest.mark.parametrize("command", COMMANDS)
def test_a_next_command_is_accepted(command: str) -> None:
    assert list(faulty_command(command)) == []
