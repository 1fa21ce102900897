"""The part of a system in the demo: its steps, by the names of their jobs. The order of all steps is in ``demo.py``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

CONFIGS = "jobs/configs"
TABLETOP = "demo"
"""Preset of the pairs of most systems."""


class DemoStep(NamedTuple):
    """A command of the demo.

    Attributes:
        title: shown on the terminal; different for each step.
        command: script and arguments.
        queue: steps of the two queues run at the same time, each queue in order and on half of the cores.
        trains: whether it is a training, which is told its share of the cores.
        first: whether it runs before the queues, alone on all cores. It may need only the pairs and other such steps.
    """

    title: str
    command: list[str]
    queue: Literal[1, 2] | None = None
    trains: bool = False
    first: bool = False


class DemoFolders(NamedTuple):
    """Folders of a demo, for one seed.

    Attributes:
        data: folder under data/ of everything that is made of the pairs.
        pairs: folder of the pairs.
        runs: folder under runs/; of every training, its setting ``runs``.
        seed: of the trainings.
        of: end of the titles of this seed's steps: " (seed 1)", empty for a single seed.
    """

    data: str
    pairs: str
    runs: str
    seed: int
    of: str


class DemoSystem(ABC):
    """A system in the demo.

    Attributes:
        title: its name on the terminal and on the pages.
        run: first part of the names of its captioners' runs; the seed follows: ``runs/FOLDER/RUN-SEED/artifact``.
        rendering: preset in ``jobs/configs/render`` of its pairs. Systems of one demo have the same.
    """

    title: str
    run: str
    rendering: str = TABLETOP

    @abstractmethod
    def training(self, folders: DemoFolders) -> Iterable[DemoStep]:
        """The steps from the pairs to the artifact of a seed, in order. A command that several seeds or systems have is
        run once; one of several systems before all others, so it may need only the pairs and such commands."""

    def stages(self, folders: DemoFolders) -> Mapping[str, str]:
        """Heading -> folder of the run, for the configs and times of its trainings."""
        return {self.title: self.folder(folders)}

    def report(self, folders: DemoFolders) -> Sequence[str]:
        """Further settings of the demo's page (``jobs/evaluate.py evaluations=``); ``folders`` is of the first seed."""
        return ()

    def further(self, folders: DemoFolders) -> Iterable[DemoStep]:
        """Steps after a seed's evaluation, for what only this system has."""
        return ()

    def figures(self, folders: DemoFolders) -> Mapping[str, float]:
        """Further figures for the closing lines, name -> share, once all steps are done; ``folders`` is of the first
        seed."""
        return {}

    def other_pairs(self, folders: DemoFolders, pairs: str, name: str) -> tuple[Sequence[DemoStep], Mapping[str, str]]:
        """For the system's captions of other pairs, a folder called ``name``, on the page: steps, and fields of
        :class:`idc.report.config.RealSource`."""
        return (), {}

    def folder(self, folders: DemoFolders) -> str:
        """The run of a seed whose artifact captions."""
        return f"{folders.runs}/{self.run}-{folders.seed}"

    def artifact(self, folders: DemoFolders) -> str:
        """The captioner of a seed."""
        return f"{self.folder(folders)}/artifact"


def tokenizer_step(folders: DemoFolders) -> tuple[DemoStep, str]:
    """The training of the image tokenizer, for every system that reads its tokens, and its artifact."""
    step = DemoStep("train the image tokenizer", [
        "jobs/train_tokenizer.py", "--config", f"{CONFIGS}/vision/tokenizer_demo.yaml",
        f"runs={folders.runs}", f"pairs={folders.pairs}",
    ], trains=True, first=True)  # fmt: skip
    return step, f"{folders.runs}/tokenizer/artifact"
