"""Frame triplets: layouts of image files, videos that are cut, scenes that are rendered."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from idc.config import ConfigError, load
from idc.data.images import encode_png
from idc.data.pipeline import run_local
from idc.data.rendered.config import MotionConfig
from idc.data.store import iter_rows
from idc.vision.interpolation.config import TripletsConfig
from idc.vision.interpolation.moving_scenes import draw_motion
from idc.vision.interpolation.triplets import build, find_image_files, open_triplets


def picture(level: int, size: tuple[int, int] = (6, 8)) -> bytes:
    return encode_png(np.full((*size, 3), level, np.uint8))


def write(folder: Path, *names: str, level: int = 0) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for n, name in enumerate(names):
        (folder / name).write_bytes(picture(level + n))


# -- image files ---------------------------------------------------------------------------------------------------


def test_one_folder_a_triplet_and_numbered_files(tmp_path: Path) -> None:
    write(tmp_path / "middlebury" / "Walking", "frame10.png", "frame10i11.png", "frame11.png", level=10)
    write(tmp_path / "ucf", "7_frame0.png", "7_frame1.png", "7_frame2.png", level=20)
    write(tmp_path / "ucf", "31_frame0.png", "31_frame1.png", "31_frame2.png", level=30)
    write(tmp_path / "other" / "a", "frame_00.png", "frame_01_gt.png", "frame_02.png", level=40)
    triplets = open_triplets(str(tmp_path))
    found = {triplets[n].name: [int(frame[0, 0, 0]) for frame in triplets[n][1:]] for n in range(len(triplets))}
    assert found == {
        "middlebury/Walking": [10, 11, 12],
        "other/a": [40, 41, 42],
        "ucf/31": [30, 31, 32],
        "ucf/7": [20, 21, 22],
    }


def test_vimeo_90k(tmp_path: Path) -> None:
    names = [f"00001/{n:04d}" for n in range(1, 103)]
    for name in (names[0], names[99], "00002/0001"):
        write(tmp_path / "sequences" / name, "im1.png", "im2.png", "im3.png")
    (tmp_path / "tri_trainlist.txt").write_text("\n".join(names) + "\n\n")
    (tmp_path / "tri_testlist.txt").write_text("00002/0001\n")
    assert [len(open_triplets(str(tmp_path), split)) for split in (None, "train", "val", "test")] == [103, 101, 1, 1]
    assert open_triplets(str(tmp_path), "val")[0].name == "00001/0100"
    assert open_triplets(str(tmp_path), "test")[0].middle[0, 0, 0] == 1


def test_every_tenth_is_held_out(tmp_path: Path) -> None:
    for n in range(23):
        write(tmp_path, *(f"{n:02d}_frame{k}.png" for k in range(3)))
    entries = find_image_files(tmp_path)
    assert [n for n, entry in enumerate(entries) if entry.split == "val"] == [9, 19]
    assert len(open_triplets(str(tmp_path), "test")) == 0


def test_what_is_no_triplet_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has no frame triplets"):
        open_triplets(str(tmp_path))
    write(tmp_path / "two", "a.png", "b.png")
    with pytest.raises(ValueError, match="two has 2 images"):
        open_triplets(str(tmp_path))
    (tmp_path / "two" / "c.png").write_bytes(picture(0, (6, 9)))
    with pytest.raises(ValueError, match=r"triplet two: its frames differ in size: \[\(6, 8\), \(6, 9\)\]"):
        open_triplets(str(tmp_path))[0]
    (tmp_path / "two" / "c.png").write_bytes(b"no image")
    with pytest.raises(ValueError, match=r"triplet two: .*c\.png: not an image"):
        open_triplets(str(tmp_path))[0]
    write(tmp_path, "x_frame0.png", "x_frame2.png")
    with pytest.raises(ValueError, match="one is missing"):
        open_triplets(str(tmp_path))


# -- videos --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def video(tmp_path_factory: pytest.TempPathFactory) -> str:
    """32 frames of 64x48: frame n has the grey 8 n; from frame 24 on nothing changes."""
    import cv2

    path = tmp_path_factory.mktemp("video") / "ramp.avi"
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*"MJPG"), 10, (64, 48))
    for n in range(32):
        writer.write(np.full((48, 64, 3), 8 * min(n, 24), np.uint8))
    writer.release()
    return str(path)


def test_a_video_is_cut(video: str, tmp_path: Path) -> None:
    config = TripletsConfig(videos=(video,), gap=2, every=3, max_side=32, min_motion=1.0, val_share=0.2, chunk_size=4)
    manifest = build(config, str(tmp_path / "triplets"), run_local)
    assert manifest.num_rejected == 0
    rows = list(iter_rows(str(tmp_path / "triplets")))
    starts = [int(row["row_id"].rsplit("-", 1)[1]) for row in rows]
    assert starts == list(range(0, 24, 3))  # 27 would be the last, and is still
    assert [row["split"] for row in rows] == ["train"] * 8
    triplets = open_triplets(str(tmp_path / "triplets"))
    for n, start in enumerate(starts):
        _, first, middle, last = triplets[n]
        assert first.shape == (24, 32, 3)
        expected = [8 * min(start + step, 24) for step in (0, 2, 4)]
        assert [frame.mean() for frame in (first, middle, last)] == pytest.approx(expected, abs=2)


def test_the_end_of_a_video_is_held_out(video: str, tmp_path: Path) -> None:
    config = TripletsConfig(videos=(video,), every=2, val_share=0.2)
    manifest = build(config, str(tmp_path / "triplets"), run_local)
    assert manifest.rows_by_split == {"train": 12, "val": 3}
    rows = list(iter_rows(str(tmp_path / "triplets"), columns=["split"]))
    assert [row["split"] for row in rows] == ["train"] * 12 + ["val"] * 3
    assert build(config, str(tmp_path / "triplets"), run_local) == manifest
    with pytest.raises(ValueError, match="another configuration"):
        build(config.model_copy(update={"gap": 2}), str(tmp_path / "triplets"), run_local)


def test_videos_that_cannot_be_cut(video: str, tmp_path: Path) -> None:
    (tmp_path / "text.mp4").write_text("no video")
    with pytest.raises(ValueError, match=r"text\.mp4 cannot be read as a video"):
        build(TripletsConfig(videos=(str(tmp_path / "text.mp4"),)), str(tmp_path / "out"), run_local)
    with pytest.raises(ValueError, match="none has the 41 frames"):
        build(TripletsConfig(videos=(video,), gap=20), str(tmp_path / "out"), run_local)
    with pytest.raises(ConfigError, match="videos and scenes: give one of the two"):
        load(TripletsConfig, None, {})


# -- scenes --------------------------------------------------------------------------------------------------------

SCENES = MotionConfig(num_scenes=12, width=48, height=32, samples_per_pixel=1, min_objects=2, min_visible_pixels=10)


def test_everything_moves_along_lines() -> None:
    ways = []
    for index in range(12):
        (start, at_start), (half, at_half), (end, at_end) = draw_motion(SCENES, index)
        for a, b, c in zip(start, half, end, strict=True):
            assert (b.x, b.y) == pytest.approx(((a.x + c.x) / 2, (a.y + c.y) / 2))
            assert (a.shape, a.color, a.radius) == (b.shape, b.color, b.radius) == (c.shape, c.color, c.radius)
            ways.append(math.hypot(c.x - a.x, c.y - a.y))
        for things in (half, end):
            gaps = [
                math.hypot(a.x - b.x, a.y - b.y) - a.footprint - b.footprint
                for a in things
                for b in things
                if a is not b
            ]
            assert min(gaps) >= SCENES.min_gap / 2 - 1e-9
        assert at_half.origin == pytest.approx(
            [(a + b) / 2 for a, b in zip(at_start.origin, at_end.origin, strict=True)]
        )
        assert at_start.origin != at_end.origin
        assert at_start.lamps == at_end.lamps
    moved = [way for way in ways if way > 0]
    assert 0.3 < len(moved) / len(ways) < 0.8
    assert 0.2 * SCENES.max_move <= min(moved) <= max(moved) <= SCENES.max_move


def test_scenes_are_rendered(tmp_path: Path) -> None:
    config = TripletsConfig(scenes=SCENES.model_copy(update={"num_scenes": 3}), chunk_size=2)
    manifest = build(config, str(tmp_path), run_local)
    assert manifest.num_rows == 3
    for n in range(3):
        _, first, middle, last = open_triplets(str(tmp_path))[n]
        assert first.shape == middle.shape == last.shape == (32, 48, 3)
        assert np.abs(first.astype(float) - last).mean() > 1
