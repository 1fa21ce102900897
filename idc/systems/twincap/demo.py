"""TwinCap in the demo: one training, in bfloat16 where the processor computes in it: two thirds of the time, and no
worse by three seeds (docs/results.md)."""

from __future__ import annotations

from collections.abc import Iterator

from idc.demo.system import CONFIGS, DemoFolders, DemoStep, DemoSystem
from idc.util.cores import bfloat16_is_native


class _TwinCap(DemoSystem):
    title, run = "TwinCap", "twincap"

    def training(self, folders: DemoFolders) -> Iterator[DemoStep]:
        yield DemoStep(f"TwinCap{folders.of}", [
            "jobs/train_twincap.py", "--config", f"{CONFIGS}/twincap/demo.yaml", f"runs={folders.runs}",
            f"train.seed={folders.seed}", f"pairs={folders.pairs}", f"name={self.run}-{folders.seed}",
            f"train.precision={'bf16' if bfloat16_is_native() else 'fp32'}",
        ], trains=True)  # fmt: skip


DEMO = _TwinCap()
