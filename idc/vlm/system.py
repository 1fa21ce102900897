"""What every system that tunes a vision-language model shares: the task, training entry, artifact, loading.

A system subclasses :class:`TunedSystem` and overrides what differs (modules next to the base, loss, samples, card), or
uses it unchanged. ``task.py`` names the instance, and its :meth:`~TunedSystem.train` as the entry of the job;
``captioner.py`` loads with :meth:`~TunedSystem.load`. The settings are a :class:`idc.vlm.config.TuningJob`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from idc.captioning.contract import Speed
from idc.training.artifact import Artifact, read_artifact
from idc.training.caption_validation import Captioned, metric_names_of, score_captions
from idc.training.context import Context
from idc.training.data import Loaders
from idc.training.loop import fit
from idc.training.task import SAMPLES, Batch, Task
from idc.util import logs
from idc.vlm import samples
from idc.vlm.base import find_base, load_model
from idc.vlm.batch import encode_images
from idc.vlm.captioner import VlmCaptioner, dtype_of
from idc.vlm.chat import Chat
from idc.vlm.config import GenerateConfig, TuneConfig, TuningJob
from idc.vlm.family import Family
from idc.vlm.generate import generate
from idc.vlm.logps import token_log_probabilities
from idc.vlm.samples import DialogueSamples
from idc.vlm.tuning import find_tuned, groups, load_found, prepare, write_tuned


class SftTask(Task):
    """Cross-entropy of the answers' tokens, each answer token of a sample counting the same, each sample the same.

    A system with a module of its own between tower and language model overrides :meth:`encode` and
    :meth:`param_groups`; the module is an attribute with another name than ``model``, the transformers model, which is
    prepared here."""

    def __init__(self, model: Any, family: Family, tune: TuneConfig, generation: GenerateConfig):
        super().__init__()
        prepare(model, family, tune)
        self.model, self.family, self.tune, self.generation = model, family, tune, generation
        self.chat = Chat(family)

    def encode(self, batch: Batch) -> Any:
        """Features of a batch's images, in the form of :meth:`idc.vlm.family.Family.encode`."""
        return encode_images(self.model, batch, self.family)

    def token_losses(self, batch: Batch, encoded: Any) -> tuple[Tensor, Tensor]:
        """Losses of the K learned tokens of a batch (K,), and the sample of each (K,), from its images' features."""
        logs, rows = token_log_probabilities(self.model, batch, encoded, self.family)
        return -logs, rows

    def training_step(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor | float]]:
        losses_K, rows_K = self.token_losses(batch, self.encode(batch))
        return sample_losses(losses_K, rows_K, batch[SAMPLES]).mean(), {}

    def caption(self, batch: Batch) -> list[str]:
        return self._answers(batch, self.encode(batch))

    def _answers(self, batch: Batch, encoded: Any) -> list[str]:
        pixels = {key: batch[key] for key in self.family.pixel_keys if key in batch}
        answers = generate(self.model, {**batch["prompt"], **pixels}, encoded, self.family, self.generation)
        return [self.chat.decode(answer[0].ids) for answer in answers]

    def param_groups(self) -> list[dict[str, Any]]:
        return groups(self.model, self.family, self.tune)

    def base_parts(self) -> list[nn.Module]:
        return [self.model]

    def checkpointed_parts(self) -> list[nn.Module]:
        return [self.model]

    def metric_names(self, validation: DialogueSamples) -> set[str]:
        return {"loss"} | metric_names_of(validation.truths())

    @torch.no_grad()
    def validate(self, loader: Iterable[Batch], context: Context) -> dict[str, float]:
        """``loss`` as in training; scores of the generated answers
        (:func:`idc.training.caption_validation.score_captions`)."""
        mine: list[Captioned] = []
        sums = torch.zeros(2, dtype=torch.float64)  # samples, their loss; float32 rounds counts above 2**24
        for batch in loader:
            encoded = self.encode(batch)
            each = sample_losses(*self.token_losses(batch, encoded), batch[SAMPLES])
            sums += torch.tensor([batch[SAMPLES], float(each.sum())], dtype=torch.float64)
            mine += zip(batch["name"], self._answers(batch, encoded), batch["references"], batch["scene"], strict=True)
        samples, loss = sum(context.all_gather_object(sums)).tolist()
        return {"loss": loss / samples, **score_captions(mine, context)}


def sample_losses(losses: Tensor, rows: Tensor, samples: int) -> Tensor:
    """The mean over each sample's tokens (B,), of losses (K,) of the samples ``rows`` (K,)."""
    total = losses.new_zeros(samples).index_add(0, rows, losses)
    return total / losses.new_zeros(samples).index_add(0, rows, torch.ones_like(losses))


JobT = TypeVar("JobT", bound=TuningJob)

_UNMERGEABLE = (
    "the artifact will have {} next to the language model, for which a hub folder has no place: it captions and serves "
    "here, but jobs/merge_vlm.py cannot make a folder of it for transformers and vLLM"
)


class LoadedParts(NamedTuple, Generic[JobT]):
    """The parts of a loaded artifact's captioner: the settings that it was trained with, the transformers model in
    evaluation mode with adapters merged, the system's own modules, and ``path`` and ``trained_on`` of the captioner."""

    job: JobT
    model: Any
    family: Family
    modules: dict[str, nn.Module]
    options: dict[str, Any]


