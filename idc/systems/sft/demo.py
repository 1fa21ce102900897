"""Supervised tuning in the demo (:mod:`idc.demo`): a small base that learns to see on the demo's pairs, then tuning."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from idc.demo import CONFIGS, DemoPlace, DemoStep, DemoSystem, small_base_step


class _Sft(DemoSystem):
    title, run = "SFT", "sft"

    def training(self, place: DemoPlace) -> Iterator[DemoStep]:
        step, base = small_base_step(place)
        yield step
        yield DemoStep(f"SFT{place.of}", [
            "jobs/finetune_vlm.py", "--config", f"{CONFIGS}/vlm/finetune_small.yaml", f"runs={place.runs}",
            f"train.seed={place.seed}", f"pairs={place.pairs}", f"name={self.run}-{place.seed}",
            f"base.source={base}/artifact",
        ], trains=True)  # fmt: skip

    def stages(self, place: DemoPlace) -> Mapping[str, str]:
        return {"small vision-language base": small_base_step(place)[1], "SFT": self.folder(place)}


DEMO = _Sft()
