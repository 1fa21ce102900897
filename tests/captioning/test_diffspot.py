"""DiffSpot's submission: its Parquet in, one JSON line per pair out, as its documents have it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from idc.captioning.diffspot import prediction
from idc.captioning.table import CaptionJob, caption_rows
from idc.config import load
from idc.data.images import encode_png
from idc.data.pipeline import run_local
from idc.data.store import iter_rows
from tests.data.readers.test_own import prepare
from tests.systems.objects.test_exact import BLUE, RED, changed, screen

SCREEN = np.array(screen())


def faults(path: Path, ids: set[str]) -> list[str]:
    """The checks of scripts/prepare_submission.py, and the splits of docs/evaluation.md."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    fields = {"id", "split", "model", "prompt_version", "prediction"}
    out = [f"{row['id']}: keys" for row in rows if fields - row.keys()]
    out += [f"{row['id']}: split" for row in rows if row["split"] not in ("easy", "medium", "hard", "no_diff")]
    out += [f"{row['id']}: empty" for row in rows if row["split"] != "no_diff" and not row["prediction"].strip()]
    out += [] if sorted(row["id"] for row in rows) == sorted(ids) else ["coverage, or an id twice"]
    out += [name for name in ("model", "prompt_version") if len({row[name] for row in rows}) != 1]
    return out


def benchmark(folder: Path, images: dict[str, tuple[np.ndarray, str, str]]) -> Path:
    """A Parquet file with the columns of the data set: id -> image after, task type, difficulty."""
    rows = [
        {"id": name, "image_before": {"bytes": encode_png(SCREEN), "path": None},
         "image_after": {"bytes": encode_png(after), "path": None}, "task_type": task, "difficulty": difficulty,
         "ground_truth_diff": "It changed.", "mutation_dicts_json": ["{}"], "mutation_types": ["mutate_color"]}
        for name, (after, task, difficulty) in images.items()
    ]  # fmt: skip
    folder.mkdir()
    pq.write_table(pa.Table.from_pylist(rows), folder / "test-00000-of-00001.parquet")
    return folder


def captioned(folder: Path, source: Path, **settings: Any) -> list[dict[str, str]]:
    values = {"artifact": "regions", "input": str(source), "out": str(folder / "captions"), "show": 0,
              "diffspot": str(folder / "predictions.jsonl")}  # fmt: skip
    caption_rows(load(CaptionJob, None, values | settings), lambda *a, **o: run_local(*a, progress=False, **o))
    lines = (folder / "predictions.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def test_predictions_are_as_the_benchmark_documents_them(tmp_path: Path) -> None:
    two = changed("rectangle", (40, 400, 239, 439), fill=BLUE)
    two[300:330, 440:480] = RED
    images = {
        "one": (changed("rectangle", (40, 400, 239, 439), fill=BLUE), "visual_diff", "hard"),
        "two": (two, "visual_diff", "easy"),
        "same": (SCREEN, "no_diff", "no_diff"),
        "same too": (SCREEN, "no_diff", "unknown"),
    }
    prepare(benchmark(tmp_path / "in", images), tmp_path / "pairs", "diffspot")
    lines = captioned(tmp_path, tmp_path / "pairs")
    assert faults(tmp_path / "predictions.jsonl", set(images)) == []
    by_id = {line["id"]: line for line in lines}
    assert {name: line["split"] for name, line in by_id.items()} == {
        "one": "hard", "two": "easy", "same": "no_diff", "same too": "no_diff",
    }  # fmt: skip
    assert by_id["one"]["prediction"] == "- A blue area of 200 x 40 px appeared at the bottom left."
    assert by_id["same"]["prediction"] == by_id["same too"]["prediction"] == "There is no difference."
    bullets = by_id["two"]["prediction"].split("\n")
    [row] = [row for row in iter_rows(tmp_path / "captions") if row["pair_id"] == "two"]
    assert len(bullets) == len([claim for claim in row["claims"] if claim["text"]]) == 2
    assert all(bullet.startswith("- ") and bullet.endswith(".") for bullet in bullets)


def test_a_table_without_the_tiers_is_refused_before_anything_is_captioned(tmp_path: Path) -> None:
    for role in ("before", "after"):
        (tmp_path / f"{role}.png").write_bytes(encode_png(SCREEN))
    table = tmp_path / "pairs.csv"
    table.write_text("pair_id,before,after,difficulty\na,before.png,after.png,hardest\n")
    with pytest.raises(ValueError, match="pair 'a' has the difficulty 'hardest', not one of easy, medium"):
        captioned(tmp_path, table)
    assert not (tmp_path / "captions").exists()


def test_a_row_without_claims_has_its_caption_and_one_without_a_caption_says_so() -> None:
    row = {"pair_id": "a", "claims": None, "caption": "- the title is larger\n- it is red", "verdict": "changed"}
    assert prediction(row, "easy", "qwen")["prediction"] == row["caption"]
    unread = {**row, "caption": None, "verdict": None}
    assert prediction(unread, "easy", "qwen")["prediction"] == "The images could not be compared."
    undecided = {**row, "claims": [], "caption": "No single region can be named.", "verdict": "unsure"}
    assert prediction(undecided, "easy", "objects")["prediction"] == "No single region can be named."
    consequence = {**row, "claims": [{"text": "The title became larger."}, {"text": None}]}
    assert prediction(consequence, "easy", "objects")["prediction"] == "- The title became larger."
