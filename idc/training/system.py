"""The one way to train a system of our own: its job, what it builds of it, and the artifact.

A system names an instance in its ``task.py``, and its :meth:`System.train` as the entry of the job. Those that tune a
vision-language model share :class:`idc.vlm.system.TunedSystem`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from torch import Tensor

from idc.config import ConfigModel
from idc.training.artifact import write_artifact
from idc.training.context import Context
from idc.training.data import Collate, Dataset, EvalLoader, Loader, Loaders
from idc.training.loop import fit
from idc.training.task import Task

JobT = TypeVar("JobT", bound=ConfigModel)


@dataclass(frozen=True)
class Parts:
    """What a training is made of, on one rank.

    Attributes:
        task: with its initial weights, on the rank's device.
        validation: None where a training may do without.
        artifact: arguments of :func:`idc.training.artifact.write_artifact`; called on rank 0 at the end.
        weights: prefix of the names whose weights the artifact has, without it.
        limit: validation samples, at most.
        updates: of :class:`idc.training.data.Loader`.
    """

    task: Task
    training: Dataset
    validation: Dataset | None
    collate: Collate
    artifact: Callable[[], dict[str, Any]]
    weights: str = ""
    limit: int | None = None
    updates: int = 1


class System(Generic[JobT]):
    """A system, or a stage of one, that trains a model of its own.

    Args:
        name: of its folder in ``idc/systems``.
        job: its settings, with ``train``.
        build: makes the parts of a run, on every rank.
    """

    def __init__(self, name: str, job: type[JobT], build: Callable[[JobT, Context], Parts]) -> None:
        self.name, self.job, self.build = name, job, build

    def train(self, payload: dict[str, Any], context: Context) -> dict[str, Any]:
        """Train on this rank; ``payload`` is a resolved job. Returns what :func:`idc.training.loop.fit` returns."""
        job: Any = self.job.model_validate(payload)
        parts = self.build(job, context)
        rank, world_size = context.rank, context.world_size
        size = max(1, job.train.micro_batch_size // world_size)
        loaders = Loaders(
            Loader(parts.training, parts.collate, job.train, rank, world_size, parts.updates),
            None
            if parts.validation is None
            else EvalLoader(parts.validation, size, rank, world_size, parts.collate, parts.limit),
        )

        def export(state: dict[str, Tensor], metrics: dict[str, float]) -> None:
            names = [name for name in state if name.startswith(parts.weights)]
            weights = {name.removeprefix(parts.weights): state[name] for name in names}
            path, settings = context.run_dir / "artifact", parts.artifact()
            write_artifact(path, system=self.name, state_dict=weights, metrics=metrics, **settings)

        return fit(parts.task, loaders, context, job.train, export)
