"""Procedures whose frames VFIformer makes."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from idc.config import ConfigError, load
from idc.data.images import decode_image
from idc.data.pipeline import run_local
from idc.data.store import iter_rows
from idc.data.text import Vocabulary
from idc.systems.procap.procedures.build import build
from idc.systems.procap.procedures.config import ProceduresConfig
from idc.systems.procap.procedures.stages import stages
from idc.vision.interpolation.middle_frames import interpolate, make_middle
from idc.vision.tokenizer.model import ImageTokenizer
from tests.vision.interpolation.test_vfiformer import save_tiny
from tests.vision.scenes import TINY, pair_row, write_pairs


def test_the_frames_are_vfiformers_whose_weights_are_loaded_before_the_build(tmp_path: Path) -> None:
    torch.manual_seed(0)
    ImageTokenizer(TINY).save(tmp_path / "tokenizer")
    pairs = write_pairs(tmp_path / "pairs", [pair_row(n, "train") for n in range(2)])
    settings = {"tokenizer": str(tmp_path / "tokenizer"), "depth": 2, "interpolation": "vfiformer"}
    config = ProceduresConfig(pairs=pairs, interpolation_weights=save_tiny(tmp_path / "net.pth"), **settings)
    run = partial(run_local, progress=False)
    manifest = build(config, str(tmp_path / "out"), run)
    assert manifest.inputs["interpolation_weights"] == config.interpolation_weights
    middle = make_middle("vfiformer", config.interpolation_weights)
    for row in iter_rows(str(tmp_path / "out")):
        frames = np.stack([decode_image(data) for data in row["frames"]])
        assert (frames == interpolate(frames[0], frames[-1], 2, middle)).all()
    (tmp_path / "net.pth").write_bytes(b"damaged")
    with pytest.raises(ValueError, match="not a checkpoint"):
        build(config, str(tmp_path / "more"), run)
    assert not (tmp_path / "more").exists()


def test_with_a_gpu_vfiformer_shares_the_tokenizers_process() -> None:
    def needs(**settings: object) -> list[tuple[float, float, object]]:
        config = ProceduresConfig.model_validate({"pairs": "p", "tokenizer": "t", "actors": 3, **settings})
        return [(stage.num_cpus, stage.num_gpus, stage.concurrency) for stage in stages(config, TINY, Vocabulary([]))]

    vfiformer = {"interpolation": "vfiformer", "interpolation_weights": "w"}
    first, second, third, *_ = needs(gpus_per_actor=1.0, **vfiformer)
    assert first == second == (1.0, 1.0, 1)
    assert third == (1.0, 0.0, 3)
    assert [gpus for _, gpus, _ in needs(gpus_per_actor=1.0)] == [0, 1, 0, 0]
    assert len(set(needs(**vfiformer))) == 1


def test_weights_and_interpolation_go_together() -> None:
    for settings, message in (
        ({"interpolation": "vfiformer"}, "interpolation=vfiformer needs them"),
        ({"interpolation_weights": "w"}, "interpolation=dis has none; set interpolation=vfiformer"),
    ):
        with pytest.raises(ConfigError, match=message):
            load(ProceduresConfig, None, {"pairs": "p", "tokenizer": "t", **settings})
