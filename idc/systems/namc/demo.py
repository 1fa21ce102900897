"""NAMC in the demo: an image tokenizer of its grid, descriptions with known noise, pre-training, fine-tuning."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from idc.demo_system import CONFIGS, DemoPlace, DemoStep, DemoSystem

NOISE = 0.2
"""Share of the objects named in a description that are disturbed."""


class _Namc(DemoSystem):
    title, run = "NAMC", "namc"

    def training(self, place: DemoPlace) -> Iterator[DemoStep]:
        tokenizer, described = "namc-tokenizer", f"{place.data}/described"
        yield DemoStep("train the image tokenizer of NAMC", [
            "jobs/train_tokenizer.py", "--config", f"{CONFIGS}/namc/tokenizer_small.yaml", f"runs={place.runs}",
            f"pairs={place.pairs}", f"name={tokenizer}",
        ], trains=True)  # fmt: skip
        yield DemoStep("describe pairs", [
            "jobs/describe_pairs.py", "--config", f"{CONFIGS}/namc/describe_oracle.yaml", f"pairs={place.pairs}",
            f"out={described}", f"oracle.noise={NOISE}",
        ])  # fmt: skip
        common = [f"runs={place.runs}", f"train.seed={place.seed}"]
        first = self._first(place)
        yield DemoStep(f"NAMC pre-training{place.of}", [
            "jobs/pretrain_namc.py", "--config", f"{CONFIGS}/namc/pretrain_small.yaml", *common, f"name={first}",
            f"pairs={described}", f"caption_pairs={place.pairs}", f"tokenizer={place.runs}/{tokenizer}/artifact",
        ], trains=True)  # fmt: skip
        yield DemoStep(f"NAMC fine-tuning{place.of}", [
            "jobs/finetune_namc.py", "--config", f"{CONFIGS}/namc/finetune_small.yaml", *common,
            f"name={self.run}-{place.seed}", f"pairs={place.pairs}", f"pretrained={place.runs}/{first}/artifact",
        ], trains=True)  # fmt: skip

    def stages(self, place: DemoPlace) -> Mapping[str, str]:
        return {
            "NAMC pre-training": f"{place.runs}/{self._first(place)}",
            "NAMC fine-tuning": self.folder(place),
        }

    def _first(self, place: DemoPlace) -> str:
        """Name of the pre-training's run."""
        return f"namc-pretrain-{place.seed}"


DEMO = _Namc()
