"""M3Diff in the demo (:mod:`idc.demo`): the small base that SFT tunes too, then tuning with the module."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from idc.demo import CONFIGS, DemoPlace, DemoStep, DemoSystem, small_base_step


class _M3Diff(DemoSystem):
    title, run = "M3Diff", "m3diff"

    def training(self, place: DemoPlace) -> Iterator[DemoStep]:
        step, base = small_base_step(place)
        yield step
        yield DemoStep(f"M3Diff{place.of}", [
            "jobs/finetune_m3diff.py", "--config", f"{CONFIGS}/m3diff/finetune_small.yaml", f"runs={place.runs}",
            f"train.seed={place.seed}", f"pairs={place.pairs}", f"name={self.run}-{place.seed}",
            f"base.source={base}/artifact",
        ], trains=True)  # fmt: skip

    def stages(self, place: DemoPlace) -> Mapping[str, str]:
        return {"small vision-language base": small_base_step(place)[1], "M3Diff": self.folder(place)}


DEMO = _M3Diff()
