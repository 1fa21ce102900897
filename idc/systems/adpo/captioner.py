"""A model tuned by preferences as a captioner; the retriever is no part of it."""

from __future__ import annotations

from pathlib import Path

from idc.captioning.contract import Speed
from idc.systems.adpo.task import SYSTEM
from idc.vlm.captioner import VlmCaptioner
from idc.vlm.remote import load_remote

__all__ = ["load_captioner", "load_remote"]


def load_captioner(
    path: Path | str, device: str = "cpu", speed: Speed = "auto", base: str | None = None
) -> VlmCaptioner:
    """The captioner of an artifact; arguments and errors as of :meth:`idc.vlm.system.TunedSystem.load`."""
    job, model, family, _, options = SYSTEM.load(path, device, speed, base)
    return VlmCaptioner(model, family, job.prompt, job.generation, **options)
