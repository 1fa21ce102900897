"""A tuned vision-language model as a captioner."""

from __future__ import annotations

from pathlib import Path

from idc.captioning.contract import Speed
from idc.chat_endpoint import EndpointConfig
from idc.systems.sft.config import SftJob
from idc.training.artifact import read_artifact
from idc.vlm.artifact import load_tuned
from idc.vlm.describer import VlmCaptioner, dtype_of
from idc.vlm.remote import RemoteCaptioner, parts_of


def load_captioner(
    path: Path | str, device: str = "cpu", speed: Speed = "auto", base: str | None = None
) -> VlmCaptioner:
    """The captioner of an artifact.

    Args:
        speed: "bf16" loads the weights in bfloat16; all others as the artifact's ``base.dtype``.
        base: folder of the base model, if it is not where the artifact was made.

    Raises:
        ValueError: the base is not on this machine or is another model, or the artifact is damaged.
    """
    artifact = read_artifact(path, system="sft")
    job = SftJob.model_validate(artifact.config["job"])
    model, family = load_tuned(artifact, dtype_of(job.base, speed), job.tune, device, base)
    return VlmCaptioner(model, family, job.prompt, job.generation, path=artifact.path, trained_on=artifact.trained_on)


def load_remote(path: Path | str, endpoint: EndpointConfig) -> RemoteCaptioner:
    """The captioner of an artifact whose merged model or adapter runs behind an endpoint, under the name
    ``endpoint.model`` (:func:`idc.systems.load_remote`).

    Raises:
        ValueError: ``endpoint.model`` is missing.
    """
    return RemoteCaptioner(path, parts_of(path), endpoint)
