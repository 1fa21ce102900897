"""ProCap's chain for sweeps: a step is named by what it reads, not by where that is stored."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from idc.config import load
from idc.data.store import read_manifest
from idc.systems.procap.procedures.build import identity
from idc.systems.procap.procedures.config import ProceduresConfig
from idc.systems.procap.sweep import Trial, steps
from tests.systems.procap.world import DECODER, ENCODER, World, build_procedures
from tests.vision.interpolation.test_vfiformer import tiny as tiny_vfiformer
from tests.vision.pair_encoder.test_pair_encoder import tiny as tiny_pair_encoder
from tests.vision.tiny_models import save_tiny_dinov2

BUILD = {"depth": 2, "num_keyframes": 2, "temperature": 0.001}


def names(world: World, build: dict[str, Any] | None = None, **settings: Any) -> dict[str, str]:
    """Kind -> name of the steps of a trial that builds its procedures."""
    built = {**BUILD, "tokenizer": world.tokenizer, **(build or {})}
    base = {"pairs": world.pairs, "build": built, "pretrain": {"encoder": ENCODER}, "finetune": {"decoder": DECODER}}
    made = steps(load(Trial, None, {**base, **settings}), "store")
    assert made.baselines is not None
    return {step.name.split("-")[0]: step.name for step in (*made.work, made.evaluation, made.baselines, made.speed)}


def save_dinov2(path: Path, version: int) -> None:
    save_tiny_dinov2(path)
    (path / "note.txt").write_text(f"{version}")


READ: dict[str, tuple[Callable[[Path, int], Any], dict[str, Any]]] = {
    "pair_encoder": (lambda path, seed: tiny_pair_encoder(seed).save(path), {"strategy": "visual_text"}),
    "interpolation_weights": (lambda path, seed: tiny_vfiformer(seed).save(path), {"interpolation": "vfiformer"}),
    "dinov2": (save_dinov2, {"similarity": "dinov2"}),
}
"""Setting of the procedures that names files -> how a version of them is made, and the settings it needs."""


@pytest.mark.parametrize("setting", READ)
def test_steps_follow_the_content_of_what_procedures_read_and_not_its_path(
    setting: str, world: World, tmp_path: Path
) -> None:
    save, settings = READ[setting]

    def named(path: Path) -> dict[str, str]:
        return names(world, {**settings, setting: str(path)})

    save(tmp_path / "here", 1)
    first = named(tmp_path / "here")
    assert named(shutil.copytree(tmp_path / "here", tmp_path / "moved")) == first
    save(tmp_path / "here", 2)
    trained_anew = named(tmp_path / "here")
    for kind in ("procedures", "pretrain", "finetune", "evaluation", "speed"):
        assert trained_anew[kind] != first[kind], kind
    assert trained_anew["baselines"] == first["baselines"]  # they are of the pairs alone


def test_the_step_and_the_folder_of_procedures_have_one_identity(world: World, tmp_path: Path) -> None:
    settings = {**BUILD, "pairs": world.pairs, "tokenizer": world.tokenizer}
    built = build_procedures(tmp_path / "built", settings)
    mark = identity(ProceduresConfig.model_validate(settings))
    assert read_manifest(built).fingerprint == mark
    assert names(world)["procedures"] == f"procedures-{mark[:12]}"
    assert names(world, {"actors": 3, "frames_per_batch": 7}) == names(world), "how they are built does not count"


def test_stage_1_follows_the_content_of_its_clip(world: World, tmp_path: Path) -> None:
    clip = tmp_path / "clip"
    clip.mkdir()
    (clip / "config.json").write_text("{}")
    first = names(world, **{"pretrain.clip": str(clip)})
    assert names(world, **{"pretrain.clip": str(shutil.copytree(clip, tmp_path / "moved"))}) == first
    (clip / "config.json").write_text('{"other": 1}')
    other = names(world, **{"pretrain.clip": str(clip)})
    assert (other["pretrain"] != first["pretrain"], other["procedures"]) == (True, first["procedures"])
