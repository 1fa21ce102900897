"""NAMC in the demo: an image tokenizer of its grid, descriptions with known noise, pre-training,
fine-tuning."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from idc.demo.system import CONFIGS, DemoFolders, DemoStep, DemoSystem

NOISE = 0.2
"""Share of the objects named in a description that are disturbed."""


class _Namc(DemoSystem):
    title, run = "NAMC", "namc"

    def training(self, folders: DemoFolders) -> Iterator[DemoStep]:
        tokenizer, described = "namc-tokenizer", f"{folders.data}/described"
        yield DemoStep("train the image tokenizer of NAMC", [
            "jobs/train_tokenizer.py", "--config", f"{CONFIGS}/vision/tokenizer_demo.yaml", f"runs={folders.runs}",
            f"pairs={folders.pairs}", f"name={tokenizer}",
            "tokenizer.patch_size=8", "tokenizer.channels=136", "tokenizer.latent_dim=64",
        ], trains=True)  # fmt: skip
        yield DemoStep("describe pairs", [
            "jobs/describe_pairs.py", "describer=oracle", f"pairs={folders.pairs}",
            f"out={described}", f"oracle.noise={NOISE}",
        ])  # fmt: skip
        common = [f"runs={folders.runs}", f"train.seed={folders.seed}"]
        first = self._first(folders)
        yield DemoStep(f"NAMC pre-training{folders.of}", [
            "jobs/pretrain_namc.py", "--config", f"{CONFIGS}/namc/pretrain_small.yaml", *common, f"name={first}",
            f"pairs={described}", f"caption_pairs={folders.pairs}", f"tokenizer={folders.runs}/{tokenizer}/artifact",
        ], trains=True)  # fmt: skip
        yield DemoStep(f"NAMC fine-tuning{folders.of}", [
            "jobs/finetune_namc.py", "--config", f"{CONFIGS}/namc/finetune_small.yaml", *common,
            f"name={self.run}-{folders.seed}", f"pairs={folders.pairs}", f"pretrained={folders.runs}/{first}/artifact",
        ], trains=True)  # fmt: skip

    def stages(self, folders: DemoFolders) -> Mapping[str, str]:
        return {"NAMC pre-training": f"{folders.runs}/{self._first(folders)}", "NAMC fine-tuning": self.folder(folders)}

    def _first(self, folders: DemoFolders) -> str:
        """Name of the pre-training's run."""
        return f"namc-pretrain-{folders.seed}"


DEMO = _Namc()
