"""The page of mined pairs: counts that add up to the collection, pictures, and names that cannot do harm."""

from __future__ import annotations

import re
from functools import partial

import numpy as np
import pytest
from PIL import Image

from idc.data.pipeline import run_local
from idc.data.store import Manifest
from idc.mining.config import MinePairsJob
from idc.mining.image_features import encoder_fingerprint, extraction
from idc.mining.mining_job import mine
from idc.report.mining_page import PAGE, mining_summary, write_mining_page
from tests.mining.small_collection import job, scene, write_images


@pytest.fixture(scope="module")
def mined(tmp_path_factory: pytest.TempPathFactory) -> tuple[MinePairsJob, Manifest, str]:
    """A job, its result and its page; the collection has a copy, a broken image, and names with markup."""
    root = tmp_path_factory.mktemp("page")
    write_images(root / "images", scenes=5)
    Image.fromarray(scene(2, 0)).save(root / "images" / "zz<b>copy.png")
    Image.fromarray(np.full((20, 20, 3), 7, np.uint8)).save(root / "images" / "<i>flat.png")
    (root / "images" / "<script>.png").write_text("no image")
    config = job(root / "images", root / "out", max_reject_share=0.2, pictures=4)
    runner = partial(run_local, progress=False)
    manifest = mine(config, runner, extraction(config), encoder_fingerprint(config))
    write_mining_page(config, manifest)
    return config, manifest, (root / "out" / PAGE).read_text(encoding="utf-8")


def test_the_images_of_the_page_add_up_to_the_collection(mined: tuple[MinePairsJob, Manifest, str]) -> None:
    _, manifest, page = mined
    table = page.partition("Every image of the collection")[2].partition("</table>")[0]
    counts = [int(cell) for cell in re.findall(r"<td>(\d+)</td>", table)]
    assert sum(counts) == manifest.extra["mining"]["images"] == 18


def test_pairs_are_shown_with_their_similarities(mined: tuple[MinePairsJob, Manifest, str]) -> None:
    _, _, page = mined
    pairs = page.partition('<section id="section-2">')[2].partition("</section>")[0]
    assert pairs.count("<article") == 4
    assert pairs.count("data:image/jpeg") == 8
    assert len(re.findall(r"<span>(?:head|middle|both) [01]\.\d{3}</span>", pairs)) == 12
    table = page.partition('<section id="section-3">')[2].partition("</table>")[0]
    cells = [float(cell) for cell in re.findall(r"<td>(-?[01]\.\d{3})</td>", table)]
    assert len(cells) == 4 * 7
    assert all(cells[n : n + 7] == sorted(cells[n : n + 7]) for n in range(0, 28, 7))


def test_names_of_files_are_escaped(mined: tuple[MinePairsJob, Manifest, str]) -> None:
    _, _, page = mined
    assert "&lt;script&gt;.png: not an image" in page
    assert "zz&lt;b&gt;copy.png: near duplicate: of " in page
    assert not {"<script>", "<b>copy", "<i>flat"} & set(re.findall(r"<script>|<b>copy|<i>flat", page))


def test_the_printed_lines_account_for_every_image(mined: tuple[MinePairsJob, Manifest, str]) -> None:
    config, manifest, _ = mined
    first, *lost, last = mining_summary(config, manifest)
    numbers = [int(n) for n in re.findall(r"(\d+) (?:images|cannot|are|have pairs|have none)", first)]
    assert numbers[0] == 18 == sum(numbers[1:])
    assert sum(int(line.split()[0]) for line in lost) == numbers[-1]
    assert f"{manifest.num_rows} pairs" in last
