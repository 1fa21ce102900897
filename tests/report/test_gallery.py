"""The page of captioned pairs: its counts are those of the rows, its pictures those of the pairs."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_sample_images

from idc.captioning.sources import SHIPPED, artifact_folder
from idc.captioning.table import CaptionJob, caption_rows
from idc.config import load
from idc.data.images import decode_image, encode_png
from idc.data.pipeline import run_local
from idc.data.store import iter_rows
from idc.metrics.change_types import named_type
from idc.rendered.config import RenderJob
from idc.rendered.render import open_rendering
from idc.report.gallery import GallerySummary, write_gallery
from tests.report.html_page import HtmlPage
from tests.shipped_scores import render_settings

SCENES = 6


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Scenes like the training images of the captioner that comes with the program: two pairs of each."""
    folder = tmp_path_factory.mktemp("rendered") / "pairs"
    config = render_settings(Path(artifact_folder(SHIPPED)), SCENES)
    run_local(*open_rendering(RenderJob(out=str(folder), render=config)), name="rendering", progress=False)
    return folder


def quiet(*args: Any, **options: Any) -> Any:
    return run_local(*args, progress=False, **options)


def made(input: Path, out: Path, overwrite: bool = False, **settings: Any) -> tuple[GallerySummary, Path]:
    job = load(CaptionJob, None, {"artifact": SHIPPED, "input": str(input), "out": str(out), **settings})
    caption_rows(job, quiet, overwrite=overwrite)
    summary = write_gallery(job)
    assert GallerySummary.model_validate_json((out / "summary.json").read_text()) == summary
    return summary, out / "page.html"


def test_the_page_shows_evenly_spaced_pairs_with_their_change_maps(pairs: Path, tmp_path: Path) -> None:
    summary, page = made(pairs, tmp_path / "out", show=3)
    found = HtmlPage(page.read_text())
    assert "3 of the 12 captioned pairs, evenly spaced." in found.text
    rows, stored = list(iter_rows(tmp_path / "out")), list(iter_rows(pairs))
    assert [row["pair_id"] for row in rows] == [row["pair_id"] for row in stored]
    assert (summary.pairs, summary.named_types) == (12, Counter(named_type(row["caption"]) for row in rows))
    shown = [2, 6, 10]
    text = " ".join(found.text.split())
    assert [i for i, row in enumerate(rows) if row["pair_id"] in text] == shown
    assert all(rows[i]["caption"] in text for i in shown)
    assert f"confidence {100 * rows[2]['confidence']:.0f} %; {rows[2]['verdict']}" in text
    assert len(found.images) == 9
    for place, i in enumerate(shown):
        before, after, heat = found.images[3 * place : 3 * place + 3]
        for picture, role in ((before, "before"), (after, "after")):
            original = decode_image(stored[i][role]).astype(float)
            assert np.abs(picture - original).mean() < 4, "but for JPEG it is the image"
        if rows[i]["verdict"] == "changed":
            red = heat[..., 0].astype(float) - heat[..., 1]
            assert red.max() > np.median(red) + 30, "the map of a changed pair has a hot place"
    assert {rows[i]["verdict"] for i in shown} >= {"changed"}


def test_photographs_and_unreadable_images_in_a_table(pairs: Path, tmp_path: Path) -> None:
    stored = list(iter_rows(pairs))[:4]
    lines = ["pair_id,before,after"]
    for i, row in enumerate(stored):
        for role in ("before", "after"):
            (tmp_path / f"{role}{i}.png").write_bytes(row[role])
        lines.append(f"r{i},before{i}.png,after{i}.png")
    for name, image in zip("ab", load_sample_images().images, strict=True):
        (tmp_path / f"{name}.png").write_bytes(encode_png(image))
    lines += ["photograph,a.png,b.png", "gone,a.png,nowhere.png"]
    (tmp_path / "t.csv").write_text("\n".join(lines))
    summary, page = made(tmp_path / "t.csv", tmp_path / "out")
    assert (summary.pairs, summary.without_caption) == (6, 1)
    assert (summary.warned, summary.warnable) == (1, 5)
    [photographed] = [row for row in iter_rows(tmp_path / "out") if row["pair_id"] == "photograph"]
    assert photographed["verdict"] == "unsure"
    text = " ".join(HtmlPage(page.read_text()).text.split())
    sentences = f"objects: {photographed['objects_text']} {photographed['caption']} {photographed['warning']}"
    for part in (
        sentences,
        "All 5 captioned pairs.",
        "1 more have no caption",
        "Do not trust it here.",
        "1 of 5; 95 %",
    ):
        assert text.count(part) == 1, part
    image = next(one for one in HtmlPage(page.read_text()).images if max(one.shape) > 64)
    assert max(image.shape) == 480, "a photograph is reduced"


def test_a_page_does_not_outlive_its_captions(pairs: Path, tmp_path: Path) -> None:
    first, page = made(pairs, tmp_path / "out", show=2)
    again, _ = made(pairs, tmp_path / "out", show=1)
    assert again == first
    assert "1 of the 12 captioned pairs" in page.read_text(), "another number of pairs captions nothing again"
    less, _ = made(pairs, tmp_path / "out", overwrite=True, max_pairs=5, show=0)
    assert less.pairs == 5
    assert not page.exists()
