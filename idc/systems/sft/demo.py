"""Supervised tuning in the demo."""

from __future__ import annotations

from idc.vlm.tuned_demo import TunedDemo

DEMO = TunedDemo("SFT", "sft", "finetune_sft.py", "sft/finetune_small.yaml")
