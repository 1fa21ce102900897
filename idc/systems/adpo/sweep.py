"""A trial of ADPO in a sweep: the base is tuned by captions and merged, then by preferences, then the steps that all
systems share.

Rows that differ in the preferences alone share what comes before. Importing this loads no torch.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from idc.config import missing
from idc.data.store import fingerprint, read_manifest
from idc.sweep.chain import Step, TrialConfig, TrialSection, TrialSteps
from idc.sweep.steps import WRAP_BASE, train_step, with_evaluation
from idc.systems.adpo.config import AdpoJob
from idc.training.config import RunName
from idc.training.hashing import content_or_id
from idc.vlm.config import BaseConfig, TuningJob, base_content

_TUNED = BaseConfig(source="sft")
"""In the place of the first stage's model."""


class _Captions(TrialSection, TuningJob):
    """The first stage, SFT on the trial's pairs."""

    ENTRY = "idc.systems.sft.task:train"
    name: RunName = "sft"
    pairs: str = ""


class _Preferences(TrialSection, AdpoJob):
    """The second stage, on the first one's model."""

    SET_OUTSIDE = (*TrialSection.SET_OUTSIDE, "base")

    pairs: str = ""
    base: BaseConfig = _TUNED


class Trial(TrialConfig):
    """One trial of a sweep: the settings of both stages, and of the evaluation."""

    TRAININGS, SEARCHED = ("sft", "adpo"), "adpo"

    until: Literal["zero_shot", "sft", "preferences"] = "preferences"
    """The last training whose model is scored; zero_shot: the base as it is."""
    sft: _Captions
    """The first stage, with its base."""
    adpo: _Preferences
    """The second stage; its retriever's encoder was trained on the same pairs."""

    def errors(self) -> Iterator[str]:
        # The default section counts as set, so it is compared.
        yield from (line for line in super().errors() if not line.startswith("adpo.base:"))
        if self.adpo.base != _TUNED:
            yield "adpo.base: the sweep sets it; remove it"

    def preflight(self) -> Iterator[str]:
        yield from super().preflight()
        if self.until == "preferences" and self.adpo.retriever is not None:
            yield from missing(self.adpo.retriever.encoder, "adpo.retriever.encoder")

    def steps(self, store: str) -> TrialSteps:
        pairs = {"pairs": self.pairs, "more_pairs": []}
        content = read_manifest(self.pairs, kind="pairs").fingerprint
        of_base = base_content(self.sft.base)
        base = self.sft.base.model_dump(mode="json")
        if self.until == "zero_shot":
            answers = {name: getattr(self.sft, name).model_dump(mode="json") for name in ("prompt", "generation")}
            name = f"zeroshot-{fingerprint(*of_base, answers)[:12]}"
            work = [Step(name, WRAP_BASE, {"base": base, **answers})]
        else:
            work = [train_step("sft", self.sft, {**pairs, "base": base}, store, [content, *of_base])]
        if self.until == "preferences":
            sft = work[-1].name
            artifact = {"artifact": f"{store}/{sft}/artifact"}
            merged = Step(f"merged-{fingerprint(sft)[:12]}", "idc.vlm.merging:merge_step", artifact)
            tuned = {**base, "source": f"{store}/{merged.name}/merged", "revision": None}
            inputs: dict[str, Any] = {**pairs, "base": tuned}
            depends = [content, merged.name, fingerprint(base["dtype"], base["attention"], base["max_pixels"])]
            if (retriever := self.adpo.retriever) is not None:  # by content, not by where it is
                depends.append(content_or_id(retriever.encoder))
                inputs["retriever"] = retriever.model_dump(mode="json")
                depends.append(fingerprint(retriever.model_dump(mode="json", exclude={"encoder"})))
            work += [merged, train_step("adpo", self.adpo, inputs, store, depends)]
        longest, gpus = self.sft.generation.max_new_tokens, self.sft.train.gpus_per_worker
        return with_evaluation(self, work, store, max_tokens=longest, gpus=gpus)
