"""ProCap in the demo: image tokenizer, procedures, two stages; procedures on the page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from idc.demo.system import CONFIGS, DemoFolders, DemoStep, DemoSystem, tokenizer_step

_PROCEDURES = f"{CONFIGS}/procap/procedures_demo.yaml"


class _ProCap(DemoSystem):
    title, run = "ProCap", "finetune"

    def training(self, folders: DemoFolders) -> Iterator[DemoStep]:
        step, tokenizer = tokenizer_step(folders)
        yield step
        procedures = f"{folders.data}/procedures"
        yield DemoStep("build procedures", [
            "jobs/pretrain_procap.py", "only=procedures", "--config", _PROCEDURES,
            f"build.pairs={folders.pairs}", f"build.tokenizer={tokenizer}", f"procedures={procedures}",
        ], first=True)  # fmt: skip
        common = [f"runs={folders.runs}", f"train.seed={folders.seed}", f"procedures={procedures}"]
        first = self._first(folders)
        yield DemoStep(f"ProCap stage 1{folders.of}", [
            "jobs/pretrain_procap.py", "--config", f"{CONFIGS}/procap/pretrain_demo.yaml", *common, f"name={first}",
        ], trains=True, first=True)  # fmt: skip
        yield DemoStep(f"ProCap stage 2{folders.of}", [
            "jobs/finetune_procap.py", "--config", f"{CONFIGS}/procap/finetune_demo.yaml", *common,
            f"name={self.run}-{folders.seed}", f"pretrained={folders.runs}/{first}/artifact",
        ], trains=True)  # fmt: skip

    def stages(self, folders: DemoFolders) -> Mapping[str, str]:
        return {
            "tokenizer": f"{folders.runs}/tokenizer",
            "ProCap stage 1": f"{folders.runs}/{self._first(folders)}",
            "ProCap stage 2": self.folder(folders),
        }

    def report(self, folders: DemoFolders) -> Sequence[str]:
        return (f"procedures={folders.data}/procedures",)

    def other_pairs(self, folders: DemoFolders, pairs: str, name: str) -> tuple[Sequence[DemoStep], Mapping[str, str]]:
        _, tokenizer = tokenizer_step(folders)
        step = DemoStep(f"build procedures of {name}", [
            "jobs/pretrain_procap.py", "only=procedures", "--config", _PROCEDURES,
            f"build.pairs={pairs}", f"build.tokenizer={tokenizer}", f"build.vocabulary={folders.data}/procedures",
            f"procedures={pairs}_procedures",
        ])  # fmt: skip
        return [step], {"procedures": f"{pairs}_procedures"}

    def _first(self, folders: DemoFolders) -> str:
        """Name of stage 1's run."""
        return f"pretrain-{folders.seed}"


DEMO = _ProCap()
