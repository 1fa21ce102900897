"""Jobs on a folder of photographs that was never imported: one line with the command, and nothing is written."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
from PIL import Image
from sklearn.datasets import load_sample_images

from tests.docs.own_pairs import own_pairs

IMPORT = "import it first: python jobs/import_dataset.py source=photos out=data/mine/pairs"
COMMANDS = {
    "train_twincap pairs=photos": IMPORT,
    "pretrain_procap only=procedures procedures=out build.pairs=photos build.tokenizer=photos": IMPORT,
    "pretrain_procap procedures=photos": "python jobs/pretrain_procap.py only=procedures --help",
    "finetune_procap procedures=photos encoder.layers=1": "build procedures first",
    "finetune_sft pairs=photos base.source=photos": IMPORT,
    "finetune_changevg pairs=photos guide=photos out=out": IMPORT,
    "build_changeimti pairs=photos out=out": IMPORT,
    "describe_pairs pairs=photos out=out describer=oracle": IMPORT,
    "evaluate predictions=photos/captions/000.txt pairs=photos out=out": IMPORT,
    "calibrate artifact=photos pairs=photos": "photos",
}
"""Command -> what its message has in it."""


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of photographs in the working directory."""
    monkeypatch.chdir(tmp_path)
    return own_pairs([Image.fromarray(image) for image in load_sample_images().images], tmp_path / "photos", count=2)


def refusal(command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    """The lines with which a job ends, without the header."""
    job, *arguments = command.split()
    local = [] if job == "calibrate" else ["--local"]
    monkeypatch.setattr("sys.argv", [f"{job}.py", *arguments, *local])
    with pytest.raises(SystemExit) as left:
        importlib.import_module(f"jobs.{job}").main()
    text = capsys.readouterr().err if left.value.code == 2 else str(left.value.code)
    return "\n".join(line for line in text.splitlines() if "config refused" not in line)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_folder_that_was_never_imported_is_named_and_claims_nothing(
    command: str, photos: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    inputs = set(photos.parent.rglob("*"))
    text = refusal(command, monkeypatch, capsys)
    assert COMMANDS[command] in text
    assert len(text.splitlines()) == 1, text
    assert not sorted(str(path) for path in set(photos.parent.rglob("*")) - inputs)
