"""Load tests with the load generator ``hey``, and a poller of a server's metrics."""

from __future__ import annotations

import csv
import io
import shutil
import subprocess
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
from prometheus_client.parser import text_string_to_metric_families
from pydantic import BaseModel

_EVERY_S = 3.0
"""Pause between two readings of a server's metrics. For each, Serve's controller collects its whole state, which takes
tens of milliseconds of CPU."""


class Load(BaseModel):
    """Result of one load-test run.

    Attributes:
        connections: concurrent requests.
        sent: number of requests sent.
        statuses: HTTP status -> number of answers.
        unanswered: requests without an answer: connection refused or broken, or timed out.
        seconds: from the first request to the last answer.
        p50_ms, p90_ms, p99_ms: latency percentiles of the answers with status 200; None if there are none.
        refused_p99_ms: the same of the answers with status 429 and 503.
        steady_per_second: answers with status 200 per second while all connections were in use: without the first
            requests of all connections, and without the end, when one connection after the other is done.
        steady_s: start and end of that time, in seconds since the first request.
    """

    connections: int
    sent: int
    statuses: dict[int, int]
    unanswered: int
    seconds: float
    p50_ms: float | None
    p90_ms: float | None
    p99_ms: float | None
    refused_p99_ms: float | None = None
    steady_per_second: float | None = None
    steady_s: tuple[float, float] | None = None

    @property
    def good_per_second(self) -> float:
        """Answers with status 200 per second."""
        return self.statuses.get(200, 0) / self.seconds

    @property
    def steady(self) -> float:
        """Answers per second in the steady state; of the whole run, if it was too short."""
        return self.good_per_second if self.steady_per_second is None else self.steady_per_second

    def busy(self, pairs: int = 1) -> tuple[float, float, float]:
        """Start and end of the steady state in seconds since the first request, and the pairs of good answers in it
        with ``pairs`` per request; of the whole run, if it was too short."""
        begin, end = self.steady_s or (0.0, self.seconds)
        return begin, end, pairs * self.steady * (end - begin)

    @property
    def failed(self) -> int:
        """Requests with no answer, or with a status other than 200, 429 and 503."""
        return self.unanswered + sum(count for status, count in self.statuses.items() if status not in (200, 429, 503))

    @property
    def refused(self) -> int:
        """Requests answered with 429 or 503."""
        return self.statuses.get(429, 0) + self.statuses.get(503, 0)

    def text(self) -> str:
        """One-line summary."""
        words = [f"{self.connections} connections: {self.good_per_second:.1f} answers/s"]
        if self.p50_ms is not None:
            words.append(f"p50 {self.p50_ms:.0f} ms, p99 {self.p99_ms:.0f} ms")
        words.append(", ".join(f"{count} x {status}" for status, count in sorted(self.statuses.items())))
        return "; ".join([*words, f"{self.unanswered} unanswered"])


def hey() -> str:
    """Path of the load generator.

    Raises:
        ValueError: it is not installed.
    """
    path = shutil.which("hey")
    if path is None:
        raise ValueError("the load generator `hey` is not installed: `apt-get install hey`")
    return path


