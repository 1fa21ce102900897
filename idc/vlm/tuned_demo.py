"""A tuned vision-language model in the demo: the tuning of the small base that comes with the program."""

from __future__ import annotations

from collections.abc import Iterator

from idc.demo.system import CONFIGS, DemoFolders, DemoStep, DemoSystem


class TunedDemo(DemoSystem):
    """A tuning of the small base.

    Args:
        title, run: as of :class:`idc.demo.system.DemoSystem`.
        job: of the tuning, in ``jobs/``.
        config: its settings, in ``jobs/configs/``, the base among them.
    """

    def __init__(self, title: str, run: str, job: str, config: str) -> None:
        self.title, self.run, self._job, self._config = title, run, job, config

    def training(self, folders: DemoFolders) -> Iterator[DemoStep]:
        yield DemoStep(f"{self.title}{folders.of}", [
            f"jobs/{self._job}", "--config", f"{CONFIGS}/{self._config}", f"runs={folders.runs}",
            f"train.seed={folders.seed}", f"pairs={folders.pairs}", f"name={self.run}-{folders.seed}",
        ], trains=True)  # fmt: skip
