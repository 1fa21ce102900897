"""The systems, one folder each: the only list of them, and their lazy loading."""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from idc.captioning.contract import Captioner, Speed
    from idc.captioning.objects_config import ObjectsConfig
    from idc.endpoint.chat_endpoint import EndpointConfig

SYSTEMS = ("procap", "twincap", "namc", "zeroshot", "sft", "m3diff", "adpo", "changevg", "objects")
HUB = "hf:"
"""A model of the hub, ``hf:ORG/NAME[@REVISION]``, in the place of an artifact."""
OBJECTS, REGIONS = "objects", "regions"
"""Name the captioner without training in the place of an artifact; ``regions`` is the one without a detector."""
WRAP_BASE = "idc.systems.zeroshot.wrap:wrap_step"
"""Entry of a step of any vision-language system's sweep: the artifact of its base model as it is."""

_NOT_ENTERED = frozenset({"artifact", "checkpoints", "best", "mlartifacts"})
"""Folders of runs that are not searched for runs; MLflow's are copies."""


def load_system(name: str) -> ModuleType:
    """The ``captioner`` module of a system, which loads less than ``task``; every one has ``load_captioner(artifact,
    device, speed)``. ValueError if there is no such system."""
    if name not in SYSTEMS:
        raise ValueError(f"unknown system {name!r}; available: {', '.join(SYSTEMS)}")
    return importlib.import_module(f"idc.systems.{name}.captioner")


def load_captioner(
    artifact: str,
    device: str = "cpu",
    speed: Speed = "auto",
    base: str | None = None,
    endpoint: EndpointConfig | None = None,
) -> Captioner:
    """Load the captioner of an artifact of any system. ValueError: it is not an artifact of a captioner, its base is
    not on this machine, or it has no language model that can run at an endpoint.

    Args:
        device: torch device, e.g. ``cuda``.
        speed: see :attr:`idc.captioning.loading.LoadConfig.speed`.
        base: folder of the artifact's base model, if it is not where the artifact was made.
        endpoint: runs its language model; device, speed and base are not used then.
    """
    from idc.training.artifact import read_artifact

    record = read_artifact(artifact)
    system = load_system(record.system)
    captioner: Captioner
    if endpoint is None:
        options = {} if base is None else {"base": base}
        captioner = system.load_captioner(record.path, device=device, speed=speed, **options)
    elif hasattr(system, "load_remote"):
        captioner = system.load_remote(record.path, endpoint)
    else:
        raise ValueError(
            f"endpoint: an artifact of {record.system} has no language model that runs elsewhere; leave it out"
        )
    return captioner


def artifact_of_hub(name: str) -> str:
    """The folder of the artifact that a name with :data:`HUB` stands for; of its model all but the weights is
    downloaded if need be. ValueError: the name is malformed, or the model cannot be had or used."""
    folder: str = importlib.import_module("idc.systems.zeroshot.wrap").artifact_of(name)
    return folder


def is_of_hub(artifact: Path) -> bool:
    """Whether a folder is one of :func:`artifact_of_hub`."""
    from idc.data.remote_copies import cache_root

    return artifact.parent == Path(cache_root()) and artifact.name.startswith("hf-")


def artifact_of_objects(name: str, config: ObjectsConfig | None = None) -> str:
    """The folder of the artifact that :data:`OBJECTS` or :data:`REGIONS` stands for. ValueError: its detector is not
    on this machine, or cannot be used."""
    folder: str = importlib.import_module("idc.systems.objects.captioner").objects_folder(name, config)
    return folder


def untrained_name(config: ObjectsConfig) -> str:
    """Name of :func:`untrained_captioner` with these settings."""
    if "detector" in config.model_fields_set:
        return REGIONS if config.detector == "none" else OBJECTS
    installed = importlib.import_module("idc.systems.objects.detectors").embedded_installed()
    return OBJECTS if installed else REGIONS


def untrained_captioner(config: ObjectsConfig | None = None) -> Captioner:
    """The captioner without training, for pairs that another one is not familiar with; loaded once per process. A
    detector that ``config`` does not name is left out where it is not installed; ValueError if a named one cannot be
    used."""
    captioner: Captioner = load_system(OBJECTS).usual_captioner(config)
    return captioner


def is_captioner(artifact: str) -> bool:
    """Whether an artifact is a captioner of one of the systems: all of a system's are, unless its ``config`` module
    has an ``is_captioner(config)``. Loads no torch. ValueError if it is not a whole artifact."""
    from idc.training.artifact import read_artifact

    record = read_artifact(artifact)
    if record.system not in SYSTEMS:
        return False
    decide = getattr(importlib.import_module(f"idc.systems.{record.system}.config"), "is_captioner", None)
    return decide is None or bool(decide(record.config))


def supervision_of(system: str, config: dict[str, Any]) -> str | None:
    """What an artifact of this config was taught by besides images, in a few words for tables; None for a system
    that is not in the list. Captions alone, unless the system's ``config`` module has a ``supervision(config)``.
    Loads no torch."""
    if system not in SYSTEMS:
        return None
    words = getattr(importlib.import_module(f"idc.systems.{system}.config"), "supervision", None)
    return "captions" if words is None else str(words(config))


def newest_captioner(runs: str = "runs") -> str | None:
    """The most recently written captioner artifact in a folder of runs whose familiarity was fitted; None if there is
    none."""
    from idc.training.artifact import FAMILIARITY

    artifacts: list[tuple[float, str]] = []
    for folder, names, _ in os.walk(runs):
        path = Path(folder) / "artifact"
        if "artifact" in names and (path / FAMILIARITY).is_file() and (path / "config.json").is_file():
            artifacts.append(((path / "config.json").stat().st_mtime, str(path)))
        names[:] = [name for name in names if name not in _NOT_ENTERED and not name.startswith(".")]
    for _, artifact in sorted(artifacts, reverse=True):
        try:
            if is_captioner(artifact):
                return artifact
        except (ValueError, OSError):  # damaged or half copied; an older one may be whole
            continue
    return None
