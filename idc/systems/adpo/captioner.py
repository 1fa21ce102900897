"""A model tuned by preferences as a captioner; the retriever is no part of it."""

from __future__ import annotations

from idc.systems.adpo.task import SYSTEM
from idc.vlm.remote import load_remote

__all__ = ["load_captioner", "load_remote"]

load_captioner = SYSTEM.captioner
