"""A node is lost during training and comes back, and the end of one is announced: fewer workers go on."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from idc.training.context import LocalContext
from tests.cluster.nodes import Nodes, nodes
from tests.invariants.harness import Run, largest_difference
from tests.training import toy

STEPS = 40
TRAIN: dict[str, Any] = {
    "steps": STEPS,
    "batch_size": 12,
    "num_workers": 2,
    "engine": "deepspeed",
    "zero_stage": 2,
    "checkpoint_every": 8,
    "log_every": 1,
    "seed": 3,
    "tracking": {"enabled": False},
}
DONE_S = 400.0


class Disturbed:
    """A run on the nodes 1 and 2."""

    def __init__(self, cluster: Nodes, folder: Path, gates: list[int], pace: float = 0.0, **train: Any):
        self.cluster = cluster
        self.folder = folder / "run"
        self.notes = folder / "notes"
        self.notes.mkdir()
        self.output = folder / "output"
        self.train = {**TRAIN, **train}
        payload = {"train": self.train, "held": {"folder": str(self.notes), "gates": gates, "pace": pace}}
        runs = [{"entry": "tests.training.toy:entry", "folder": str(self.folder), "payload": payload}]
        arguments = ["-m", "tests.cluster.drive", cluster.address, json.dumps(runs)]
        self.process = cluster.python(arguments, self.output)

    def steps(self, rank: int = 0) -> list[dict[str, Any]]:
        """The steps that were begun, of all restarts: time, step, world."""
        path = self.notes / f"steps-{rank}.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def wait(self, done: Callable[[], bool], seconds: float = DONE_S) -> None:
        """Wait until something is seen, as long as the run goes on."""
        end = time.monotonic() + seconds
        while not done():
            assert self.process.poll() is None, self.text()
            assert time.monotonic() < end, self.text()
            time.sleep(0.1)

    def reach(self, step: int, world: int = 2, seconds: float = DONE_S) -> None:
        """Wait until all ranks are in a step, where it has a gate."""
        reached = {"step": step, "world": world}

        def there(rank: int) -> bool:
            return any({**line, **reached} == line for line in self.steps(rank)[-1:])

        self.wait(lambda: all(there(rank) for rank in range(world)), seconds)

    def open(self, step: int) -> None:
        (self.notes / f"open-{step}").touch()

    def end(self) -> None:
        """Wait for the end of the run, which must be good."""
        try:
            self.process.wait(DONE_S)
        except subprocess.TimeoutExpired:
            raise AssertionError(self.text()) from None
        assert self.process.returncode == 0, self.text()
        assert "PreemptionWatcher" not in self.text(), "a line of Ray's about its own actor"

    def text(self) -> str:
        return self.output.read_text(errors="replace")

    def worlds(self) -> list[int]:
        """The world sizes in turn."""
        sizes = [line["world"] for line in self.steps()]
        return [size for n, size in enumerate(sizes) if n == 0 or sizes[n - 1] != size]

    def check(self, lost: int) -> None:
        """At most so many steps were run again, and the run ended as an undisturbed one in one process."""
        reference = self.folder.parent / "undisturbed"
        alone = {**self.train, "num_workers": 1, "min_workers": None, "engine": "torch", "zero_stage": 0}
        toy.entry({"train": alone}, LocalContext(reference))
        run, undisturbed = Run(self.folder), Run(reference)
        assert [line["step"] for line in run.log] == list(range(1, STEPS + 1))
        assert self.lost_steps() <= lost, [(line["step"], line["world"]) for line in self.steps()]
        losses = max(abs(a - b) / b for a, b in zip(run.losses, undisturbed.losses, strict=True))
        assert max(losses, largest_difference(run.state, undisturbed.state)) < 2e-6

    def lost_steps(self) -> int:
        """Steps that were run again."""
        return len(self.steps()) - STEPS


@pytest.mark.slow
def test_fewer_workers_go_on_and_the_node_comes_back(tmp_path: Path) -> None:
    with nodes(2) as cluster:
        run = Disturbed(cluster, tmp_path, gates=[13, 30], min_workers=1)
        run.reach(13)
        cluster.kill(2)
        run.open(13)
        run.reach(30, world=1)
        cluster.add(2)
        run.wait(lambda: run.steps()[-1]["world"] == 2)
        run.open(30)
        run.end()
    assert run.worlds() == [2, 1, 2]
    run.check(lost=2 * run.train["checkpoint_every"])


@pytest.mark.slow
def test_an_announced_loss_costs_a_checkpoint_only(tmp_path: Path) -> None:
    with nodes(2, environment={"RAY_TRAIN_PREEMPTION_POLL_INTERVAL_S": "1"}) as cluster:
        gates = list(range(13, STEPS))
        run = Disturbed(cluster, tmp_path, gates=gates, pace=0.2, min_workers=1, checkpoint_every=STEPS)
        run.reach(13)
        cluster.drain(2, 90)
        for step in gates:  # the notice is asked for once a second: it may be heard several steps later
            run.reach(step)
            if list((run.folder / "checkpoints").glob("step_*/complete")):
                break
            run.open(step)
        cluster.kill(2)
        for step in gates:
            run.open(step)
        run.end()
    assert run.worlds() == [2, 1]
    run.check(lost=2)  # it went on from the checkpoint that the notice had caused
    assert run.lost_steps() > 0
