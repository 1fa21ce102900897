"""The commands that jobs print at their end: each is one that its job accepts."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from idc import next_command
from tests.docs.checks import faulty_command
from tests.systems.changevg.guided import write_masked, write_questions

ARTIFACT = "runs/a b/artifact"
JOB = SimpleNamespace(pairs="data/mine/pairs")
ENTRIES = (
    "vision.tokenizer.task:train", "vision.pair_encoder.task:train",
    "systems.namc.task:pretrain", "systems.namc.task:finetune", "systems.twincap.task:train", "systems.sft.task:train",
    "systems.m3diff.task:train", "systems.adpo.task:train", "systems.changevg.task:train", "vlm.pretrain:train",
)  # fmt: skip
STAGE_1 = SimpleNamespace(procedures="data/mine/procedures")
COMMANDS = [
    *(next_command.after_training(f"idc.{entry}", JOB, ARTIFACT) for entry in ENTRIES),
    next_command.after_training("idc.systems.procap.task:pretrain", STAGE_1, ARTIFACT),
    next_command.after_training("idc.systems.changevg.tuning:train", SimpleNamespace(pairs="q", notes=None), ARTIFACT),
    *(next_command.after_conversion(kind, ARTIFACT) for kind in ("vqgan", "stage1", "stage2", "clip4idc")),
    next_command.after_import("my pairs"),
    next_command.after_pairs("my pairs"),
    next_command.after_procedures("my procedures"),
    next_command.after_mining("data/mined"),
    next_command.after_descriptions("data/described"),
    next_command.after_changeimti("data/changeimti"),
    next_command.after_notes("data/guided", "runs/a b/artifact"),
    next_command.after_corruption("data/fog"),
    str(next_command.after_evaluation(ARTIFACT, "my pairs", calibrated=False)),
    str(next_command.after_evaluation(ARTIFACT, "my pairs", calibrated=True)),
    next_command.after_captions("runs/mine/artifact"),
    next_command.after_registration("captioner", "sqlite:///runs/mlflow.db"),
    next_command.after_promotion("captioner", "champion"),
]


def test_a_model_tuned_on_questions_is_asked_them(tmp_path: Path) -> None:
    pairs = write_masked(tmp_path / "pairs")
    job = SimpleNamespace(pairs=write_questions(pairs, tmp_path / "questions"))
    command = next_command.after_training("idc.systems.sft.task:train", job, ARTIFACT)
    assert command.startswith("python jobs/answer_questions.py")
    assert f"instructions={job.pairs}" in command
    assert list(faulty_command(command)) == []
    on_pairs = next_command.after_training("idc.systems.sft.task:train", SimpleNamespace(pairs=pairs), ARTIFACT)
    assert on_pairs.startswith("python jobs/evaluate.py")


@pytest.mark.parametrize("command", COMMANDS)
def test_a_next_command_is_accepted(command: str) -> None:
    assert list(faulty_command(command)) == []


def test_the_chain_on_ones_own_pairs_is_that_of_the_docs() -> None:
    """Import, check, train, evaluate, calibrate, caption, serve: each names the job of the next."""
    artifact = "runs/mine/artifact"
    chain = [
        next_command.after_import("data/mine/pairs"),
        next_command.after_pairs("data/mine/pairs"),
        next_command.after_training("idc.systems.twincap.task:train", JOB, artifact),
        next_command.after_evaluation(artifact, "data/mine/pairs", calibrated=False) or "",
        next_command.after_calibration(artifact),
        next_command.after_captions(artifact),
    ]
    jobs = [command.split()[1].removeprefix("jobs/").removesuffix(".py") for command in chain]
    assert jobs == ["validate", "train_twincap", "evaluate", "calibrate", "caption", "serve"]
