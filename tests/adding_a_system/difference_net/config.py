"""Settings of DifferenceNet."""

from __future__ import annotations

from pydantic import Field

from idc.config import ConfigModel
from idc.training.config import TrainConfig


class DifferenceNetJob(ConfigModel):
    """Train DifferenceNet on a folder of pairs."""

    name: str = "difference-net"
    runs: str = "runs"
    pairs: str = ""
    """Folder of pairs."""
    more_pairs: tuple[str, ...] = ()
    """Not used; sweeps give it to every system."""
    side: int = Field(16, ge=8, multiple_of=4)
    """Side of the difference image, in pixels."""
    train: TrainConfig = TrainConfig(steps=200, batch_size=32)
    """The training loop."""
