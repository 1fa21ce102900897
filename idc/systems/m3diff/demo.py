"""M3Diff in the demo: the small base that SFT tunes too, tuned with the module."""

from __future__ import annotations

from idc.demo.system import DemoSystem, Stage

DEMO = DemoSystem(
    "M3Diff", (Stage("M3Diff", "finetune_m3diff", "m3diff/finetune_small.yaml", "m3diff-{seed}", ("pairs={pairs}",)),)
)
