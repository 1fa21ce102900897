"""Settings of the descriptions of pairs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from idc.config import ConfigModel

NoiseKind = Literal["wrong_object", "wrong_attribute", "extra_object", "missing_detail"]
NOISE_KINDS: tuple[NoiseKind, ...] = ("wrong_object", "wrong_attribute", "extra_object", "missing_detail")


class OracleConfig(ConfigModel):
    """The describer of rendered pairs, which reads their scene graphs and disturbs a known share of what it writes."""

    others: int = Field(default=2, ge=1, le=11)
    """Unchanged objects that each description names next to the changed one, if the scene has as many."""
    noise: float = Field(default=0.0, ge=0, le=1)
    """Share of the objects named in a description that are disturbed, drawn for each object of each image on its own.
    With 3 objects in a description, 0.2 leaves about half of the descriptions true, 0.4 a fifth."""
    noise_kinds: tuple[NoiseKind, ...] = Field(default=NOISE_KINDS, min_length=1)
    """Kinds of noise to draw from, all equally likely: another object, a wrong attribute, an object that is not in the
    image, a missing attribute."""
    seed: int = Field(default=0, ge=0)
    """Seed of all draws."""

    def faults(self) -> Iterator[str]:
        if len(set(self.noise_kinds)) < len(self.noise_kinds):
            yield "noise_kinds names a kind twice"
