"""TwinCap in the demo: one training."""

from __future__ import annotations

from collections.abc import Iterator

from idc.demo_system import CONFIGS, DemoPlace, DemoStep, DemoSystem


class _TwinCap(DemoSystem):
    title, run = "TwinCap", "twincap"

    def training(self, place: DemoPlace) -> Iterator[DemoStep]:
        yield DemoStep(f"TwinCap{place.of}", [
            "jobs/train_twincap.py", "--config", f"{CONFIGS}/twincap/demo.yaml", f"runs={place.runs}",
            f"train.seed={place.seed}", f"pairs={place.pairs}", f"name={self.run}-{place.seed}",
        ], trains=True)  # fmt: skip


DEMO = _TwinCap()
