"""ADPO as a chain of jobs for sweeps: the base is tuned by captions and merged, then by preferences, then the steps
that all systems share.

Rows that differ in the preferences alone share what comes before. Importing this loads no torch.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from pydantic import Field

from idc.config import ConfigModel, missing
from idc.data.store import fingerprint, read_manifest
from idc.evaluation.config import EvaluateSection
from idc.sweep.chain import Step, TrialSteps
from idc.sweep.steps import EVALUATE_DERIVED, derived_errors, train_step, with_evaluation
from idc.systems.adpo.config import AdpoJob
from idc.training.hashing import content_or_id
from idc.vlm.config import BaseConfig, TuningJob, base_content

SEEDS, WATCHED = ("sft.train.seed", "adpo.train.seed"), "adpo.train"
DERIVED = {
    "sft": ("name", "runs", "pairs", "more_pairs"),
    "adpo": ("name", "runs", "pairs", "more_pairs", "base"),
    "evaluate": EVALUATE_DERIVED,
}
_TUNED = BaseConfig(source="sft")
"""In the place of the first stage's model."""


class _Captions(TuningJob):
    """The first stage, SFT on the trial's pairs."""

    name: str = "sft"
    pairs: str = ""

    def preflight(self) -> Iterator[str]:
        return iter(())


class _Preferences(AdpoJob):
    """The second stage, on the first one's model."""

    pairs: str = ""
    base: BaseConfig = _TUNED

    def preflight(self) -> Iterator[str]:
        return iter(())


class Trial(ConfigModel):
    """One trial of a sweep: the settings of both stages, and of the evaluation."""

    pairs: str = Field(min_length=1)
    """Folder of pairs: its training split is learned, its test split is scored."""
    until: Literal["zero_shot", "sft", "preferences"] = "preferences"
    """The last training whose model is scored; zero_shot: the base as it is."""
    sft: _Captions
    """The first stage, with its base."""
    adpo: _Preferences
    """The second stage; its retriever's encoder was trained on the same pairs."""
    evaluate: EvaluateSection = EvaluateSection()
    """Scores; the baselines are scored once for all trials, by a step of their own."""

    def errors(self) -> Iterator[str]:
        # A default section counts as set, so that the base of the second stage is compared instead.
        yield from derived_errors(self, {**DERIVED, "adpo": tuple(name for name in DERIVED["adpo"] if name != "base")})
        if self.adpo.base != _TUNED:
            yield "adpo.base: the sweep sets it; remove it"

    def preflight(self) -> Iterator[str]:
        yield from missing(self.pairs, "pairs")
        if self.until == "preferences" and self.adpo.retriever is not None:
            yield from missing(self.adpo.retriever.encoder, "adpo.retriever.encoder")


def steps(trial: Trial, store: str) -> TrialSteps:
    """The chain of a trial.

    Raises:
        ValueError: pairs, the base model or the encoder cannot be read.
    """
    pairs = {"pairs": trial.pairs, "more_pairs": []}
    content = read_manifest(trial.pairs, kind="pairs").fingerprint
    of_base = base_content(trial.sft.base)
    base = trial.sft.base.model_dump(mode="json")
    if trial.until == "zero_shot":
        answers = {name: getattr(trial.sft, name).model_dump(mode="json") for name in ("prompt", "generation")}
        name = f"zeroshot-{fingerprint(*of_base, answers)[:12]}"
        work = [Step(name, "idc.systems:wrap_base_step", {"base": base, **answers})]
    else:
        work = [
            train_step(
                "sft", "idc.systems.sft.task:train", trial.sft, {**pairs, "base": base}, store, [content, *of_base]
            )
        ]
    if trial.until == "preferences":
        sft = work[-1].name
        merged = Step(f"merged-{fingerprint(sft)[:12]}", "idc.vlm.merging:merge_step",
                      {"artifact": f"{store}/{sft}/artifact"})  # fmt: skip
        inputs: dict[str, Any] = {
            **pairs,
            "base": {**base, "source": f"{store}/{merged.name}/merged", "revision": None},
        }
        depends = [content, merged.name, fingerprint(base["dtype"], base["attention"], base["max_pixels"])]
        if (retriever := trial.adpo.retriever) is not None:  # by content, not by where it is
            depends.append(content_or_id(retriever.encoder))
            inputs["retriever"] = retriever.model_dump(mode="json")
            depends.append(fingerprint(retriever.model_dump(mode="json", exclude={"encoder"})))
        work += [merged, train_step("adpo", "idc.systems.adpo.task:train", trial.adpo, inputs, store, depends)]
    return with_evaluation(
        work,
        pairs=trial.pairs,
        evaluate=trial.evaluate,
        max_tokens=trial.sft.generation.max_new_tokens,
        gpus=trial.sft.train.gpus_per_worker,
        store=store,
    )
