"""ChangeVG's guide in the demo: one training on rendered satellite pairs, and its notes on them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

from idc.demo_system import CONFIGS, DemoFolders, DemoStep, DemoSystem


class _Guide(DemoSystem):
    title, run, rendering = "Guide", "guide", "satellite_small"

    def training(self, folders: DemoFolders) -> Iterator[DemoStep]:
        yield DemoStep(f"ChangeVG's guide{folders.of}", [
            "jobs/train_guide.py", "--config", f"{CONFIGS}/changevg/guide_small.yaml", f"runs={folders.runs}",
            f"train.seed={folders.seed}", f"pairs={folders.pairs}", f"name={self.run}-{folders.seed}",
        ], trains=True)  # fmt: skip

    def further(self, folders: DemoFolders) -> Iterator[DemoStep]:
        yield DemoStep(f"take the guide's notes{folders.of}", [
            "jobs/run_guide.py", f"pairs={folders.pairs}", f"guide={self.artifact(folders)}",
            f"out={self._notes(folders)}",
        ])  # fmt: skip

    def figures(self, folders: DemoFolders) -> Mapping[str, float]:
        scores = json.loads((Path(self._notes(folders)) / "guide.json").read_text(encoding="utf-8"))["test"]
        binary = next(measures for measures in scores["answers"] if measures["type"] == "binary")
        return {
            "mIoU": scores["map"]["mIoU"],
            "of no change anywhere": scores["map_unchanged"]["mIoU"],
            "changed or not": binary["scores"]["Accuracy"],
        }

    def _notes(self, folders: DemoFolders) -> str:
        return f"{folders.data}/guided-{folders.seed}"


DEMO = _Guide()
