"""How far something is: a bar on a terminal, elsewhere an event of the log every few seconds."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

from idc.util import logs
from idc.util.units import metric_text

Item = TypeVar("Item")


class Progress:
    """Shows how much of ``total`` is done; a context manager that closes the bar.

    Args:
        name: what is done; the start of every line.
        unit: of the total, e.g. step, chunk.
        done: units that were done before.
        every: seconds between two lines of a log; the last unit always has one.
        show: false shows nothing.
    """

    def __init__(
        self, total: int, name: str = "", unit: str = "step", *, done: int = 0, every: float = 5.0, show: bool = True
    ):
        self.total, self.name, self.unit, self.every, self.show = total, name, unit, every, show
        self.done = self.started_at = done
        self.start = self.shown = time.monotonic()
        self.bar: Any = None
        if show and sys.stderr.isatty() and not logs.as_json():
            from tqdm import tqdm

            self.bar = tqdm(total=total, initial=done, desc=name or None, unit=unit, dynamic_ncols=True)

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def update(self, done: int, **values: float) -> None:
        """``done`` units are done in all; ``values`` are shown with them, NaN is not."""
        self.done = done
        if not self.show:
            return
        finite = {name: value for name, value in values.items() if math.isfinite(value)}
        if self.bar is not None:
            self.bar.update(done - self.bar.n)
            if finite:
                self.bar.set_postfix({name: metric_text(name, value) for name, value in finite.items()}, refresh=False)
            return
        now = time.monotonic()
        if now - self.shown < self.every and done < self.total:
            return
        self.shown = now
        rate = (now - self.start) / max(1, done - self.started_at)
        left = round(rate * (self.total - done))
        head = f"{self.name}: " if self.name else ""
        figures = "".join(f"{name} {metric_text(name, value)}  " for name, value in finite.items())
        logs.event(
            "progress",
            f"{head}{self.unit} {done}/{self.total}  {figures}{rate:.3g} s/{self.unit}  "
            f"{left // 60}:{left % 60:02d} left",
            **({"name": self.name} if self.name else {}),
            unit=self.unit,
            done=done,
            total=self.total,
            seconds_per_unit=round(rate, 6),
            seconds_left=left,
            **finite,
        )

    def close(self) -> None:
        if self.bar is not None:
            self.bar.close()


def tracked(items: Iterable[Item], total: int, name: str, unit: str, *, show: bool = True) -> Iterator[Item]:
    """The items, and how many of them are done."""
    with Progress(total, name, unit, show=show) as progress:
        for number, item in enumerate(items, start=1):
            yield item
            progress.update(number)
