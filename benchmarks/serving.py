"""The served application under load, in one run: throughput and latency compared with the bare captioner and a Serve
echo, overload above the knee, and load while a replica is killed, a champion promoted and the application redeployed.

Nothing is simulated: Ray Serve with its proxy, ``serve deploy`` of a config file, an MLflow registry, the load
generator ``hey`` in its own process, SIGKILL to a replica.
"""

from __future__ import annotations

import base64
import json
import os
import secrets
import shutil
import signal
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import yaml
from pydantic import Field

from benchmarks.cpu import Spent
from benchmarks.load import Load, Watch, knee, load_curve, plot
from benchmarks.measurement import Measurement, this_environment
from benchmarks.processes import caption_alone, say, scratch
from cluster.config import ClusterConfig
from cluster.session import session
from idc.captioning.contract import Captioner
from idc.config import ConfigModel
from idc.data.store import iter_rows
from idc.loopback import collect_no_metrics

APPLICATION, MODEL = "captions", "Model"
REPLICAS = "idc_replicas"
"""Metric of the application: number of replicas by deployment."""
_OVER_CONNECTIONS = 384
"""Concurrent requests at three times the knee's load; more than the application queues."""
_REQUESTS_ALONE = 100
"""Sequential requests, for the latency without load."""
_EVENT_S = 18.0
"""Duration of the load around each event."""


class ServingConfig(ConfigModel):
    """The served application under load, compared with the captioner without a server."""

    artifact: str = "runs/demo/finetune-0/artifact"
    """Artifact of the captioner."""
    pairs: str = "data/demo/pairs"
    """Folder of pairs; the first pair of its test split is used in all requests."""
    batch: int = Field(16, ge=1)
    """Pairs per batch, of both."""
    replicas: int = Field(2, ge=1)
    """Maximum number of replicas, and processes of the bare captioner."""
    threads: int = Field(2, ge=1)
    """Torch threads of all replicas together."""
    connections: tuple[int, ...] = (8, 32, 64, 96)
    """Concurrent requests of each level; the highest levels should be past the knee."""
    seconds: float = Field(10.0, gt=0)
    """Duration of one level, and of one round of the bare captioner."""
    rounds: int = Field(3, ge=1)
    """Rounds of a request alone and at the knee, in turns with the bare captioner."""
    events: bool = True
    """Also measure overload, and load while a replica is killed, a champion promoted and the application redeployed."""
    downscale_delay_s: float = Field(10.0, gt=0)
    """Seconds before an idle replica is removed."""
    port: int = Field(8123, ge=1024, le=65535)
    """Port of the application."""
    plot: str = "runs/benchmark/serving.png"
    """Output file of the plot of latencies and replicas."""


def echo(_: Mapping[str, Any]) -> Any:
    """An application that returns the length of the request body; its latency is Serve's own."""
    from ray import serve
    from starlette.requests import Request

    @serve.deployment(ray_actor_options={"num_cpus": 0}, max_ongoing_requests=1000)
    class Echo:
        async def __call__(self, request: Request) -> dict[str, int]:
            return {"bytes": len(await request.body())}

    return Echo.bind()  # type: ignore[attr-defined]  # Ray's decorator


def serving(
    config: ServingConfig, cluster: ClusterConfig, load_captioner: Callable[[str], Captioner]
) -> list[Measurement]:
    """Run the whole benchmark; returns three measurements. ``more`` of the first holds all other results.

    Args:
        load_captioner: loads the bare captioner; picklable.

    Raises:
        ValueError: ``hey`` is not installed, or the application does not start.
    """
    for name in ("RAY_SERVE_ENABLE_HA_PROXY", "RAY_SERVE_THROUGHPUT_OPTIMIZED"):
        os.environ[name] = "1"
    collect_no_metrics()  # as `python -m serve.app` does: nobody reads Ray's own
    where = this_environment(config.threads)
    with scratch() as folder, session(cluster.model_copy(update={"dashboard": True, "worker_logs": False})) as url:
        assert url is not None
        return _Run(config, folder, url, load_captioner).measure(where)


