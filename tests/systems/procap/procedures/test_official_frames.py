"""Procedures of frames in HDF5 files, as the official code stores them."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch

from idc.config import ConfigError, load
from idc.data.images import decode_image
from idc.data.pipeline import TooManyRejects, run_local
from idc.data.store import iter_rows, read_rejects
from idc.systems.procap.procedures.build import build
from idc.systems.procap.procedures.config import BuildProceduresJob, ProceduresConfig
from idc.vision.tokenizer.model import ImageTokenizer, prepare_frame
from tests.vision.scenes import TINY, pair_row, write_pairs

run = partial(run_local, progress=False)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> str:
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("tokenizer")
    ImageTokenizer(TINY.model_copy(update={"resize": "bilinear"})).save(folder)
    return str(folder)


def video(seed: int, frames: int = 9, size: tuple[int, int] = (24, 40)) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (frames, 3, *size), np.uint8)


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str]:
    """``sc_videos.h5`` and ``nsc_videos.h5`` of scenes 0 to 2."""
    paths = []
    for start, name in ((0, "sc_videos.h5"), (100, "nsc_videos.h5")):
        paths.append(str(tmp_path / name))
        with h5py.File(paths[-1], "w") as file:
            for scene in range(3):
                file[f"{scene:06d}.png"] = video(start + scene)
    return paths[0], paths[1]


def config(tmp_path: Path, tokenizer: str, names: list[str], **settings: Any) -> ProceduresConfig:
    pairs = write_pairs(tmp_path / "pairs", [pair_row(n, "train", pair_id=name) for n, name in enumerate(names)])
    return ProceduresConfig(pairs=pairs, tokenizer=tokenizer, **settings)


@pytest.mark.parametrize("channels", ["rgb", "bgr"])
def test_the_frames_are_those_of_the_files(
    files: tuple[str, str], tokenizer: str, tmp_path: Path, channels: str
) -> None:
    names = ["000000c", "000000nc", "000002c", "000001nc"]
    build(config(tmp_path, tokenizer, names, videos=files, video_channels=channels), str(tmp_path / "out"), run)
    shape = ImageTokenizer.load(tokenizer).config
    for name, seed in zip(names, (0, 100, 2, 101), strict=True):
        (row,) = [row for row in iter_rows(str(tmp_path / "out")) if row["pair_id"] == name]
        pixels = video(seed).transpose(0, 2, 3, 1)
        pixels = np.ascontiguousarray(pixels[..., ::-1] if channels == "bgr" else pixels)
        stored = np.stack([decode_image(data) for data in row["frames"]])
        assert (stored == np.stack([prepare_frame(frame, shape) for frame in pixels])).all()
        assert len(row["confidence"]) == 7
        assert set(row["keyframes"]) <= set(range(1, 8))


def test_other_data_sets_are_found_by_their_own_names(tokenizer: str, tmp_path: Path) -> None:
    with h5py.File(tmp_path / "spot_videos.h5", "w") as file:
        file["76"], file["x.png"] = video(1), video(2)
    names = ["76", "x"]
    made = config(tmp_path, tokenizer, names, videos=[str(tmp_path / "spot_videos.h5")])
    assert build(made, str(tmp_path / "out"), run).num_rows == 2


def test_bad_rows_are_rejected_with_their_reason(files: tuple[str, str], tokenizer: str, tmp_path: Path) -> None:
    with h5py.File(files[0], "a") as file:
        file["000010.png"] = video(1, frames=5)
        file["000011.png"] = video(1).astype(np.float32)
        file.create_group("000012.png")
        file.create_dataset("000013.png", data=video(1), compression="gzip", chunks=(9, 3, 24, 40))
    with h5py.File(files[0], "r") as file:
        place = file["000013.png"].id.get_chunk_info(0).byte_offset
    content = bytearray(Path(files[0]).read_bytes())
    content[place : place + 64] = bytes(64)
    Path(files[0]).write_bytes(content)
    names = ["000000c", "000010c", "000011c", "000012c", "000013c", "000077nc"]
    made = config(tmp_path, tokenizer, names, videos=files)
    with pytest.raises(TooManyRejects, match="unexpected video"):
        build(made, str(tmp_path / "out"), run)
    manifest = build(made.model_copy(update={"max_reject_share": 0.9}), str(tmp_path / "out"), run)
    assert manifest.num_rows == 1
    reasons = {reject.row_id: reject.reason for reject in read_rejects(str(tmp_path / "out"))}
    assert reasons["000010c"] == "unexpected video: 000010.png is uint8 (5, 3, 24, 40)"
    assert reasons["000011c"] == "unexpected video: 000011.png is float32 (9, 3, 24, 40)"
    assert reasons["000012c"].startswith("unexpected video: 000012.png is a group")
    assert reasons["000013c"].startswith("damaged video: 000013.png")
    assert reasons["000077nc"] == "no video: 000077nc is in none of sc_videos.h5, nsc_videos.h5"


def test_other_videos_are_other_procedures(files: tuple[str, str], tokenizer: str, tmp_path: Path) -> None:
    made = config(tmp_path, tokenizer, ["000000c"], videos=files[:1])
    build(made, str(tmp_path / "out"), run)
    moved = tmp_path / "elsewhere" / "sc_videos.h5"
    moved.parent.mkdir()
    Path(files[0]).rename(moved)
    build(made.model_copy(update={"videos": (str(moved),)}), str(tmp_path / "out"), run)  # the same file: nothing to do
    with h5py.File(moved, "a") as file:
        file["000009.png"] = video(5)
    with pytest.raises(ValueError, match="another configuration or other inputs"):
        build(made.model_copy(update={"videos": (str(moved),)}), str(tmp_path / "out"), run)


def test_what_is_no_hdf5_and_what_is_missing(tokenizer: str, tmp_path: Path) -> None:
    (tmp_path / "sc_videos.h5").write_bytes(b"no")
    made = config(tmp_path, tokenizer, ["000000c"], videos=[str(tmp_path / "sc_videos.h5")])
    with pytest.raises(ValueError, match="videos: cannot be read as HDF5"):
        build(made, str(tmp_path / "out"), run)
    missing = {
        "procedures": "p",
        "build.pairs": made.pairs,
        "build.tokenizer": tokenizer,
        "build.videos": ["nowhere.h5"],
    }
    job = load(BuildProceduresJob, None, missing)
    (fault,) = job.build.preflight()
    assert fault.startswith("videos: no such file or folder: 'nowhere.h5'")
    with pytest.raises(ConfigError):
        load(BuildProceduresJob, None, {**missing, "build.video_channels": "grb"})
