"""M3Diff in the demo: the small base that SFT tunes too, tuned with the module."""

from __future__ import annotations

from idc.vlm.tuned_demo import TunedDemo

DEMO = TunedDemo("M3Diff", "m3diff", "finetune_m3diff.py", "m3diff/finetune_small.yaml")
