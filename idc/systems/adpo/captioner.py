"""A model tuned by preferences as a captioner, without the retriever."""

from __future__ import annotations

from idc.systems.adpo.task import SYSTEM
from idc.vlm.remote import RemoteCaptioner

load_captioner, load_remote = SYSTEM.captioner, RemoteCaptioner