class TunedSystem(Generic[JobT]):
    """A system that tunes a vision-language model; ``name`` of its folder in ``idc/systems``."""

    def __init__(self, name: str, job: type[JobT]) -> None:
        self.name, self.job = name, job

    # -- what a system overrides ---------------------------------------------------------------------------------------

    def own_modules(self, job: JobT, family: Family) -> dict[str, nn.Module]:
        """New modules next to the base model, by their attribute names in the task. The base's weights are not loaded
        yet; a base that does not fit is a ValueError."""
        return {}

    def training_modules(self, job: JobT) -> dict[str, nn.Module]:
        """Modules that only the training needs, by their attribute names in the task: part of the checkpoints and not
        of the artifact."""
        return {}

    def task(self, job: JobT, model: Any, family: Family, modules: Mapping[str, nn.Module]) -> SftTask:
        """The task; ``modules`` are the results of :meth:`own_modules` and :meth:`training_modules`, on the model's
        device."""
        return SftTask(model, family, job.tune, job.generation)

    def loaders(self, job: JobT, family: Family, context: Context) -> Loaders:
        return samples.dialogue_loaders(job, family, context)

    def before_training(self, job: JobT, task: SftTask, loaders: Loaders, context: Context) -> None:
        """Called on every rank before the loop, with the weights of the base, also in a run that is resumed."""

    def exported(self, job: JobT, state: Mapping[str, Tensor], context: Context) -> None:
        """Called on rank 0 when the artifact is written, for other results of a run; ``state`` has all stored weights
        by the task's names."""

    def extras(self, job: JobT) -> Mapping[str, Path | str]:
        """Folders to copy into the artifact: name -> folder. An artifact with any is not merged into a hub folder."""
        return {}

    def trained_on(self, job: JobT) -> str:
        """The end of "This model has only seen ..."."""
        return samples.trained_on(job)

    def saved(self, job: JobT) -> JobT:
        """The job as the artifact records it."""
        return job

    def card(self, job: JobT) -> str:
        """The end of the model card's sentence about the base."""
        return "after supervised tuning."

    # -- shared --------------------------------------------------------------------------------------------------------

    def train(self, payload: dict[str, Any], context: Context) -> dict[str, Any]:
        """Train on this rank; ``payload`` is a resolved job. Returns the result of :func:`idc.training.loop.fit`."""
        job = self.job.model_validate(payload)
        base = find_base(job.base)
        torch.manual_seed(job.train.seed)  # for the new modules, which may refuse the base before its weights are read
        modules = {name: module.to(context.device) for name, module in self.own_modules(job, base.family).items()}
        extras = self.extras(job)
        unmergeable = sorted([*modules, *extras])
        if unmergeable and context.rank == 0:
            logs.event("unmergeable", _UNMERGEABLE.format(", ".join(unmergeable)), modules=unmergeable)
        training = {name: module.to(context.device) for name, module in self.training_modules(job).items()}
        loaders = self.loaders(job, base.family, context)
        torch.manual_seed(job.train.seed)  # for the adapters: the same with and without new modules
        task = self.task(job, load_model(base.folder, job.base, context.device), base.family, modules | training)
        self.before_training(job, task, loaders, context)
        of_captioner = tuple(f"{name}." for name in ("model", *modules))

        def export(state: dict[str, Tensor], metrics: dict[str, float]) -> None:
            self.exported(job, state, context)
            own_modules = {"own_modules": unmergeable} if unmergeable else {}
            write_tuned(
                context.run_dir / "artifact",
                system=self.name,
                config={"job": self.saved(job).model_dump(mode="json"), **own_modules},
                state={name: tensor for name, tensor in state.items() if name.startswith(of_captioner)},
                model=task.model,
                base=base,
                metrics=metrics,
                card=f"{base.name} {self.card(job)}",
                trained_on=self.trained_on(job),
                extras=extras,
            )

        return fit(task, loaders, context, job.train, export=export)

    def load(self, path: Path | str, device: str, speed: Speed, base: str | None) -> LoadedParts[JobT]:
        """Load an artifact. ``speed`` "bf16" loads all weights in bfloat16; all others as the artifact's
        ``base.dtype``. ``base``: folder of the base model, if it is not where the artifact was made; one that is not on
        this machine or another model is a ValueError, as is a damaged artifact."""
        artifact: Artifact = read_artifact(path, system=self.name)
        job = artifact.settings(self.job)
        config = dtype_of(job.base, speed)
        folder, family = find_tuned(artifact, config, base)
        modules = self.own_modules(job, family)
        model = load_found(artifact, folder, family, config, job.tune, device, modules)
        for module in modules.values():
            module.to(device=device, dtype=model.dtype).eval()
        return LoadedParts(job, model, family, modules, {"path": artifact.path, "trained_on": artifact.trained_on})

    def captioner(
        self, path: Path | str, device: str = "cpu", speed: Speed = "auto", base: str | None = None
    ) -> VlmCaptioner:
        """The captioner of an artifact without modules of its own; arguments and errors as of :meth:`load`."""
        job, model, family, _, options = self.load(path, device, speed, base)
        return VlmCaptioner(model, family, job.prompt, job.generation, **options)
