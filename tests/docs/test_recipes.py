"""The commands for one's own pairs, run as documented on photographs with captions alone."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from sklearn.datasets import load_sample_images

from idc.config import cli
from idc.training.caption_validation import measured_of
from tests.docs.checks import ROOT
from tests.docs.own_pairs import own_pairs
from tests.docs.recipes import PARTS, commands, run

SECTIONS = (("docs/data.md", "Your own pairs"), ("docs/training.md", "Train on your own pairs"))


def documented() -> list[list[str]]:
    return [words for page, heading in SECTIONS for words in commands(page, heading)]


def test_the_sections_have_the_whole_chain() -> None:
    jobs = [Path(words[0]).stem for words in documented()]
    assert jobs[:6] == ["validate", "import_dataset", "train_twincap", "evaluate", "calibrate", "caption"]
    assert {"train_tokenizer", "pretrain_procap", "finetune_procap"} <= set(jobs)


def test_weights_are_chosen_by_a_metric_that_captions_alone_give(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every documented training on one's own pairs, by its resolved config."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr("idc.config.missing_inputs", lambda _: [])
    chosen = {}
    for script, *arguments in documented():
        if any(word.startswith(PARTS) for word in arguments):
            continue
        schema: Any = importlib.import_module(script.removesuffix(".py").replace("/", ".")).__dict__.get("Job")
        if schema is not None and "train" in schema.model_fields:
            keep = cli(schema, None, arguments).config.train.keep_best
            chosen[Path(script).stem] = None if keep is None else keep.chosen(measured_of([None]))
    assert chosen["train_twincap"] == chosen["finetune_procap"] == "CIDEr"


@pytest.mark.slow
def test_the_commands_for_ones_own_pairs_work_on_photographs_with_captions(tmp_path: Path) -> None:
    photographs = [Image.fromarray(image) for image in load_sample_images().images]
    own_pairs(photographs, tmp_path / "my_pairs", count=40, unchanged=12)
    for name in ("before", "after"):
        Image.open(tmp_path / "my_pairs" / name / "039.jpg").save(tmp_path / f"{name}.png")
    (tmp_path / "jobs").symlink_to(ROOT / "jobs")
    outputs = {}
    for words in documented():
        done = run(words, tmp_path)
        assert done.returncode == 0, f"{' '.join(words)}\n{done.stdout}{done.stderr}"
        outputs[" ".join(words)] = done.stdout
    assert (tmp_path / "runs/mine/evaluation/report.html").exists()
    evaluated = next(text for command, text in outputs.items() if "evaluate" in command)
    assert "page: runs/mine/evaluation/report.html" in evaluated
    assert "next: python jobs/calibrate.py artifact=runs/mine/artifact pairs=data/mine/pairs" in evaluated
