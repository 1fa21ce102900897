"""M3Diff in the demo (:mod:`idc.demo`): the small base that SFT tunes too, then tuning with the module."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from idc.demo import CONFIGS, DemoFolders, DemoStep, DemoSystem, small_base_step


class _M3Diff(DemoSystem):
    title, run = "M3Diff", "m3diff"

    def training(self, folders: DemoFolders) -> Iterator[DemoStep]:
        step, base = small_base_step(folders)
        yield step
        yield DemoStep(f"M3Diff{folders.of}", [
            "jobs/finetune_m3diff.py", "--config", f"{CONFIGS}/m3diff/finetune_small.yaml", f"runs={folders.runs}",
            f"train.seed={folders.seed}", f"pairs={folders.pairs}", f"name={self.run}-{folders.seed}",
            f"base.source={base}/artifact",
        ], trains=True)  # fmt: skip

    def stages(self, folders: DemoFolders) -> Mapping[str, str]:
        return {"small vision-language base": small_base_step(folders)[1], "M3Diff": self.folder(folders)}


DEMO = _M3Diff()
