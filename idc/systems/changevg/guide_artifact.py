"""Reading the artifact of a guide, which is of the same system as that of a model tuned with its notes."""

from __future__ import annotations

from pathlib import Path

from idc.systems.changevg.config import GUIDE, is_guide
from idc.training.artifact import Artifact, read_artifact


def read_guide(path: Path | str) -> Artifact:
    """The artifact of a guide.

    Raises:
        ValueError: it is none, or that of a tuned model.
    """
    artifact = read_artifact(path, system="changevg")
    if not is_guide(artifact.config):
        raise ValueError(f"{path} is a tuned language model, not a guide; its guide, if it has one, is {path}/{GUIDE}")
    return artifact
