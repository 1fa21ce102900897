"""Wrong inputs through the commands: a folder that was never imported, rows that cannot be captioned or scored, images
that cannot be read. One line says what to do."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from PIL import Image
from sklearn.datasets import load_sample_images

from idc.data.store import MANIFEST, read_rejects
from tests.conftest import Command
from tests.data.readers.test_own import put
from tests.docs.own_pairs import own_pairs
from tests.mining.small_collection import LOOSE, write_images

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


@pytest.mark.parametrize("line", COMMANDS)
def test_a_folder_that_was_never_imported_is_named_and_claims_nothing(
    line: str, photos: Path, command: Command
) -> None:
    inputs = set(photos.parent.rglob("*"))
    refused = command(*line.split(), *([] if line.startswith("calibrate") else ["--local"]))
    (text,) = [row for row in refused.stderr.splitlines() if "config refused" not in row]
    assert COMMANDS[line] in text
    assert not sorted(str(path) for path in set(photos.parent.rglob("*")) - inputs)


def test_an_input_of_bad_rows_alone_ends_with_1_and_its_rows(
    artifact: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Command
) -> None:
    """Paths from another folder, say: every row says so, and so does the status."""
    monkeypatch.chdir(tmp_path)
    Path("t.csv").write_text("before,after\n" + "a.png,b.png\n" * 3)
    line = f"--local --artifact {artifact} --input t.csv --out out --jsonl o.jsonl"
    done = command("caption", *line.split())
    assert (done.returncode, "caption: no row could be captioned" in done.stderr) == (1, True)
    assert "out: 3 rows, 0 with a caption, 3 x before: missing file" in done.stdout
    assert len(Path("o.jsonl").read_text().splitlines()) == 3


REFERENCES = {"a": ["the red ball moved", "someone moved the red ball"], "b": ["nothing has changed", "no change"]}


@pytest.mark.parametrize(
    ("java", "caption", "message"),
    [
        ("/nonexistent/java", "no change", "Java does not work: /nonexistent/java"),
        ("", " ", "the predicted caption is empty: 'b'"),
    ],
)
def test_a_fault_is_named_and_nothing_is_scored(
    java: str, caption: str, message: str, tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "references.json").write_text(json.dumps(REFERENCES))
    (tmp_path / "said.json").write_text(json.dumps({"a": "it moved", "b": caption}))
    monkeypatch.setenv("IDC_JAVA", java)
    settings = [f"references={tmp_path / 'references.json'}", f"predictions={tmp_path / 'said.json'}"]
    done = command("evaluate", *settings, f"out={tmp_path / 'out'}", "metrics=[BLEU, ROUGE-L, CIDEr]", "resamples=10")
    assert done.returncode in (1, 2)
    assert message in done.stdout + done.stderr
    assert not (tmp_path / "out" / "evaluation.json").exists(), "never a silent score"


MINED = ["--local", "efficientnet_lite0.size=64", "workers=1", "neighbours=5", *(f"{k}={v}" for k, v in LOOSE.items())]


def test_unreadable_images(tmp_path: Path, command: Command) -> None:
    images, out = tmp_path / "images", tmp_path / "out"
    write_images(images, scenes=4)
    (images / "cut.png").write_bytes(next(images.rglob("*.png")).read_bytes()[:100])
    (images / "empty.jpg").touch()
    os.symlink("/etc/hostname", images / "outside.png")
    os.mkfifo(images / "pipe.png")
    refused = command("mine_pairs", f"images={images}", f"out={out}", *MINED)
    assert "of 15 rows were rejected, more than max_reject_share=0.05 allows: " in refused.stderr
    printed = command("mine_pairs", f"images={images}", f"out={out}", *MINED, "max_reject_share=0.5").stdout
    assert "15 images: 3 cannot be read, 0 are near-duplicates," in printed
    rejects = {reject.row_id: reject.code for reject in read_rejects(f"{out}-work/features")}
    assert rejects == {
        "cut.png": "truncated image", "empty.jpg": "empty file", "outside.png": "outside the source",
    }  # fmt: skip
    assert "note: left out: 1 that are not files: pipe.png" in printed
    assert "cut.png: truncated image" in (out / "mining.html").read_text(encoding="utf-8")


def test_a_folder_without_images(tmp_path: Path, command: Command) -> None:
    put(tmp_path / "images", {"readme.txt": "nothing here"})
    settings = (f"images={tmp_path / 'images'}", f"out={tmp_path / 'out'}", *MINED)
    assert command("mine_pairs", *settings).stderr.endswith("has no images: left out: 1 .txt files\n")
    (tmp_path / "images" / MANIFEST).write_text("{}")
    assert command("mine_pairs", *settings).stderr.endswith("give the folder of the original images\n")
