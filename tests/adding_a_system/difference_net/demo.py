"""DifferenceNet in the demo."""

from __future__ import annotations

from idc.demo_system import DemoPlace, DemoStep, DemoSystem


class _DifferenceNet(DemoSystem):
    title, run = "DifferenceNet", "difference-net"

    def training(self, place: DemoPlace) -> list[DemoStep]:
        command = ["jobs/train_difference_net.py", f"name={self.run}-{place.seed}", f"runs={place.runs}",
                   f"train.seed={place.seed}", f"pairs={place.pairs}"]  # fmt: skip
        return [DemoStep(f"DifferenceNet{place.of}", command, trains=True)]


DEMO = _DifferenceNet()
