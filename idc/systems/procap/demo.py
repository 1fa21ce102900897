"""ProCap in the demo: image tokenizer, procedures, two stages; procedures and imagined frames on the page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from idc.demo_system import CONFIGS, DemoPlace, DemoStep, DemoSystem, tokenizer_step

_PROCEDURES = f"{CONFIGS}/procap/procedures_demo.yaml"


class _ProCap(DemoSystem):
    title, run = "ProCap", "finetune"

    def training(self, place: DemoPlace) -> Iterator[DemoStep]:
        step, tokenizer = tokenizer_step(place)
        yield step
        procedures = f"{place.data}/procedures"
        yield DemoStep("build procedures", [
            "jobs/build_procedures.py", "--config", _PROCEDURES,
            f"build.pairs={place.pairs}", f"build.tokenizer={tokenizer}", f"procedures={procedures}",
        ])  # fmt: skip
        common = [f"runs={place.runs}", f"train.seed={place.seed}", f"procedures={procedures}"]
        first = self._first(place)
        yield DemoStep(f"ProCap stage 1{place.of}", [
            "jobs/pretrain_procap.py", "--config", f"{CONFIGS}/procap/pretrain_demo.yaml", *common, f"name={first}",
        ], trains=True)  # fmt: skip
        yield DemoStep(f"ProCap stage 2{place.of}", [
            "jobs/finetune_procap.py", "--config", f"{CONFIGS}/procap/finetune_demo.yaml", *common,
            f"name={self.run}-{place.seed}", f"pretrained={place.runs}/{first}/artifact",
        ], trains=True)  # fmt: skip

    def stages(self, place: DemoPlace) -> Mapping[str, str]:
        return {
            "tokenizer": f"{place.runs}/tokenizer",
            "ProCap stage 1": f"{place.runs}/{self._first(place)}",
            "ProCap stage 2": self.folder(place),
        }

    def report(self, place: DemoPlace) -> Sequence[str]:
        _, tokenizer = tokenizer_step(place)
        return f"procedures={place.data}/procedures", f"tokenizer={tokenizer}", f"imagine={self.artifact(place)}"

    def other_pairs(self, place: DemoPlace, pairs: str, name: str) -> tuple[Sequence[DemoStep], Mapping[str, str]]:
        _, tokenizer = tokenizer_step(place)
        step = DemoStep(f"build procedures of {name}", [
            "jobs/build_procedures.py", "--config", _PROCEDURES, f"build.pairs={pairs}", f"build.tokenizer={tokenizer}",
            f"build.vocabulary={place.data}/procedures", f"procedures={pairs}_procedures",
        ])  # fmt: skip
        return [step], {"procedures": f"{pairs}_procedures"}

    def _first(self, place: DemoPlace) -> str:
        """Name of stage 1's run."""
        return f"pretrain-{place.seed}"


DEMO = _ProCap()
