"""A tuned vision-language model as a captioner."""

from __future__ import annotations

from pathlib import Path

from idc.captioning.contract import Speed
from idc.systems.sft.config import SftJob
from idc.training.artifact import read_artifact
from idc.vlm.artifact import load_tuned
from idc.vlm.describer import VlmCaptioner


def load_captioner(path: Path | str, device: str = "cpu", speed: Speed = "auto") -> VlmCaptioner:
    """The captioner of an artifact. ``speed=bf16`` has the weights in bfloat16, ``exact`` in float32.

    Raises:
        ValueError: its base is not on this machine or is another model, or the artifact is damaged.
    """
    artifact = read_artifact(path, system="sft")
    job = SftJob.model_validate(artifact.config["job"])
    types = {"bf16": "bfloat16", "exact": "float32"}
    base = job.base if speed not in types else job.base.model_copy(update={"dtype": types[speed]})
    model, family = load_tuned(artifact, base, job.tune, device)
    return VlmCaptioner(model, family, job.prompt, job.generation, path=artifact.path, trained_on=artifact.trained_on)
