"""Settings of a search over a chain of jobs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

from pydantic import Field

from idc.config import ConfigModel


class Dimension(ConfigModel):
    """One searched setting: choices, or a range."""

    choice: tuple[Any, ...] = ()
    """Values to choose from."""
    low: float | None = None
    """Lower bound of a range."""
    high: float | None = None
    """Upper bound."""
    log: bool = False
    """Search the range on a logarithmic scale."""
    rest: tuple[str, ...] = ()
    """Settings that share 1 - value equally, e.g. the probabilities of the other masking schemes (ProCap, figure 7)."""

    def errors(self) -> Iterator[str]:
        ranged = self.low is not None and self.high is not None
        if bool(self.choice) == ranged or (self.low is None) != (self.high is None):
            yield "choice, low, high: give either choice, or low and high"
        elif ranged and not self.low < self.high:  # type: ignore[operator]
            yield f"low: {self.low} is not below high = {self.high}"
        if self.log and not (self.low or 0) > 0:
            yield f"log: needs low above 0, got {self.low}"

    def ends(self) -> tuple[Any, ...]:
        """The values that are validated: all choices, or both bounds."""
        return self.choice or (self.low, self.high)


class SearchConfig(ConfigModel):
    """A search by Optuna (tree-structured Parzen estimator) instead of a table, for the best validation metric of the
    chain's last training."""

    space: dict[str, Dimension] = Field(min_length=1)
    """Dotted setting -> its choices or range."""
    num_trials: int = Field(16, ge=1)
    """Number of trials."""
    scheduler: Literal["asha", "none"] = "asha"
    """asha: at each rung (grace, 3 x grace, 9 x grace, ... steps) only the best third of the trials continues."""
    grace: int = Field(100, ge=1)
    """Minimum steps of the last training for every trial."""
    metric: str = "CIDEr"
    """Validation metric of the last training, the highest is best. The test split is never used for the search."""
    seed: int = Field(0, ge=0)
    """Seed of the search."""

    def errors(self) -> Iterator[str]:
        for key, dimension in self.space.items():
            yield from (f"space.{key}.{fault}" for fault in dimension.errors())

    def expand(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Dotted settings of a trial with these values of the searched ones, and the settings of `rest` derived."""
        settings = dict(values)
        for key, dimension in self.space.items():
            if key in values and dimension.rest:
                settings |= dict.fromkeys(dimension.rest, (1.0 - values[key]) / len(dimension.rest))
        return settings
