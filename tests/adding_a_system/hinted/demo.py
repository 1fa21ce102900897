"""Hinted in the demo."""

from __future__ import annotations

from idc.vlm.tuned_demo import TunedDemo

DEMO = TunedDemo("Hinted", "hinted", "finetune_hinted.py", "hinted/finetune_small.yaml")
