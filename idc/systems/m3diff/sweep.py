"""A trial of M3Diff in a sweep: one training on a mixture, or none, then the question of the scored data set,
then the steps that all systems share.

Rows that differ in the scored data set alone share their training. Importing this loads no torch.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field

from idc.data.store import fingerprint, read_manifest
from idc.evaluation.judge import JudgeSection
from idc.sweep.chain import Step, TrialConfig, TrialSection, TrialSteps
from idc.sweep.steps import WRAP_BASE, train_step, with_evaluation
from idc.systems.m3diff.config import M3DiffJob
from idc.systems.m3diff.mixture import check_sets, prompt_of_dataset
from idc.util.atomic import write_text
from idc.vlm.config import GenerateConfig, PromptConfig, base_content

if TYPE_CHECKING:
    from idc.data.pipeline import Runner


class _Train(TrialSection, M3DiffJob):
    """The training: without `mixture` on the training split of the scored pairs."""

    SET_OUTSIDE = (*TrialSection.SET_OUTSIDE, "prompt")


class Trial(TrialConfig):
    """One trial of a sweep: the settings of the training, and of its evaluation on one data set."""

    TRAININGS, SEARCHED = ("m3diff",), "m3diff"

    ask: str | None = None
    """Name of a data set whose question is asked about these pairs: of a set of the mixture, or of table 9. Default:
    the general question of SFT."""
    max_new_tokens: int | None = Field(None, ge=1)
    """Longest caption of these pairs in tokens; OmniDiff's have 60 words. Default: that of the training."""
    zero_shot: bool = False
    """Score the base model as it is; nothing is trained, and the settings of the training but its base are not used."""
    m3diff: _Train
    """The training, with its base and its mixture. `mdp=null` trains without the module."""
    judge: JudgeSection | None = None
    """A language model that judges the captions, for columns with the metric `judge`."""

    @property
    def question(self) -> PromptConfig:
        """The question about the scored pairs."""
        return PromptConfig() if self.ask is None else prompt_of_dataset(self.m3diff.mixture, self.ask)

    @property
    def generation(self) -> GenerateConfig:
        """How the captions of the scored pairs are generated."""
        configured = self.m3diff.generation
        return configured.model_copy(update={"max_new_tokens": self.max_new_tokens or configured.max_new_tokens})

    def errors(self) -> Iterator[str]:
        yield from super().errors()
        try:
            _ = self.question
        except ValueError as error:
            yield str(error)

    def preflight(self) -> Iterator[str]:
        yield from super().preflight()
        if self.m3diff.mixture is not None and not self.zero_shot:
            yield from (f"m3diff.mixture.{fault}" for fault in self.m3diff.mixture.preflight())

    def steps(self, store: str) -> TrialSteps:
        base, job = self.m3diff.base, self.m3diff
        of_base = base_content(base)
        answers = {
            "prompt": self.question.model_dump(mode="json"), "generation": self.generation.model_dump(mode="json"),
        }  # fmt: skip
        if self.zero_shot:
            payload = {"base": base.model_dump(mode="json"), **answers}
            work = [Step(f"zeroshot-{fingerprint(*of_base, answers)[:12]}", WRAP_BASE, payload)]
        else:
            training = _training(self, of_base, store)
            asked = {**answers, "artifact": f"{store}/{training.name}/artifact"}
            name = f"asked-{fingerprint(training.name, answers)[:12]}"
            work = [training, Step(name, f"{__name__}:ask_step", asked)]
        longest, gpus = self.generation.max_new_tokens, job.train.gpus_per_worker
        return with_evaluation(self, work, store, max_tokens=longest, gpus=gpus, judge=self.judge)


def _training(trial: Trial, of_base: list[str], store: str) -> Step:
    """The training; a mixture counts by its sets' contents and questions, not by their folders."""
    job = trial.m3diff
    derived: dict[str, Any] = {"base": job.base.model_dump(mode="json"), "mixture": None}
    if job.mixture is None:
        derived |= {"pairs": trial.pairs, "more_pairs": [], "prompt": trial.question.model_dump(mode="json")}
        content = [read_manifest(trial.pairs, kind="pairs").fingerprint, fingerprint(derived["prompt"])]
    else:
        derived |= {"pairs": "", "more_pairs": [], "mixture": job.mixture.model_dump(mode="json")}
        used = job.mixture.used
        asked = {
            name: [job.mixture.prompt_of(name).model_dump(mode="json"), job.mixture.captions_of(name)] for name in used
        }
        content = [*check_sets(job.mixture), fingerprint(asked, job.mixture.splits, job.mixture.validated)]
    return train_step("m3diff", job, derived, store, [*content, *of_base])


def ask_step(payload: dict[str, Any], folder: str, run: Runner) -> dict[str, Any]:
    """The entry of a step: ``artifact`` with another ``prompt`` and ``generation``, in ``folder``/artifact; all other
    files are links."""
    out = Path(folder) / "artifact"
    shutil.rmtree(out, ignore_errors=True)  # of a step that was killed
    shutil.copytree(payload["artifact"], out, copy_function=_link)
    record = json.loads((out / "config.json").read_text(encoding="utf-8"))
    record["config"]["job"] |= {"prompt": payload["prompt"], "generation": payload["generation"]}
    write_text(out / "config.json", json.dumps(record, indent=2) + "\n")  # replaces the link
    return {"question": payload["prompt"]["text"]}


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # a file system without hard links
        shutil.copy2(source, target)
