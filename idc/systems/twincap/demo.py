"""TwinCap in the demo: a training by captions and one by rewards, in bfloat16 where the processor computes in it: two
thirds of the time, and no worse by three seeds (docs/results.md)."""

from __future__ import annotations

from idc.demo.system import DemoSystem, Stage, reward_stage
from idc.util.cores import bfloat16_is_native

_PRECISION = "bf16" if bfloat16_is_native() else "fp32"

DEMO = DemoSystem(
    "TwinCap",
    (
        Stage(
            "TwinCap", "train_twincap", "twincap/demo.yaml", "twincap-{seed}",
            ("pairs={pairs}", f"train.precision={_PRECISION}"),
            captioner="TwinCap without rewards",
        ),
        reward_stage("TwinCap", "twincap", "train.steps=200", f"train.precision={_PRECISION}"),
    ),
)  # fmt: skip
