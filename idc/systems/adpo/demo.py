"""ADPO in the demo: the captioner that SFT trains too, merged, then preferences."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from idc.demo.system import CONFIGS, DemoFolders, DemoStep
from idc.vlm.tuned_demo import TunedDemo


class _Adpo(TunedDemo):
    """Two trainings and the encoder of the retriever."""

    def training(self, folders: DemoFolders) -> Iterator[DemoStep]:
        sft = TunedDemo("SFT", "sft", "finetune_sft.py", "sft/finetune_small.yaml")
        yield from sft.training(folders)
        merged = f"{sft.folder(folders)}/merged"
        yield DemoStep(f"merge SFT{folders.of}", [
            "jobs/merge_vlm.py", f"artifact={sft.artifact(folders)}", f"out={merged}",
        ])  # fmt: skip
        yield DemoStep("train the pair encoder", [
            "jobs/train_pair_encoder.py", "--config", f"{CONFIGS}/vision/pair_encoder_demo.yaml",
            f"runs={folders.runs}", f"pairs={folders.pairs}",
        ], trains=True)  # fmt: skip
        *_, step = super().training(folders)
        tuned = [word for word in step.command if not word.startswith("base.source=")]
        more = [f"base.source={merged}", f"retriever.encoder={folders.runs}/pair-encoder/artifact"]
        yield step._replace(command=[*tuned, *more])

    def stages(self, folders: DemoFolders) -> Mapping[str, str]:
        return {"pair encoder": f"{folders.runs}/pair-encoder", self.title: self.folder(folders)}


DEMO = _Adpo("ADPO", "adpo", "train_adpo.py", "adpo/small.yaml")
