"""The whole job on a small collection, with the embedded features."""

from __future__ import annotations

import hashlib
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from idc.data.pipeline import ChunkResult, run_local
from idc.data.schema import ChangePair
from idc.data.store import DatasetFolder, Manifest, iter_rows, read_manifest, read_rejects
from idc.mining.config import MinePairsJob
from idc.mining.image_features import encoder_fingerprint, extraction
from idc.mining.mining_job import STEPS, already_mined, mine
from tests.mining.small_collection import job, scene, write_images

Mined = tuple[Path, Path, dict[str, int]]


def run(job: MinePairsJob, processes: int = 1, overwrite: bool = False) -> Manifest:
    runner = partial(run_local, processes=processes, progress=False)
    return mine(job, runner, extraction(job), encoder_fingerprint(job), overwrite=overwrite)


def digests(out: Path) -> dict[str, str]:
    folders = {"pairs": out, **{name: Path(f"{out}-work") / name for name in STEPS}}
    return {
        f"{name}/{file.name}": hashlib.sha256(file.read_bytes()).hexdigest()
        for name, folder in folders.items()
        for file in sorted(folder.glob("*.parquet"))
    }


@pytest.fixture(scope="module")
def mined(tmp_path_factory: pytest.TempPathFactory) -> Mined:
    """A collection, the pairs mined from it, the truth: 30 images of 10 scenes, a copy, three other files."""
    root = tmp_path_factory.mktemp("mined")
    truth = write_images(root / "images")
    Image.fromarray(scene(4, 1)).resize((96, 96)).save(root / "images" / "zz-copy.png")
    (root / "images" / "cut.png").write_bytes((root / "images" / next(iter(truth))).read_bytes()[:200])
    (root / "images" / "text.jpg").write_text("no image")
    (root / "images" / "photo.heic").write_bytes(b"\0" * 64)
    (root / "images" / "notes.txt").write_text("about the collection")
    run(job(root / "images", root / "out", max_reject_share=0.2))
    return root / "images", root / "out", truth


def test_every_image_is_accounted_for(mined: Mined) -> None:
    _, out, truth = mined
    counts = read_manifest(out).extra["mining"]
    assert (counts["images"], counts["unreadable"], counts["near_duplicates"]) == (34, 3, 1)
    assert counts["searched"] == 30 == counts["paired"] + sum(counts["without_pair"].values())
    assert read_manifest(out).num_rows == counts["chosen"]
    assert read_manifest(out).extra["notes"] == ["left out: 1 .txt files"]
    unreadable = {reject.row_id: reject.code for reject in read_rejects(f"{out}-work/features")}
    assert unreadable == {"cut.png": "truncated image", "text.jpg": "not an image", "photo.heic": "not an image"}
    (copy,) = read_rejects(f"{out}-work/neighbours")
    assert (copy.row_id, copy.code) == ("zz-copy.png", "near duplicate")
    assert truth[copy.reason.removeprefix("near duplicate: of ")] == 4


def test_the_pairs_are_an_ordinary_folder_of_similar_images(mined: Mined) -> None:
    images, out, truth = mined
    assert read_manifest(out).kind == "pairs"
    right = total = 0
    for row in iter_rows(out):
        pair = ChangePair.from_row(row)
        before, after = pair.meta["images"]
        assert (pair.before, pair.after) == ((images / before).read_bytes(), (images / after).read_bytes())
        assert pair.captions == ()
        assert set(pair.meta["similarity"]) == {"head", "middle", "both"}
        assert before != after
        right += truth[before] == truth[after]
        total += 1
    assert total >= 30
    assert right / total > 5 * 2 / 29  # by chance: 2 of the other 29 images


def test_a_job_that_ends_in_a_step_continues_there_and_gives_the_same(mined: Mined, tmp_path: Path) -> None:
    images, out, _ = mined
    written: list[str] = []

    def runner(folder: DatasetFolder, *args: Any, name: str, **options: Any) -> Manifest:
        def watch(result: ChunkResult) -> None:
            written.append(name)
            if written.count("neighbours") == 2:
                raise KeyboardInterrupt

        return run_local(folder, *args, name=name, progress=False, watch=watch, **options)

    config = job(images, tmp_path / "out", max_reject_share=0.2)
    with pytest.raises(KeyboardInterrupt):
        mine(config, runner, extraction(config), encoder_fingerprint(config))
    assert digests(tmp_path / "out").items() < digests(out).items()
    run(config)
    assert digests(tmp_path / "out") == digests(out)
    assert already_mined(config, encoder_fingerprint(config)) is not None


def test_other_thresholds_are_refused_and_otherwise_reuse_the_neighbours(mined: Mined, tmp_path: Path) -> None:
    images, out, _ = mined
    for folder in (out, Path(f"{out}-work")):
        shutil.copytree(folder, tmp_path / folder.name)
    narrow = job(images, tmp_path / "out", max_reject_share=0.2, efficientnet_lite0__head_thresholds__min=0.8,
                 efficientnet_lite0__head_thresholds__set_max=0.8)  # fmt: skip
    encoder = encoder_fingerprint(narrow)
    with pytest.raises(ValueError, match="of other settings or images; choose another out"):
        already_mined(narrow, encoder)
    kept = {path: path.stat().st_mtime_ns for step in ("features", "neighbours")
            for path in (tmp_path / "out-work" / step).iterdir() if path.is_file()}  # fmt: skip
    narrow_pairs = run(narrow, overwrite=True)
    assert narrow_pairs.num_rows < read_manifest(out).num_rows
    assert {path: path.stat().st_mtime_ns for path in kept} == kept
