"""TwinCap in the demo: one training."""

from __future__ import annotations

from collections.abc import Iterator

from idc.demo_system import CONFIGS, DemoFolders, DemoStep, DemoSystem


class _TwinCap(DemoSystem):
    title, run = "TwinCap", "twincap"

    def training(self, folders: DemoFolders) -> Iterator[DemoStep]:
        yield DemoStep(f"TwinCap{folders.of}", [
            "jobs/train_twincap.py", "--config", f"{CONFIGS}/twincap/demo.yaml", f"runs={folders.runs}",
            f"train.seed={folders.seed}", f"pairs={folders.pairs}", f"name={self.run}-{folders.seed}",
        ], trains=True)  # fmt: skip


DEMO = _TwinCap()
