"""The part of a system in the demo: the list of its jobs. What all systems share, and the order, is in ``run.py``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

CONFIGS = "jobs/configs"
TABLETOP = "demo"
"""Preset of the pairs of most systems."""


class DemoStep(NamedTuple):
    """A command of the demo: script and arguments. The titles differ. Steps of the two queues run at the same time,
    each queue in order and on half of the cores; a training (``trains``) is told its share. ``first``: see
    :class:`Stage`."""

    title: str
    command: list[str]
    queue: Literal[1, 2] | None = None
    trains: bool = False
    first: bool = False


class DemoFolders(NamedTuple):
    """Folders of a demo, for one seed; each field may stand in braces in the texts of a :class:`Stage`.

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


@dataclass(frozen=True)
class Stage:
    """A job of a system. One that several systems have, word for word, is run once, before all others; one without
    ``{seed}`` is run once for all seeds.

    Attributes:
        title: shown on the terminal; of a training also its name in result.json, without "train the".
        job: name of the command.
        preset: its file below jobs/configs.
        run: of a training the name of its run, with ``{seed}`` if it is repeated with every seed.
        settings: its further settings.
        first: it runs before the queues, alone on all cores. It may need only the pairs and other such stages.
        captioner: its name on the terminal and on the pages, if what it trains is evaluated before the next stage.
    """

    title: str
    job: str
    preset: str = ""
    run: str = ""
    settings: tuple[str, ...] = ()
    first: bool = False
    captioner: str = ""

    def step(self, folders: DemoFolders) -> DemoStep:
        """The command of one seed."""
        config = ["--config", f"{CONFIGS}/{self.preset}"] if self.preset else []
        named = ["runs={runs}", f"name={self.run}"] if self.run else []
        seeded = ["train.seed={seed}"] if "{seed}" in self.run else []
        templates = [*named, *seeded, *self.settings]
        words = [template.format(**folders._asdict()) for template in templates]
        of = folders.of if any("{seed}" in template for template in templates) else ""
        command = [f"jobs/{self.job}.py", *config, *words]
        return DemoStep(self.title + of, command, trains=bool(self.run), first=self.first)

    def folder(self, folders: DemoFolders) -> str:
        """The run of a training of one seed."""
        return f"{folders.runs}/{self.run.format(seed=folders.seed)}"


def reward_stage(title: str, run: str, *settings: str) -> Stage:
    """The tuning by rewards of what a run trained, a captioner with a text decoder of its own."""
    artifact = f"artifact={{runs}}/{run}-{{seed}}/artifact"
    return Stage(
        f"{title}, rewards", "finetune_rewards", "rewards/demo.yaml", f"{run}-rewarded-{{seed}}",
        (artifact, "pairs={pairs}", *settings),
    )  # fmt: skip


@dataclass(frozen=True)
class DemoSystem:
    """A system in the demo.

    Attributes:
        title: its name on the terminal and on the pages.
        stages: from the pairs to the artifact, in order; the last one trains the captioner.
        rendering: preset in ``jobs/configs/render`` of its pairs. Systems of one demo have the same.
        further: stages after a seed's evaluation, for what only this system has.
        page: further settings of the demo's page (``jobs/evaluate.py evaluations=``).
        figures: further figures for the closing lines, name -> share, once all steps of the first seed are done.
    """

    title: str
    stages: tuple[Stage, ...]
    rendering: str = TABLETOP
    further: tuple[Stage, ...] = ()
    page: tuple[str, ...] = ()
    figures: Callable[[DemoFolders], Mapping[str, float]] = lambda folders: {}

    def runs(self, folders: DemoFolders) -> dict[str, str]:
        return {stage.title.removeprefix("train the "): stage.folder(folders) for stage in self.stages if stage.run}

    def captioners(self, folders: DemoFolders) -> dict[str, str]:
        """Name -> run of what is evaluated, the system's captioner first."""
        earlier = {stage.captioner: stage.folder(folders) for stage in self.stages if stage.captioner}
        return {self.title: self.folder(folders), **earlier}

    def folder(self, folders: DemoFolders) -> str:
        """The run of a seed whose artifact captions."""
        return self.stages[-1].folder(folders)

    def artifact(self, folders: DemoFolders) -> str:
        return f"{self.folder(folders)}/artifact"
