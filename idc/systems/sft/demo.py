"""Supervised tuning in the demo (:mod:`idc.demo`): a small base that learns to see on the demo's pairs, then tuning."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from idc.demo import CONFIGS, DemoFolders, DemoStep, DemoSystem, small_base_step


class _Sft(DemoSystem):
    title, run = "SFT", "sft"

    def training(self, folders: DemoFolders) -> Iterator[DemoStep]:
        step, base = small_base_step(folders)
        yield step
        yield DemoStep(f"SFT{folders.of}", [
            "jobs/finetune_vlm.py", "--config", f"{CONFIGS}/vlm/finetune_small.yaml", f"runs={folders.runs}",
            f"train.seed={folders.seed}", f"pairs={folders.pairs}", f"name={self.run}-{folders.seed}",
            f"base.source={base}/artifact",
        ], trains=True)  # fmt: skip

    def stages(self, folders: DemoFolders) -> Mapping[str, str]:
        return {"small vision-language base": small_base_step(folders)[1], "SFT": self.folder(folders)}


DEMO = _Sft()
