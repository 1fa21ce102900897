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
from idc.data.pipeline import run_local
from idc.data.store import iter_rows, read_rejects
from idc.systems.procap.procedures.build import build
from idc.systems.procap.procedures.config import BuildProceduresJob, ProceduresConfig
from idc.vision.tokenizer.model import ImageTokenizer, prepare_frame
from tests.vision.scenes import TINY, pair_row, write_pairs

run = partial(run_local, progress=False)
SHAPE = TINY.model_copy(update={"resize": "bilinear"})


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> str:
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("tokenizer")
    ImageTokenizer(SHAPE).save(folder)
    return str(folder)


def video(seed: int, frames: int = 9) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (frames, 3, 24, 40), np.uint8)


def videos(path: Path, **content: np.ndarray) -> str:
    with h5py.File(path, "w") as file:
        for name, frames in content.items():
            file[name] = frames
    return str(path)


def config(tmp_path: Path, tokenizer: str, names: list[str], files: list[str], **settings: Any) -> ProceduresConfig:
    pairs = write_pairs(tmp_path / "pairs", [pair_row(n, "train", pair_id=name) for n, name in enumerate(names)])
    return ProceduresConfig(pairs=pairs, tokenizer=tokenizer, videos=files, **settings)


@pytest.mark.parametrize("channels", ["rgb", "bgr"])
def test_the_frames_are_those_of_the_files(tokenizer: str, tmp_path: Path, channels: str) -> None:
    """CLEVR's scenes in a file each for changed and unchanged pairs, or pairs of other data sets by their names."""
    changed = videos(tmp_path / "sc_videos.h5", **{"000000.png": video(0), "000002.png": video(2)})
    unchanged = videos(tmp_path / "nsc_videos.h5", **{"000000.png": video(100), "76": video(76)})
    seeds = {"000000c": 0, "000000nc": 100, "000002c": 2, "76": 76}
    made = config(tmp_path, tokenizer, list(seeds), [changed, unchanged], video_channels=channels)
    build(made, str(tmp_path / "out"), run)
    rows = {row["pair_id"]: row for row in iter_rows(str(tmp_path / "out"))}
    for name, seed in seeds.items():
        pixels = video(seed).transpose(0, 2, 3, 1)[..., :: -1 if channels == "bgr" else 1]
        stored = [decode_image(data) for data in rows[name]["frames"]]
        assert np.array_equal(stored, [prepare_frame(np.ascontiguousarray(frame), SHAPE) for frame in pixels])
        assert len(rows[name]["confidence"]) == 7
        assert set(rows[name]["keyframes"]) <= set(range(1, 8))


def test_bad_rows_are_rejected_with_their_reason(tokenizer: str, tmp_path: Path) -> None:
    bad = {"000010.png": video(1, frames=5), "000011.png": video(1).astype(np.float32)}
    path = videos(tmp_path / "sc_videos.h5", **{"000000.png": video(0)}, **bad)
    with h5py.File(path, "a") as file:
        file.create_group("000012.png")
        damaged = file.create_dataset("000013.png", data=video(1), compression="gzip", chunks=(9, 3, 24, 40))
        start = damaged.id.get_chunk_info(0).byte_offset
    content = bytearray(Path(path).read_bytes())
    content[start : start + 64] = bytes(64)
    Path(path).write_bytes(content)
    names = ["000000c", "000010c", "000011c", "000012c", "000013c", "000077nc"]
    manifest = build(config(tmp_path, tokenizer, names, [path], max_reject_share=0.9), str(tmp_path / "out"), run)
    assert manifest.num_rows == 1
    reasons = {reject.row_id: reject.reason for reject in read_rejects(str(tmp_path / "out"))}
    for name, reason in {
        "000010c": "unexpected video: 000010.png is uint8 (5, 3, 24, 40)",
        "000011c": "unexpected video: 000011.png is float32 (9, 3, 24, 40)",
        "000012c": "unexpected video: 000012.png is a group",
        "000013c": "damaged video: 000013.png",
        "000077nc": "no video: 000077nc is in none of sc_videos.h5",
    }.items():
        assert reasons[name].startswith(reason)


def test_what_is_no_hdf5_and_what_is_missing(tokenizer: str, tmp_path: Path) -> None:
    (tmp_path / "sc_videos.h5").write_bytes(b"no")
    made = config(tmp_path, tokenizer, ["000000c"], [str(tmp_path / "sc_videos.h5")])
    with pytest.raises(ValueError, match="videos: cannot be read as HDF5"):
        build(made, str(tmp_path / "out"), run)
    missing = {"procedures": "p", "build": {"pairs": made.pairs, "tokenizer": tokenizer, "videos": ["nowhere.h5"]}}
    (fault,) = load(BuildProceduresJob, None, missing).build.preflight()
    assert fault.startswith("videos: no such file or folder: 'nowhere.h5'")
    with pytest.raises(ConfigError, match="video_channels"):
        load(BuildProceduresJob, None, {**missing, "build.video_channels": "grb"})
