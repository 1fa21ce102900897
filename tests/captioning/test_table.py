"""Captions of an input: a row for every row, a reason where there is no caption, on from where it was."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from idc.captioning.contract import SearchOptions
from idc.captioning.table import PAGE, SUMMARY, CaptionJob, caption_rows
from idc.config import ConfigError, load, override
from idc.data.images import decode_image, encode_png
from idc.data.pipeline import run_local
from idc.data.store import iter_rows, read_manifest
from idc.metrics.change_maps import upsample
from idc.systems import load_captioner
from tests.data.test_images import bomb
from tests.systems.procap.world import World


def job(artifact: str, input: Path | str, out: Path | str, **settings: Any) -> CaptionJob:
    given = {"artifact": artifact, "input": str(input), "out": str(out), "batch_size": 4, "chunk_size": 6}
    return load(CaptionJob, None, given | settings)


def quiet(*args: Any, **options: Any) -> Any:
    return run_local(*args, progress=False, **options)


def rows_of(out: Path) -> list[dict[str, Any]]:
    return list(iter_rows(out))


def test_the_captions_of_a_folder_of_pairs_in_its_order(
    artifact: str, world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    done = caption_rows(job(artifact, world.pairs, tmp_path / "out"), quiet)
    assert re.findall(r"captioning: pair (\d+/\d+) ", capsys.readouterr().err).count("6/6") == 4, "parts of 6 pairs"
    pairs = list(iter_rows(world.pairs))
    rows = rows_of(tmp_path / "out")
    assert [row["row"] for row in rows] == list(range(24))
    assert {row["captioner"] for row in rows} == {artifact}
    assert [row["pair_id"] for row in rows] == [pair["pair_id"] for pair in pairs]
    captioner = load_captioner(artifact)
    images = [[decode_image(pair[role]) for pair in pairs] for role in ("before", "after")]
    assert [row["caption"] for row in rows] == captioner(*images)
    for row, told in zip(rows, captioner.describe(*images, SearchOptions(change_map=True)), strict=True):
        assert told.change_map is not None
        drawn = decode_image(row["change_map"])[..., 0]
        assert np.abs(drawn - 255 * upsample(told.change_map, drawn.shape)).max() <= 1
        assert row["log_probability"] == pytest.approx(told.best.log_probability, abs=1e-4)
        assert row["confidence"] == pytest.approx(math.exp(row["log_probability"]))
        assert row["changed_probability"] is None, "this artifact was not calibrated"
        assert row.items() >= told.assessment.items()
        assert [c["caption"] for c in row["candidates"]] == [row["caption"]]
    assert (done.rows, done.errors, done.done) == (24, {}, 24)
    assert 0 < done.model_seconds < done.seconds
    last = r"24 rows in \d+ s with the start, [\d.]+ (s each|a second); the model was busy for \d+ s of them"
    assert re.fullmatch(rf"24 rows, 24 with a caption\n{last}", done.text())


BAD = [  # pair_id, before, after, what the error of its row begins with
    ("one", "a.png", "b.png", None),
    ("one", "a.png", "b.png", None),  # the same again
    ("", "b.png", "a.png", None),  # named by its place
    ("cut", "cut.png", "a.png", "before: truncated image: cut.png: "),
    ("bomb", "a.png", "bomb.png", "after: too many pixels: bomb.png: "),
    ("gone", "a.png", "nowhere.png", "after: missing file: nowhere.png"),
    ("empty cell", "", "a.png", "before: missing file: the cell is empty"),
    ("text", "text.png", "cut.png", "before: not an image: text.png: "),
    ("no bytes", "empty.png", "a.png", "before: empty file: empty.png"),
    ("folder", "a.png", ".", "after: unreadable file: .: IsADirectoryError"),
    ("dot", "dot.png", "a.png", None),
    ("host", "a.png", "nosuch://x/y.png", "after: outside the source: nosuch://x/y.png: "),
    ("t.csv:14", "a.png", "b.png,c", "bad row: 4 cells under 3 columns"),
]


def test_every_bad_row_is_a_row_with_its_reason(artifact: str, tmp_path: Path) -> None:
    good = encode_png(np.random.default_rng(0).integers(0, 255, (40, 50, 3), np.uint8))
    files = {"a.png": good, "b.png": encode_png(np.zeros((9, 300, 3), np.uint8)), "cut.png": good[:2000],
             "bomb.png": bomb(20_000), "text.png": b"not a picture", "empty.png": b"", "dot.png":
             encode_png(np.zeros((1, 1, 3), np.uint8))}  # fmt: skip
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    (tmp_path / "t.csv").write_text("\n".join(["pair_id,before,after", *(",".join(row[:3]) for row in BAD)]))
    done = caption_rows(job(artifact, tmp_path / "t.csv", tmp_path / "out", jsonl=str(tmp_path / "o.jsonl")), quiet)
    rows = rows_of(tmp_path / "out")
    assert [row["row"] for row in rows] == list(range(13))
    assert [row["pair_id"] for row in rows] == [name or "2" for name, *_ in BAD]
    for row, (*_, reason) in zip(rows, BAD, strict=True):
        assert (row["error"] is None) == (reason is None)
        assert (row["error"] or "").startswith(reason or ""), row["error"]
        told = [row[name] is not None for name in ("caption", "confidence", "log_probability", "candidates")]
        assert told == [reason is None] * 4
    assert rows[0]["caption"] == rows[1]["caption"]
    assert done.errors["before: truncated image"] == 1
    assert sum(done.errors.values()) == 9
    assert "13 rows, 4 with a caption, 1 x after: missing file" in done.text()
    lines = [json.loads(line) for line in (tmp_path / "o.jsonl").read_text().splitlines()]
    assert lines == [{name: value for name, value in row.items() if name != "change_map"} for row in rows]


def test_other_settings_or_inputs_or_folders_are_refused(artifact: str, world: World, tmp_path: Path) -> None:
    first = job(artifact, world.pairs, tmp_path / "out", max_pairs=7)
    caption_rows(first, quiet)
    for change in ({"max_pairs": 8}, {"beams": 1}, {"split": "test"}, {"candidates": 2}, {"batch_size": 3}):
        with pytest.raises(ValueError, match="holds 7 captioned of another configuration or other inputs"):
            caption_rows(override(CaptionJob, first, change), quiet)
    caption_rows(override(CaptionJob, first, {"actors": 3, "readers": 1, "format": "pairs"}), quiet)
    several = {"max_pairs": 8, "beams": 4, "candidates": 3}
    again = caption_rows(override(CaptionJob, first, several), quiet, overwrite=True)
    assert (again.rows, again.done) == (8, 8)
    texts = [[one["caption"] for one in row["candidates"]] for row in rows_of(tmp_path / "out")]
    assert max(map(len, texts)) > 1
    assert all(len(set(one)) == len(one) <= 3 for one in texts)
    with pytest.raises(ValueError, match="holds procedures, which this job does not replace"):
        caption_rows(job(artifact, world.pairs, Path(world.procedures)), quiet, overwrite=True)
    assert read_manifest(world.procedures).complete
    with pytest.raises(ValueError, match="artifact"):
        caption_rows(job(world.pairs, world.pairs, tmp_path / "other"), quiet)
    assert not (tmp_path / "other").exists()


def test_a_mask_that_is_no_image_leaves_the_old_output_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "pairs.csv").write_text("before,after\na.png,b.png\n")
    first = job("regions", tmp_path / "pairs.csv", tmp_path / "out")
    caption_rows(first, quiet)
    for name in (PAGE, SUMMARY):
        (tmp_path / "out" / name).touch()
    (tmp_path / "junk.png").write_bytes(b"no image")
    files = set((tmp_path / "out").iterdir())
    with pytest.raises(ValueError, match=r"junk\.png"):
        caption_rows(override(CaptionJob, first, {"ignore": [str(tmp_path / "junk.png")]}), quiet, overwrite=True)
    assert set((tmp_path / "out").iterdir()) == files


@pytest.mark.parametrize("out", ["in", "in/", "in/out", "./in", "nosuch://x"])
def test_the_input_is_not_written_over(out: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="out: .* no filesystem" if ":" in out else "is the input, or in it"):
        load(CaptionJob, None, {"artifact": "a", "input": str(tmp_path / "in"), "out": out})
    load(CaptionJob, None, {"artifact": "a", "input": str(tmp_path / "in"), "out": "in-captions"})
