"""A vision-language model of others as a captioner."""

from __future__ import annotations

from pathlib import Path

from idc.captioning.contract import Speed
from idc.systems.zeroshot.config import ZeroShotConfig
from idc.training.artifact import read_artifact
from idc.vlm.base import load_model
from idc.vlm.captioner import VlmCaptioner, dtype_of
from idc.vlm.remote import RemoteCaptioner
from idc.vlm.tuning import find_tuned

load_remote = RemoteCaptioner


def load_captioner(
    path: Path | str, device: str = "cpu", speed: Speed = "auto", base: str | None = None
) -> VlmCaptioner:
    """The captioner of an artifact: "bf16" loads the weights in bfloat16, all other speeds as its ``base.dtype``.
    ``base``: its folder, if it is not where the artifact was made. ValueError: it is not on this machine, or is
    another model."""
    artifact = read_artifact(path, system="zeroshot")
    config = artifact.settings(ZeroShotConfig)
    folder, family = find_tuned(artifact, config.base, base)
    model = load_model(folder, dtype_of(config.base, speed), device)
    return VlmCaptioner(
        model, family, config.prompt, config.generation, path=artifact.path, trained_on=artifact.trained_on
    )