@dataclass
class _Run:
    """One run of the benchmark, on a Ray whose dashboard is at ``dashboard``."""

    config: ServingConfig
    folder: Path
    dashboard: str
    load_captioner: Callable[[str], Captioner]

    def __post_init__(self) -> None:
        self.base = f"http://127.0.0.1:{self.config.port}"
        self.images = _pair(self.config.pairs)
        encoded = {name: base64.b64encode(image).decode() for name, image in self.images.items()}
        self.body = self.folder / "pair.json"
        self.body.write_text(json.dumps(encoded), encoding="utf-8")
        self.many = self.folder / "pairs.json"
        self.many.write_text(json.dumps({"pairs": [encoded] * self.config.batch}), encoding="utf-8")
        self.token = secrets.token_hex(16)
        self.headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
        self.tracking = f"sqlite:///{self.folder / 'mlflow.db'}"

    def measure(self, where: Any) -> list[Measurement]:
        config = self.config
        self._register(1)
        self._deploy(timeout_s=60)
        story: dict[str, Any] = {}
        with Watch(f"{self.base}/metrics", self.headers, _replicas) as watch:
            watch.wait_for(lambda count: count == 0, 60)
            story["cold_start_s"] = round(self._request(), 2)
            say(f"serving: the first request, from no replica, {story['cold_start_s']} s")
            singles, echoes, alone_ms = [], [], []
            for _ in range(config.rounds):
                singles.append(self._median_ms("/v1/captions"))
                echoes.append(self._median_ms("/echo"))
                alone_ms.append(self._bare(processes=1, batch=1)["batch_ms"])
                say(f"serving: alone {singles[-1]} ms, echo {echoes[-1]} ms, the captioner {alone_ms[-1]:.1f} ms")

            levels, rates, bares, batched = [], [], [], []
            rate = 1e3 / singles[-1]
            self._warm(watch)
            for connections in config.connections:
                level = self._load(connections, rate)
                rate = max(rate, level.good_per_second)
                levels.append(level)
            at = knee(levels)
            spent = {name: Spent(_process_kind) for name in ("knee", "many")}
            for _ in range(config.rounds):
                bares.append(self._bare(config.replicas, config.batch)["pairs_per_second"])
                say(f"serving: bare captioner {bares[-1]:.1f} pairs/s")
                self._warm(watch)
                with spent["knee"].measured() as count:
                    load_run = self._load(at.connections, rate)
                    count(*load_run.busy())
                rates.append(load_run.steady)
                self._warm(watch)
                with spent["many"].measured() as count:
                    load_run = self._load_many(rate)
                    count(*load_run.busy(config.batch))
                batched.append(config.batch * load_run.steady)
            story["core_ms_per_pair"] = {name: time_spent.ms_per_pair() for name, time_spent in spent.items()}
            say(f"serving: ms of the cores per pair {story['core_ms_per_pair']}")
            if config.events:
                story |= self._events(watch, at, rate)
            story |= {"knee": at.model_dump(), "knee_connections": at.connections}
            story |= {"levels": [level.model_dump() for level in levels], "replicas_over_time": watch.changes()}
        plot(Path(config.plot), levels, watch.series)
        parts_ms = [echo + bare for echo, bare in zip(echoes, alone_ms, strict=True)]
        story |= {"alone_ms": singles, "echo_ms": echoes, "captioner_alone_ms": alone_ms}
        added = statistics.median(whole - parts for whole, parts in zip(singles, parts_ms, strict=True))
        return [
            Measurement(
                part="serving",
                title="captions a second at the knee (one pair a request) over the bare captioner in "
                f"{config.replicas} processes, batch {config.batch}",
                unit="pairs/s",
                aim="at least 0.85 on two cores, 0.9 where the front has one of its own",
                above=rates,
                below=bares,
                more=story,
                environment=where,
            ),
            Measurement(
                part="serving",
                title=f"the same with {config.batch} pairs a request, {4 * config.replicas} connections",
                unit="pairs/s",
                aim="the same",
                above=batched,
                below=bares,
                environment=where,
            ),
            Measurement(
                part="serving",
                title="median of a request alone over Serve's echo and the captioner alone together",
                unit="ms",
                aim="adds at most 15 ms",
                above=singles,
                below=parts_ms,
                more={"added_ms": round(added, 1)},
                environment=where,
            ),
        ]

    def _events(self, watch: Watch, at: Load, rate: float) -> dict[str, Any]:
        """Overload, the three events under load, and the end of all replicas when idle."""
        self._warm(watch)
        over = self._over(3 * at.good_per_second)
        events = {
            "replica killed": self._during(watch, at, rate, self._kill),
            "champion promoted": self._during(watch, at, rate, self._promote),
            "application deployed again": self._during(watch, at, rate, self._redeploy),
        }
        self._warm(watch)
        idle = watch.now()
        gone = watch.wait_for(lambda count: count == 0, 4 * self.config.downscale_delay_s + 60)
        say(f"serving: no replica left {gone - idle:.0f} s after the last request")
        return {"over": over.model_dump(), "events": events}

    # -- load ------------------------------------------------------------------------------------------------------

    def _load(self, connections: int, rate: float, seconds: float | None = None) -> Load:
        """Load as fast as answers arrive, for about ``seconds`` if ``rate`` requests per second are answered."""
        requests = int(max(4 * connections, rate * (seconds or self.config.seconds)))
        load_run = self._send(connections, requests)
        say(f"serving: {load_run.text()}")
        return load_run

    def _warm(self, watch: Watch) -> None:
        """Load until all replicas run: idle ones have been removed in the meantime."""
        while watch.next_reading() < self.config.replicas:
            self._send(2 * self.config.batch * self.config.replicas, 4 * self.config.batch * self.config.replicas)

    def _median_ms(self, path: str) -> float:
        """Median latency of sequential requests."""
        load_run = self._send(1, _REQUESTS_ALONE, path=path)
        assert load_run.p50_ms is not None, load_run.text()
        return load_run.p50_ms

    def _load_many(self, rate: float) -> Load:
        """Load with a full batch per request and four concurrent requests per replica."""
        batch, connections = self.config.batch, 4 * self.config.replicas
        requests = max(6 * connections, int(rate * self.config.seconds / batch))
        load_run = load_curve(f"{self.base}/v1/captions", self.many, connections, requests, None, self.headers)
        say(f"serving: {batch} pairs per request, {load_run.text()}")
        return load_run

    def _send(
        self, connections: int, requests: int, rate_each: float | None = None, path: str = "/v1/captions"
    ) -> Load:
        return load_curve(f"{self.base}{path}", self.body, connections, requests, rate_each, self.headers)

    def _over(self, rate: float) -> Load:
        """Send ``rate`` requests per second, however many are answered."""
        each = rate / _OVER_CONNECTIONS
        load_run = self._send(_OVER_CONNECTIONS, int(rate * self.config.seconds), rate_each=each)
        say(f"serving: {rate:.0f} requests/s sent, {load_run.text()}")
        return load_run

    def _during(self, watch: Watch, at: Load, rate: float, event: Callable[[], str]) -> dict[str, Any]:
        """The knee's load with an event after its first third; it continues until the event is over."""
        self._warm(watch)

        def happen() -> str:
            time.sleep(_EVENT_S / 3)  # let the load settle
            return event()

        with ThreadPoolExecutor(1) as pool:
            happening = pool.submit(happen)
            loads = [self._load(at.connections, rate, _EVENT_S)]
            while not happening.done():
                loads.append(self._load(at.connections, rate, _EVENT_S / 2))
        totals = {
            name: sum(getattr(run, name) for run in loads) for name in ("sent", "failed", "refused", "unanswered")
        }
        outcome = happening.result()
        say(f"serving: {outcome}: {totals['failed']} failed, {totals['refused']} refused of {totals['sent']}")
        return {"what": outcome, **totals, "loads": [run.model_dump() for run in loads]}

    def _request(self) -> float:
        """Seconds of one request."""
        request = urllib.request.Request(f"{self.base}/v1/captions", self.body.read_bytes(), self.headers)
        began = time.perf_counter()
        with urllib.request.urlopen(request, timeout=120) as answer:
            answer.read()
        return time.perf_counter() - began

    def _bare(self, processes: int, batch: int) -> dict[str, float]:
        """The captioner without a server, on the same encoded pair, in concurrent processes."""
        spawn = get_context("spawn")
        with spawn.Pool(processes) as pool:
            threads = max(1, self.config.threads // processes) if batch > 1 else 1
            ready = spawn.Manager().Barrier(processes)
            job = (
                partial(self.load_captioner, self.config.artifact),
                self.images,
                batch,
                threads,
                self.config.seconds,
                ready,
            )
            results = pool.starmap(caption_alone, [job] * processes)
        return {
            "pairs_per_second": sum(result["pairs"] / result["seconds"] for result in results),
            "batch_ms": statistics.mean(result["median_ms"] for result in results),
        }

    # -- events ----------------------------------------------------------------------------------------------------

    def _kill(self) -> str:
        """SIGKILL one replica."""
        from ray.util.state import list_actors

        # By its address: other Rays may run on this machine.
        actors = list_actors(self.dashboard, filters=[("state", "=", "ALIVE")], detail=True, limit=1000)
        pids = [actor.pid for actor in actors if actor.pid and actor.name and f"{APPLICATION}#{MODEL}#" in actor.name]
        if not pids:
            raise ValueError(f"serving: none of Ray's {len(actors)} living actors is a replica of the captioner")
        os.kill(pids[0], signal.SIGKILL)
        return f"one of {len(pids)} replicas killed (SIGKILL)"

    def _promote(self) -> str:
        """Make a second version the champion and wait until it is served."""
        before = self._version()
        self._register(2)
        began = time.perf_counter()
        while (version := self._version()) == before:
            time.sleep(0.2)
        return f"{version} instead of {before}, {time.perf_counter() - began:.1f} s after the alias was moved"

    def _redeploy(self) -> str:
        """Deploy with another setting, so that Serve replaces the replicas, and wait until it is done."""
        began = time.perf_counter()
        self._deploy(timeout_s=90)
        return f"application deployed again in {time.perf_counter() - began:.1f} s"

    def _version(self) -> str:
        request = urllib.request.Request(f"{self.base}/v1/models", headers=self.headers)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return str(json.load(answer)["data"][0]["version"])

    # -- deployment ------------------------------------------------------------------------------------------------

    def _register(self, number: int) -> None:
        """Register the artifact with a changed model card as a new version of ``captioner`` and as its champion."""
        from cluster.registry import Registry
        from idc.training.artifact import CARD, read_artifact

        copy = self.folder / f"artifact-{number}"
        shutil.copytree(self.config.artifact, copy)
        with (copy / CARD).open("a", encoding="utf-8") as card:
            card.write(f"\nVersion {number} of a benchmark.\n")
        registry = Registry(self.tracking, "captioner", make=True)
        version, _ = registry.register(read_artifact(copy), None)
        registry.client.set_registered_model_alias("captioner", "champion", str(version.number))

    def _deploy(self, timeout_s: float) -> None:
        """``serve deploy`` a config file and wait until all its applications run.

        Raises:
            ValueError: an application does not start.
        """
        config = self.config
        args = {
            "models": {"champion": "models:/captioner@champion"},
            "auth": {
                "mode": "token",
                "tokens": [{"name": "benchmark", "sha256": sha256(self.token.encode()).hexdigest()}],
            },
            "registry": {"tracking_uri": self.tracking, "poll_s": 1.0, "cache": str(self.folder / "cache")},
            "batching": {"max_pairs": config.batch},
            "limits": {"timeout_s": timeout_s},
            "scaling": {
                "min_replicas": 0,
                "max_replicas": config.replicas,
                "target_pairs": config.batch,
                "upscale_delay_s": 1.0,
                "downscale_delay_s": config.downscale_delay_s,
                "drain_s": timeout_s,
            },
        }
        deployed = {
            "http_options": {"host": "127.0.0.1", "port": config.port},
            "applications": [
                {"name": APPLICATION, "route_prefix": "/", "import_path": "serve.app:build", "args": args},
                {"name": "echo", "route_prefix": "/echo", "import_path": "benchmarks.serving:echo"},
            ],
        }
        path = self.folder / "serve.yaml"
        path.write_text(yaml.safe_dump(deployed), encoding="utf-8")
        tool = Path(sys.executable).with_name("serve")
        subprocess.run(
            [str(tool), "deploy", str(path)], check=True, env={**os.environ, "RAY_DASHBOARD_ADDRESS": self.dashboard}
        )
        _until_running(timeout_s=180)


def _until_running(timeout_s: float) -> None:
    from ray import serve

    last = time.monotonic() + timeout_s
    while True:
        applications = serve.status().applications
        states = {name: str(app.status.value) for name, app in applications.items()}
        if len(states) == 2 and set(states.values()) == {"RUNNING"}:
            return
        if "DEPLOY_FAILED" in states.values() or time.monotonic() > last:
            outcome = "; ".join(f"{name} {app.status.value} {app.message}" for name, app in applications.items())
            raise ValueError(f"serving: the applications do not run: {outcome}")
        time.sleep(0.2)


def _process_kind(command: str) -> str:
    """Name under which a process of this benchmark is counted."""
    program = Path(command.split()[0]).name if command.split() else ""
    if f"ServeReplica:{APPLICATION}:" in command:
        return "replicas" if f":{MODEL}" in command else "front"
    if program in ("hey", "haproxy", "raylet", "gcs_server"):
        return program
    ours = any(name in command for name in ("ServeController", "ProxyActor", "HAProxyManager"))
    return "Serve's controller and proxies" if ours else "Ray's other processes"


def _replicas(samples: list[tuple[str, dict[str, str], float]]) -> float:
    """Number of the captioner's replicas in the application's metrics."""
    return sum(value for name, labels, value in samples if name == REPLICAS and labels.get("deployment") == MODEL)


def _pair(pairs: str) -> dict[str, bytes]:
    """The first pair of the test split."""
    for row in iter_rows(pairs, ["before", "after"], split="test", batch_size=1):
        return {"before": row["before"], "after": row["after"]}
    raise ValueError(f"serving.pairs: {pairs} has no pair in its test split")
