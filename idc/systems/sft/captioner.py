"""A tuned vision-language model as a captioner."""

from __future__ import annotations

from idc.systems.sft.task import SYSTEM
from idc.vlm.remote import RemoteCaptioner

load_captioner, load_remote = SYSTEM.captioner, RemoteCaptioner