def load_curve(
    url: str,
    body: Path,
    connections: int,
    requests: int,
    rate_each: float | None = None,
    headers: Mapping[str, str] | None = None,
) -> Load:
    """Send the same JSON body ``requests`` times over ``connections`` connections.

    Args:
        body: file with the request body.
        rate_each: most requests per second and connection; default: as fast as answers arrive.
    """
    requests = max(requests, connections)
    command = [hey(), "-n", str(requests), "-c", str(connections), "-t", "120", "-m", "POST", "-o", "csv"]
    command += ["-T", "application/json", "-D", str(body)]
    for name, value in (headers or {}).items():
        command += ["-H", f"{name}: {value}"]
    if rate_each is not None:
        command += ["-q", f"{rate_each:g}"]
    began = time.perf_counter()
    run = subprocess.run([*command, url], capture_output=True, text=True, check=True)
    wall = time.perf_counter() - began
    # hey gives every connection the same number of requests and leaves out the remainder.
    return parsed(run.stdout, connections, requests // connections * connections, wall)


def parsed(table: str, connections: int, sent: int, wall: float) -> Load:
    """Parse hey's CSV. Requests that were sent but are not listed there count as unanswered."""
    rows = list(csv.DictReader(io.StringIO(table)))
    seconds = [(int(row["status-code"]), float(row["response-time"]), float(row["offset"])) for row in rows]
    span = max((start + took for _, took, start in seconds), default=wall)
    good = [took * 1e3 for status, took, _ in seconds if status == 200]
    refused = [took * 1e3 for status, took, _ in seconds if status in (429, 503)]

    def share(values: list[float], percent: float) -> float | None:
        return round(float(np.percentile(values, percent)), 2) if values else None

    steady = _steady(seconds, connections)
    return Load(
        connections=connections,
        sent=sent,
        statuses=dict(Counter(status for status, _, _ in seconds)),
        unanswered=sent - len(rows),
        seconds=span,
        p50_ms=share(good, 50),
        p90_ms=share(good, 90),
        p99_ms=share(good, 99),
        refused_p99_ms=share(refused, 99),
        steady_per_second=None if steady is None else _good_between(seconds, *steady) / (steady[1] - steady[0]),
        steady_s=steady,
    )


def _steady(answers: list[tuple[int, float, float]], connections: int) -> tuple[float, float] | None:
    """From the first second request of a connection to the first of the last requests; None if there are too few.
    ``answers``: status, seconds taken, start."""
    starts = sorted(start for _, _, start in answers)
    return None if len(starts) < 4 * connections else (starts[connections], starts[-connections])


def _good_between(answers: list[tuple[int, float, float]], begin: float, end: float) -> int:
    return sum(status == 200 and begin < start + took <= end for status, took, start in answers)


def knee(levels: Sequence[Load]) -> Load:
    """The first level with at least 95 % of the highest rate of good answers."""
    most = max(level.good_per_second for level in levels)
    return next(level for level in levels if level.good_per_second >= 0.95 * most)


class Watch:
    """Polls a metric of a server inside a ``with`` block.

    Args:
        url: Prometheus endpoint.
        headers: headers of the requests.
        read: computes a number from the samples ``(name, labels, value)``.

    Attributes:
        series: (seconds since the start, number).
    """

    def __init__(
        self, url: str, headers: Mapping[str, str], read: Callable[[list[tuple[str, dict[str, str], float]]], float]
    ) -> None:
        self.url, self.read = url, read
        self._request = urllib.request.Request(url, headers=dict(headers))
        self.series: list[tuple[float, float]] = []
        self._began = time.monotonic()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def now(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._began

    def wait_for(self, wanted: Callable[[float], bool], timeout_s: float) -> float:
        """Wait for a reading that satisfies ``wanted``; returns its time.

        Raises:
            TimeoutError: no reading did within ``timeout_s``.
        """
        first, last = len(self.series), self.now() + timeout_s
        while self.now() < last:
            for when, value in self.series[first:]:
                if wanted(value):
                    return when
            self._done.wait(_EVERY_S / 2)
        raise TimeoutError(f"{self.url}: no expected reading in {timeout_s:.0f} s; last ones: {self.series[-3:]}")

    def next_reading(self) -> float:
        """Wait for the next reading and return it.

        Raises:
            TimeoutError: there was none within a minute.
        """
        self.wait_for(lambda _: True, 60.0)
        return self.series[-1][1]

    def changes(self) -> list[tuple[float, float]]:
        """The readings that differ from the one before."""
        pairs = zip([None, *self.series[:-1]], self.series, strict=True)
        return [(round(at, 1), value) for before, (at, value) in pairs if before is None or before[1] != value]

    def _watch(self) -> None:
        while not self._done.wait(_EVERY_S):
            try:
                with urllib.request.urlopen(self._request, timeout=10) as answer:
                    text = answer.read().decode()
            except OSError:
                continue  # the server is being replaced; read again later
            samples = [
                (sample.name, dict(sample.labels), sample.value)
                for family in text_string_to_metric_families(text)
                for sample in family.samples
            ]
            self.series.append((self.now(), self.read(samples)))


def plot(path: Path, levels: list[Load], series: list[tuple[float, float]]) -> None:
    """Plot latency over answers per second, and replicas over time."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    rates = [level.good_per_second for level in levels]
    left.plot(rates, [level.p50_ms for level in levels], "o-", label="median")
    left.plot(rates, [level.p99_ms for level in levels], "s--", label="99th percentile")
    for rate, level in zip(rates, levels, strict=True):
        left.annotate(str(level.connections), (rate, level.p50_ms or 0), textcoords="offset points", xytext=(4, -10))
    left.set(xlabel="answers per second (numbers: connections)", ylabel="ms", title="Latency")
    left.set_ylim(bottom=0)
    left.legend()
    right.step([at for at, _ in series], [count for _, count in series], where="post")
    right.set(xlabel="seconds", ylabel="replicas", title="Replicas of the captioner, from /metrics")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
