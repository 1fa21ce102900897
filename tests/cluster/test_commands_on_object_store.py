"""The commands with URIs: pairs written and read, an artifact that starts a training, captions, is scored and served;
all against a real S3 server, without Ray."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from idc.captioning.sources import SHIPPED, ModelSources, artifact_folder
from idc.data.files import locate
from idc.data.images import encode_png
from idc.data.remote_copies import remote_listing, upload_files
from idc.data.store import iter_rows, read_manifest, read_rejects
from idc.training.artifact import add_file, artifact_identity, read_artifact
from idc.util.program import shipped
from tests.object_store import Store, store

ROOT = Path(__file__).parents[2]
MODEL = "s3://idc/models/shipped"
PAIRS = "s3://idc/data/pairs"
TINY = (
    "model.height=32", "model.width=32", "model.stem_channels=[8, 16]", "model.channels=32", "model.blocks=1",
    "model.decoder.width=32", "model.decoder.layers=1", "model.decoder.heads=2", "model.decoder.feedforward=64",
)  # fmt: skip


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """With the shipped captioner in it."""
    cache = tmp_path_factory.mktemp("cache")
    before = os.environ.get("IDC_CACHE")
    os.environ["IDC_CACHE"] = str(cache)
    with store() as made:
        folder = Path(artifact_folder(SHIPPED))
        names = [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]
        upload_files(folder, names, locate(MODEL), 0)
        yield made
    os.environ.pop("IDC_CACHE")
    if before is not None:
        os.environ["IDC_CACHE"] = before


def command(*words: str, fails: bool = False) -> str:
    """Output of a command of this project, both streams."""
    ended = subprocess.run(
        [sys.executable, shipped(f"jobs/{words[0]}"), *words[1:]], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, check=False,
    )  # fmt: skip
    assert (ended.returncode != 0) == fails, ended.stdout
    return ended.stdout


def write_table(folder: Path, count: int = 12) -> Path:
    """A CSV of pairs and their images; the last image is missing."""
    with (folder / "pairs.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["pair_id", "before", "after", "caption", "split"])
        for i in range(count):
            for name, value in (("before", 10 * i), ("after", 10 * i + 100 * (i % 2))):
                if i < count - 1 or name == "before":
                    picture = np.full((40, 40, 3), value, np.uint8)
                    (folder / f"{name}{i}.png").write_bytes(encode_png(picture))
            text = ("nothing has changed", "the picture became brighter")[i % 2]
            rows.writerow([f"p{i}", f"before{i}.png", f"after{i}.png", text, ("train", "val", "test")[i % 3]])
    return folder / "pairs.csv"


@pytest.mark.slow
def test_pairs_a_training_and_an_evaluation(s3: Store, tmp_path: Path) -> None:
    made = ("format=csv", f"source={write_table(tmp_path)}", f"out={PAIRS}", "max_reject_share=0.2", "--local")
    command("import_dataset.py", *made)
    assert read_manifest(PAIRS).num_rows == 11
    assert [(reject.row_id, reject.code) for reject in read_rejects(PAIRS)] == [("p11", "missing file")]
    written = remote_listing(locate(PAIRS), 0)
    command("import_dataset.py", *made)
    assert remote_listing(locate(PAIRS), 0) == written, "it was complete"
    assert {row["split"] for row in iter_rows(PAIRS, ["split"])} == {"train", "val", "test"}

    train = (
        "train_twincap.py", f"pairs={PAIRS}", "runs=s3://idc/runs", "name=tiny", *TINY, "train.steps=2",
        "train.epochs=null", "train.batch_size=2", "--local",
    )  # fmt: skip
    said = command(*train)
    assert "artifact s3://idc/runs/tiny/artifact" in said
    assert "s3://idc/runs/tiny is not tracked in MLflow" in said
    assert "run tiny is complete (s3://idc/runs/tiny), nothing to do" in command(*train)
    command(*(word.replace("name=tiny", "name=next") for word in train), "start=s3://idc/runs/tiny/artifact")
    assert read_artifact("s3://idc/runs/next/artifact").system == "twincap"

    out = tmp_path / "evaluation"
    command("evaluate.py", "artifact=s3://idc/runs/next/artifact", f"pairs={PAIRS}", "split=test", f"out={out}",
            'metrics=[BLEU, ROUGE-L]', "resamples=10", "--local")  # fmt: skip
    assert json.loads((out / "evaluation.json").read_text())["pairs"] == 3

    said = command("train_twincap.py", f"pairs={PAIRS}", "runs=s3://none/runs", *TINY, "--local", fails=True)
    assert said.startswith("twincap: runs=s3://none/runs: there is no such bucket; create it, or correct the URI")
    assert said.count("\n") == 1


@pytest.mark.slow
def test_a_server_takes_the_artifact_and_sees_a_new_one(s3: Store) -> None:
    folder = artifact_folder(SHIPPED)
    version = ModelSources().version(MODEL)
    assert version == f"sha256:{artifact_identity(folder)[:12]}"
    fetched = ModelSources().fetch(MODEL)
    assert artifact_identity(fetched) == artifact_identity(folder)
    with pytest.raises(ValueError, match=f"{MODEL} is not on this machine; copy the artifact here"):
        add_file(MODEL, "notes.txt", "mine")
    s3.refuse()
    try:
        assert ModelSources().fetch(MODEL) == fetched, "a replica whose store goes away while it loads"
        with pytest.raises(ValueError, match="s3://"):
            ModelSources().version(MODEL)  # what is served may not be the current version
    finally:
        s3.answer()
