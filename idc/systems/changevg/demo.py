"""ChangeVG in the demo: the guide and its notes, ChangeIMTI of the rendered satellite pairs, and the small base tuned
with both."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

from idc.demo.system import CONFIGS, DemoFolders, DemoStep, DemoSystem


class _ChangeVg(DemoSystem):
    """Two trainings."""

    title, run, rendering = "ChangeVG", "changevg", "satellite_small"

    def training(self, folders: DemoFolders) -> Iterator[DemoStep]:
        questions = f"{folders.data}/changeimti"
        yield DemoStep(f"train the guide{folders.of}", [
            "jobs/train_guide.py", "--config", f"{CONFIGS}/changevg/guide_small.yaml", f"runs={folders.runs}",
            f"train.seed={folders.seed}", f"pairs={folders.pairs}", f"name=guide-{folders.seed}",
        ], trains=True)  # fmt: skip
        yield DemoStep("build questions", [
            "jobs/build_changeimti.py", "--config", f"{CONFIGS}/changevg/changeimti_clean.yaml",
            f"pairs={folders.pairs}", f"out={questions}",
        ])  # fmt: skip
        yield DemoStep(f"{self.title}{folders.of}", [
            "jobs/finetune_changevg.py", "--config", f"{CONFIGS}/changevg/small.yaml", f"runs={folders.runs}",
            f"train.seed={folders.seed}", f"pairs={questions}", f"guide={self._guide(folders)}",
            f"name={self.run}-{folders.seed}",
        ], trains=True)  # fmt: skip

    def further(self, folders: DemoFolders) -> Iterator[DemoStep]:
        yield DemoStep(f"take the guide's notes{folders.of}", [
            "jobs/finetune_changevg.py", f"pairs={folders.pairs}", f"guide={self._guide(folders)}",
            f"out={self._notes(folders)}",
        ])  # fmt: skip

    def figures(self, folders: DemoFolders) -> Mapping[str, float]:
        scores = json.loads((Path(self._notes(folders)) / "guide.json").read_text(encoding="utf-8"))["test"]
        binary = next(measures for measures in scores["answers"] if measures["type"] == "binary")
        return {
            "mIoU of the guide": scores["map"]["mIoU"],
            "of no change anywhere": scores["map_unchanged"]["mIoU"],
            "changed or not, by the guide": binary["scores"]["Accuracy"],
        }

    def stages(self, folders: DemoFolders) -> Mapping[str, str]:
        return {"guide": f"{folders.runs}/guide-{folders.seed}", self.title: self.folder(folders)}

    def _guide(self, folders: DemoFolders) -> str:
        return f"{folders.runs}/guide-{folders.seed}/artifact"

    def _notes(self, folders: DemoFolders) -> str:
        return f"{folders.data}/guided-{folders.seed}"


DEMO = _ChangeVg()
