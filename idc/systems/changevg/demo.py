"""ChangeVG in the demo: the guide, ChangeIMTI of the rendered satellite pairs, and the small base tuned with both."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from idc.demo_system import CONFIGS, DemoFolders, DemoStep, DemoSystem


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
            f"train.seed={folders.seed}", f"pairs={questions}", f"guide={folders.runs}/guide-{folders.seed}/artifact",
            f"name={self.run}-{folders.seed}",
        ], trains=True)  # fmt: skip

    def stages(self, folders: DemoFolders) -> Mapping[str, str]:
        return {"guide": f"{folders.runs}/guide-{folders.seed}", self.title: self.folder(folders)}


DEMO = _ChangeVg()
