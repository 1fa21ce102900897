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
from idc.systems.procap.sweep import Trial
from tests.systems.procap.world import DECODER, ENCODER, World, build_procedures
from tests.vision.interpolation.test_vfiformer import save_tiny as save_tiny_vfiformer
from tests.vision.pair_encoder.test_pair_encoder import tiny as tiny_pair_encoder

BUILD = {"depth": 2, "num_keyframes": 2, "temperature": 0.001}


def names(world: World, build: dict[str, Any] | None = None, **settings: Any) -> dict[str, str]:
    built = {**BUILD, "tokenizer": world.tokenizer, **(build or {})}
    base = {"pairs": world.pairs, "build": built, "pretrain": {"encoder": ENCODER}, "finetune": {"decoder": DECODER}}
    chain = load(Trial, None, {**base, **settings}).steps("store")
    assert chain.baselines is not None
    every = (*chain.work, chain.evaluation, chain.baselines, chain.speed)
    return {step.name.split("-")[0]: step.name for step in every}


def save_folder(path: Path, version: int) -> None:
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(f'{{"version": {version}}}')


READ: dict[str, tuple[Callable[[Path, int], Any], dict[str, Any]]] = {
    "build.pair_encoder": (lambda path, seed: tiny_pair_encoder(seed).save(path), {"build.strategy": "visual_text"}),
    "build.interpolation_weights": (
        save_tiny_vfiformer, {"build.interpolation": "vfiformer"},
    ),
    "build.dinov2": (save_folder, {"build.similarity": "dinov2"}),
    "pretrain.clip": (save_folder, {}),
}  # fmt: skip
"""Setting that names a folder or file -> how a version of it is made, and the settings it needs."""


@pytest.mark.parametrize("setting", READ)
def test_steps_follow_the_content_of_what_they_read_and_not_its_path(
    setting: str, world: World, tmp_path: Path
) -> None:
    save, settings = READ[setting]

    def named(path: Path) -> dict[str, str]:
        return names(world, **settings, **{setting: str(path)})

    save(tmp_path / "here", 1)
    first = named(tmp_path / "here")
    copied = shutil.copy if (tmp_path / "here").is_file() else shutil.copytree
    assert named(Path(copied(tmp_path / "here", tmp_path / "moved"))) == first
    save(tmp_path / "here", 2)
    other = named(tmp_path / "here")
    anew = {"pretrain", "finetune", "evaluation", "speed"} | ({"procedures"} if setting.startswith("build") else set())
    assert {kind for kind in first if first[kind] != other[kind]} == anew, "baselines are of the pairs alone"


def test_the_step_and_the_folder_of_procedures_have_one_identity(world: World, tmp_path: Path) -> None:
    settings = {**BUILD, "pairs": world.pairs, "tokenizer": world.tokenizer}
    mark = identity(ProceduresConfig.model_validate(settings))
    assert read_manifest(build_procedures(tmp_path / "built", settings)).fingerprint == mark
    assert names(world)["procedures"] == f"procedures-{mark[:12]}"
    assert names(world, {"actors": 3, "frames_per_batch": 7}) == names(world), "how they are built does not count"
