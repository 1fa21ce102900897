"""DifferenceNet in the demo."""

from __future__ import annotations

from idc.demo_system import DemoFolders, DemoStep, DemoSystem


class _DifferenceNet(DemoSystem):
    title, run = "DifferenceNet", "difference-net"

    def training(self, folders: DemoFolders) -> list[DemoStep]:
        command = ["jobs/train_difference_net.py", f"name={self.run}-{folders.seed}", f"runs={folders.runs}",
                   f"train.seed={folders.seed}", f"pairs={folders.pairs}"]  # fmt: skip
        return [DemoStep(f"DifferenceNet{folders.of}", command, trains=True)]


DEMO = _DifferenceNet()
