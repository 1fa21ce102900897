"""Exported negatives: those of the run, as TRL and LLaMA-Factory read them, without what the scorer finds probable."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from idc.captioning.contract import CaptionScore
from idc.config import ConfigError, load
from idc.data.pipeline import run_local
from idc.data.ranked_captions import ImportPreferencesJob, columns_of, open_preferences, preference_of, preference_rows
from idc.data.store import iter_rows
from idc.schema import Preference
from idc.systems.adpo import export
from idc.systems.adpo.config import ExportPreferencesJob
from idc.systems.adpo.preference_losses import draw
from tests.systems.adpo.small import KIND, batch_of, job_of, loaders_of, task_of


def export_job(pairs: Path, out: Path, **settings: Any) -> ExportPreferencesJob:
    job = job_of(KIND, pairs, **settings)
    return ExportPreferencesJob.model_validate({**job.model_dump(mode="json"), "out": str(out)})


def rows_of_file(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / export.ROWS).read_text().splitlines()]


@pytest.mark.parametrize("objective", ["dpo", "adpo"])
def test_they_are_the_draws_of_the_first_pass(pairs: Path, tmp_path: Path, objective: str) -> None:
    job = export_job(pairs, tmp_path / "out", objective=objective, negatives=2)
    exported = export.export_preferences(job)
    run = job_of(KIND, pairs, objective=objective, negatives=2)
    loaders = loaders_of(run, KIND, tmp_path / "run")
    task = task_of(run, KIND, loaders)
    batch = batch_of(loaders, range(12))
    picks = draw(task._retrieved(batch)[0], batch["noise"], 2)
    texts = task.parts[0].bank.texts
    drawn = [texts[number] for pair in batch["candidates"].gather(1, picks).tolist() for number in pair]
    rows = rows_of_file(tmp_path / "out")
    assert [row["rejected"][0]["content"][0]["text"] for row in rows] == drawn
    chosen = [texts[number] for number in batch["chosen"].tolist() for _ in range(2)]
    assert [row["chosen"][0]["content"][0]["text"] for row in rows] == chosen
    assert (exported.written, exported.left_out) == (24, 0)
    assert exported.true_written is not None
    for row, stored in zip(rows[::2], iter_rows(pairs, ["before", "after"], "train"), strict=True):
        assert [(tmp_path / "out" / name).read_bytes() for name in row["images"]] == [stored["before"], stored["after"]]
        assert all(Image.open(tmp_path / "out" / name).size for name in row["images"])
    with pytest.raises(ValueError, match="exists; choose another folder"):
        export.export_preferences(job)
    assert export.export_preferences(job, overwrite=True) == exported


@pytest.mark.parametrize("columns", ["trl", "llama_factory"])
def test_a_written_row_is_read_as_what_it_was(columns: Any) -> None:
    for prompt in ("First: <image> second: <image>\nWhat is new?", "<image><image>What?", "What? <image> <image>"):
        row = Preference("p-0", ("a.png", "b.png"), prompt, "a cube", "a ball", split="train", source="f")
        written = json.loads(json.dumps(columns_of(row, columns)))
        assert preference_of(written, 0, "f") == row
    (key,) = {"prompt", "conversations"} & written.keys()
    assert key == ("prompt" if columns == "trl" else "conversations")


@pytest.mark.parametrize("columns", ["trl", "llama_factory"])
def test_the_import_reads_the_whole_folder(pairs: Path, tmp_path: Path, columns: str) -> None:
    job = export_job(pairs, tmp_path / "out").model_copy(update={"columns": columns})
    exported = export.export_preferences(job)
    source = str(tmp_path / "out" / export.ROWS)
    importing = load(ImportPreferencesJob, None, {"source": source, "out": str(tmp_path / "ranked")})
    folder, rows, stages = open_preferences(importing)
    manifest = run_local(folder, rows, stages, preference_rows)
    assert (manifest.num_rows, manifest.num_rejected) == (exported.written, 0)
    assert {row["prompt"] for row in iter_rows(tmp_path / "ranked", ["prompt"])} == {job.prompt.text}


class Scorer:
    """Finds one caption as probable as its pair's least probable one, and all others less."""

    capabilities = frozenset({"score"})

    def score(
        self, befores: Sequence[np.ndarray], afters: Sequence[np.ndarray], captions: Sequence[Sequence[str]]
    ) -> list[list[CaptionScore]]:
        assert len(befores) == len(afters) == len(captions)
        return [
            [CaptionScore(-8.0, 4) if number == 0 else CaptionScore(-2.0, 2) if number == 1 else
             CaptionScore(-6.0, 3) if "red" in text else CaptionScore(-6.1, 3) for number, text in enumerate(texts)]
            for texts in captions
        ]  # fmt: skip


def test_a_scorer_leaves_out_what_is_as_probable_as_a_right_caption(
    pairs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Per token: -2 of the least probable reference, -2 of a red thing, -2.03 of all others."""
    monkeypatch.setattr(export, "load_captioner", lambda artifact, device: Scorer())
    job = export_job(pairs, tmp_path / "all", negatives=4)
    whole = export.export_preferences(job)
    filtered = job.model_copy(update={"out": str(tmp_path / "some"), "scorer": "artifact"})
    exported = export.export_preferences(filtered)
    texts = [row["rejected"][0]["content"][0]["text"] for row in rows_of_file(tmp_path / "all")]
    left = [row["rejected"][0]["content"][0]["text"] for row in rows_of_file(tmp_path / "some")]
    assert left == [text for text in texts if "red" not in text]
    assert 0 < exported.left_out == len(texts) - len(left)
    assert exported.written + exported.left_out == whole.written
    assert exported.true_written is not None
    assert exported.true_left_out is not None
    assert exported.true_written + exported.true_left_out == whole.true_written
    assert f"left out as too probable: {exported.left_out}" in exported.text()


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"objective": "sft"}, "objective: negatives are drawn with dpo or adpo"),
        ({"image_negatives": ["swapped"]}, "image_negatives: they are no captions"),
    ],
)
def test_what_is_no_export_is_refused(pairs: Path, settings: dict[str, Any], text: str) -> None:
    job = job_of(KIND, pairs, **settings).model_dump(mode="json", exclude_unset=True)
    with pytest.raises(ConfigError, match=text):
        load(ExportPreferencesJob, None, {**job, "out": "o"})
