"""Supervised tuning in the demo."""

from __future__ import annotations

from idc.demo.system import DemoSystem, Stage

DEMO = DemoSystem("SFT", (Stage("SFT", "finetune_sft", "sft/finetune_small.yaml", "sft-{seed}", ("pairs={pairs}",)),))
