"""Settings of DifferenceNet."""

from __future__ import annotations

from pydantic import Field

from idc.training.config import RunName, TrainConfig, TrainingJob


class DifferenceNetJob(TrainingJob):
    """Train DifferenceNet on a folder of pairs."""

    ENTRY = "idc.systems.difference_net.task:train"
    name: RunName = "difference-net"
    pairs: str = ""
    """Folder of pairs."""
    more_pairs: tuple[str, ...] = ()
    """Not used; sweeps give it to every system."""
    side: int = Field(16, ge=8, multiple_of=4)
    """Side of the difference image, in pixels."""
    train: TrainConfig = TrainConfig(steps=200, batch_size=32)
    """The training loop."""
