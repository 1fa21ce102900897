"""The systems, one folder each: the only list of them, and their lazy loading."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import TYPE_CHECKING

from idc.captioning.objects_config import OBJECTS, REGIONS, ObjectsConfig

if TYPE_CHECKING:
    from idc.captioning.contract import Captioner, Speed
    from idc.endpoint.chat_endpoint import EndpointConfig

SYSTEMS = ("procap", "twincap", "namc", "zeroshot", "sft", "m3diff", "adpo", "grpo", "changevg", "objects")


def load_system(name: str) -> ModuleType:
    """The ``captioner`` module of a system, which loads less than ``task``; every one has ``load_captioner(artifact,
    device, speed)``. ValueError if there is no such system."""
    if name not in SYSTEMS:
        raise ValueError(f"unknown system {name!r}; available: {', '.join(SYSTEMS)}")
    return importlib.import_module(f"idc.systems.{name}.captioner")


def system_config(name: str) -> ModuleType:
    """The ``config`` module of a system of the list. Loads no torch."""
    return importlib.import_module(f"idc.systems.{name}.config")


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
    """The folder of the artifact that a name with :data:`idc.training.base.HUB` stands for; of its model all but the
    weights is downloaded if need be. ValueError: the name is malformed, or the model cannot be had or used."""
    folder: str = importlib.import_module("idc.systems.zeroshot.wrap").artifact_of(name)
    return folder


def artifact_of_objects(name: str, config: ObjectsConfig | None = None) -> str:
    """The folder of the artifact that ``objects`` or ``regions`` stands for. ValueError: its detector is not on this
    machine, or cannot be used."""
    folder: str = load_system(OBJECTS).objects_folder(name, config)
    return folder


def untrained_name(config: ObjectsConfig) -> str:
    """Name of :func:`untrained_captioner` with these settings."""
    if config.detector is not None:
        return REGIONS if config.detector == "none" else OBJECTS
    installed = importlib.import_module("idc.systems.objects.detectors").embedded_installed()
    return OBJECTS if installed else REGIONS


def untrained_captioner(config: ObjectsConfig | None = None) -> Captioner:
    """The captioner without training, for pairs that another one is not familiar with; loaded once per process. A
    detector that ``config`` does not name is left out where it is not installed; ValueError if a named one cannot be
    used."""
    captioner: Captioner = load_system(OBJECTS).usual_captioner(config)
    return captioner
