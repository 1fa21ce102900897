"""The record of one piece of work, and how its state follows from its sign of life."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

from idc import heartbeat

State = Literal["running", "stalled", "died", "failed", "stopped", "unfinished", "done"]
"""stalled: its process runs and its last progress is too long ago. died: the process is gone without an end. failed:
it ended with an error. stopped: it ended without one, before its end. unfinished: without a sign of life."""


@dataclass
class Work:
    """A training, a data set or a sweep.

    Attributes:
        unit: of ``done`` and ``total``: steps, chunks, trials.
        node, pid, ray_job: of its process; of a training, of rank 0.
        silent_s: seconds since its last progress.
        left_s: estimate; None if there is none.
        metrics: the last ones.
        reason: why it failed, died or stalled.
        steps: of a sweep, its trainings in progress.
    """

    kind: Literal["training", "data", "sweep"]
    name: str
    folder: str
    state: State = "unfinished"
    unit: str = "steps"
    done: int = 0
    total: int | None = None
    node: str | None = None
    pid: int | None = None
    ray_job: str | None = None
    started: float | None = None
    silent_s: float | None = None
    left_s: float | None = None
    core_hours: float = 0.0
    gpu_hours: float = 0.0
    metrics: dict[str, float] = field(default_factory=dict)
    reason: str | None = None

    def take_sign(self, sign: dict[str, Any] | None, now: float) -> None:
        """Fill in what the sign of life says; the state is running unless it says otherwise."""
        if sign is None:
            return
        self.node, self.pid, self.ray_job, self.started = sign["node"], sign["pid"], sign["ray_job"], sign["started"]
        hours = heartbeat.spent_s(sign, now) / 3600
        self.core_hours, self.gpu_hours = hours * sign["cores"], hours * sign["gpus"]
        if sign.get("failure"):
            self.state, self.reason = "failed", sign["failure"]
        elif sign.get("ended"):
            self.state = "stopped"
        elif reason := heartbeat.gone(sign, now):
            self.state, self.reason = "died", reason
        else:
            self.state = "running"

    def find_stalled(self, usual_s: float | None, times: float, now: float) -> None:
        """A running work without progress for ``times`` its usual interval, but at least a minute, is stalled; before
        the first progress ten minutes."""
        if self.state != "running" or self.silent_s is None:
            return
        limit = max(60.0, times * usual_s) if usual_s is not None else 600.0
        if self.silent_s > limit:
            self.state = "stalled"
            self.reason = f"no progress for {self.silent_s:.0f} s; the usual interval is " + (
                f"{usual_s:.0f} s" if usual_s is not None else "not known yet"
            )

    def to_dict(self, now: float, core_price: float, gpu_price: float) -> dict[str, Any]:
        """JSON-able; with the cost if there are prices, and the expected end as a time."""
        fields = {name: value for name, value in asdict(self).items() if value is not None}
        if self.left_s is not None:
            fields["ends"] = datetime.fromtimestamp(now + self.left_s, UTC).isoformat(timespec="seconds")
        if core_price or gpu_price:
            fields["cost"] = round(self.cost(core_price, gpu_price), 4)
        return fields

    def cost(self, core_price: float, gpu_price: float) -> float:
        return self.core_hours * core_price + self.gpu_hours * gpu_price
