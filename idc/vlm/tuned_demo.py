"""A tuned vision-language model in the demo: a small base that learns to see on the demo's pairs, then the tuning."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from idc.demo_system import CONFIGS, DemoFolders, DemoStep, DemoSystem


def small_base_step(folders: DemoFolders) -> tuple[DemoStep, str]:
    """The training of the small vision-language base, for every system that tunes it (one for all seeds), and the
    folder of its run."""
    step = DemoStep("make a small vision-language base", [
        "jobs/pretrain_vlm.py", "--config", f"{CONFIGS}/vlm/pretrain_small.yaml", f"runs={folders.runs}",
        f"pairs={folders.pairs}", "name=vlm-base",
    ], trains=True)  # fmt: skip
    return step, f"{folders.runs}/vlm-base"


class TunedDemo(DemoSystem):
    """A tuning of the small base.

    Args:
        title, run: as of :class:`idc.demo_system.DemoSystem`.
        job: of the tuning, in ``jobs/``.
        config: its settings, in ``jobs/configs/``.
    """

    def __init__(self, title: str, run: str, job: str, config: str) -> None:
        self.title, self.run, self._job, self._config = title, run, job, config

    def training(self, folders: DemoFolders) -> Iterator[DemoStep]:
        step, base = small_base_step(folders)
        yield step
        yield DemoStep(f"{self.title}{folders.of}", [
            f"jobs/{self._job}", "--config", f"{CONFIGS}/{self._config}", f"runs={folders.runs}",
            f"train.seed={folders.seed}", f"pairs={folders.pairs}", f"name={self.run}-{folders.seed}",
            f"base.source={base}/artifact",
        ], trains=True)  # fmt: skip

    def stages(self, folders: DemoFolders) -> Mapping[str, str]:
        return {"small vision-language base": small_base_step(folders)[1], self.title: self.folder(folders)}
