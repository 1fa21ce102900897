"""The entry of supervised tuning: the shared task, and nothing of its own beside the base."""

from __future__ import annotations

from idc.systems.sft.config import SftJob
from idc.vlm.system import TunedSystem

SYSTEM = TunedSystem("sft", SftJob)
train = SYSTEM.train
