"""A model tuned by rewards as a captioner."""

from __future__ import annotations

from idc.systems.grpo.task import SYSTEM
from idc.vlm.remote import RemoteCaptioner

load_captioner, load_remote = SYSTEM.captioner, RemoteCaptioner
